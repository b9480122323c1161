import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence


class Highway(nn.Module):
    def __init__(self, size, layers):
        super().__init__()
        self.lin = nn.ModuleList([nn.Linear(size, 2 * size) for _ in range(layers)])
        for m in self.lin:
            m.bias.data[size:].fill_(-2)

    def forward(self, x):
        for m in self.lin:
            h, g = m(x).chunk(2, dim=-1)
            g = torch.sigmoid(g)
            x = g * F.relu(h) + (1 - g) * x
        return x


class CharCNN(nn.Module):
    def __init__(self, chars, dim, kernels):
        super().__init__()
        self.emb = nn.Embedding(chars, dim, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(dim, n, k) for k, n in kernels])

    def forward(self, ids):
        b, t, w = ids.shape
        x = self.emb(ids.view(b * t, w)).transpose(1, 2)
        feats = [torch.tanh(conv(x)).max(dim=-1).values for conv in self.convs]
        return torch.cat(feats, -1).view(b, t, -1)


class Model(nn.Module):
    """Character CNN with highways, a biLSTM in a named-entity tagger and a Kim CNN sentence classifier;
    task heads in a ModuleDict, losses weighted by learned uncertainty, outputs in a dict."""

    def __init__(self, words, chars, wdim, cdim, kernels, hidden, heads):
        super().__init__()
        self.word = nn.Embedding(words, wdim, padding_idx=0)
        self.char = CharCNN(chars, cdim, kernels)
        width = wdim + sum(n for _, n in kernels)
        self.highway = Highway(width, 2)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.kim = nn.ModuleList([nn.Conv2d(1, 14, (k, 2 * hidden), padding=(k - 1, 0)) for k in (2, 3, 5)])
        self.bag = nn.EmbeddingBag(words, 12, mode="max", padding_idx=0)
        self.sent = nn.Linear(3 * 14 + 12 + 2 * hidden, 30)
        self.heads = nn.ModuleDict({k: nn.Linear(2 * hidden if level == "token" else 30, n) for k, (level, n) in heads.items()})
        self.level = {k: level for k, (level, n) in heads.items()}
        self.log_var = nn.ParameterDict({k: nn.Parameter(torch.zeros(1)) for k in heads})

    def forward(self, words, chars, *targets):
        labels = dict(zip(self.heads.keys(), targets))
        mask = words.ne(0)
        x = self.highway(torch.cat([self.word(words), self.char(chars)], dim=-1))
        x, _ = self.lstm(x * mask.unsqueeze(-1))
        x = x.masked_fill(~mask[..., None], 0.0)
        conv = [F.relu(c(x.unsqueeze(1))).squeeze(3) for c in self.kim]
        kim = torch.cat([F.max_pool1d(c, c.size(2)).squeeze(2) for c in conv], 1)
        mean = x.sum(1) / mask.sum(1, keepdim=True)
        sent = F.gelu(self.sent(torch.cat([kim, self.bag(words), mean], -1)), approximate="tanh")
        out = {}
        total = x.new_zeros(())
        for name, head in self.heads.items():
            logits = head(x if self.level[name] == "token" else sent)
            y = labels[name]
            loss = F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=-100)
            s = self.log_var[name]
            total = total + (torch.exp(-s) * loss + s).squeeze()
            out[name] = logits
        out["loss"] = total
        return out


def get_inputs():
    lens = [13, 9, 17, 4, 11, 17]
    words = pad_sequence([torch.randint(1, 211, (n,)) for n in lens], batch_first=True)
    chars = torch.randint(1, 40, (6, 17, 9)) * words.ne(0).unsqueeze(-1)
    ner = torch.randint(0, 9, (6, 17)).masked_fill(words.eq(0), -100)
    return [words, chars, ner, torch.randint(0, 5, (6,)), torch.randint(0, 3, (6,))]


def get_init_inputs():
    heads = {"ner": ("token", 9), "topic": ("sentence", 5), "tone": ("sentence", 3)}
    return [211, 40, 26, 8, [(2, 10), (3, 14), (4, 12)], 34, heads]

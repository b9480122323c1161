import torch
import torch.nn as nn
import torch.nn.functional as F


class Highway(nn.Module):
    def __init__(self, size, num_layers=2):
        super().__init__()
        self.nonlinear = nn.ModuleList([nn.Linear(size, size) for _ in range(num_layers)])
        self.gate = nn.ModuleList([nn.Linear(size, size) for _ in range(num_layers)])
        for g in self.gate:
            nn.init.constant_(g.bias, -2.0)

    def forward(self, x):
        for nonlin, gate in zip(self.nonlinear, self.gate):
            t = torch.sigmoid(gate(x))
            x = t * F.relu(nonlin(x)) + (1 - t) * x
        return x


class CharCNN(nn.Module):
    def __init__(self, num_chars, char_dim, kernels, features):
        super().__init__()
        self.embed = nn.Embedding(num_chars, char_dim, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(char_dim, f, k) for k, f in zip(kernels, features)])

    def forward(self, x):
        # (B, T, W) -> (B * T, D, W)
        B, T, W = x.shape
        x = self.embed(x.view(B * T, W)).transpose(1, 2)
        outs = []
        for conv in self.convs:
            y = torch.tanh(conv(x))
            outs.append(F.max_pool1d(y, y.size(2)).squeeze(2))
        return torch.cat(outs, dim=1).view(B, T, -1)


class ELMoStyleMixer(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scalars = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(n)])
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, tensors):
        w = torch.softmax(torch.cat([p for p in self.scalars]), dim=0)
        w = torch.split(w, split_size_or_sections=1)
        return self.gamma * sum(a * t for a, t in zip(w, tensors))


class Model(nn.Module):
    """Character-aware tagger: char CNN, highway layers, gated 1-D conv stack, scalar mix, masked loss."""

    def __init__(self, num_chars, char_dim, kernels, features, hidden, num_layers, num_tags):
        super().__init__()
        self.char_cnn = CharCNN(num_chars, char_dim, kernels, features)
        total = sum(features)
        self.highway = Highway(total, 2)
        self.proj = nn.Linear(total, hidden)
        self.convs = nn.ModuleList([nn.Conv1d(hidden, 2 * hidden, 3) for _ in range(num_layers)])
        self.mix = ELMoStyleMixer(num_layers + 1)
        self.out = nn.Linear(hidden, num_tags)

    def forward(self, chars, tags, lengths):
        B, T, _ = chars.shape
        x = self.proj(self.highway(self.char_cnn(chars)))
        mask = torch.arange(T, device=chars.device)[None, :] < lengths[:, None]
        layers = [x]
        for conv in self.convs:
            y = F.pad(x.transpose(1, 2), (2, 0))
            y = F.glu(conv(y), dim=1).transpose(1, 2)
            x = (x + y) * (0.5 ** 0.5)
            x = x * mask.unsqueeze(-1)
            layers.append(x)
        logits = self.out(self.mix(layers))
        logp = F.log_softmax(logits, dim=-1)
        nll = -logp.gather(2, tags.unsqueeze(-1)).squeeze(-1)
        loss = (nll * mask).sum() / mask.sum()
        return loss, logits


def get_inputs():
    return [torch.randint(0, 96, (16, 32, 20)), torch.randint(0, 17, (16, 32)), torch.randint(8, 33, (16,))]


def get_init_inputs():
    return [96, 16, [1, 2, 3, 4, 5, 6, 7], [25, 50, 75, 100, 100, 100, 100], 256, 3, 17]

import torch
import torch.nn as nn
import torch.nn.functional as F


class AUGRUCell(nn.Module):
    """GRU cell whose update gate is scaled by an attention score."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.bias_ih = nn.Parameter(torch.zeros(3 * hidden_size))
        self.bias_hh = nn.Parameter(torch.zeros(3 * hidden_size))
        for w in (self.weight_ih, self.weight_hh):
            nn.init.xavier_uniform_(w)

    def forward(self, gi, hx, att_score):
        gh = F.linear(hx, self.weight_hh, self.bias_hh)
        i_r, i_z, i_n = gi.chunk(3, 1)
        h_r, h_z, h_n = gh.chunk(3, 1)
        reset_gate = torch.sigmoid(i_r + h_r)
        update_gate = torch.sigmoid(i_z + h_z)
        new_state = torch.tanh(i_n + reset_gate * h_n)
        update_gate = att_score.view(-1, 1) * update_gate
        return (1.0 - update_gate) * hx + update_gate * new_state


class DynamicGRU(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.rnn = AUGRUCell(input_size, hidden_size)

    def forward(self, inputs, att_scores, mask):
        B, T, _ = inputs.shape
        gi = F.linear(inputs, self.rnn.weight_ih, self.rnn.bias_ih)
        h = torch.zeros(B, self.rnn.hidden_size, device=inputs.device, dtype=inputs.dtype)
        for t in range(T):
            new = self.rnn(gi[:, t], h, att_scores[:, t])
            h = torch.where(mask[:, t : t + 1], new, h)
        return h


class Dice(nn.Module):
    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=1e-3)
        self.alpha = nn.Parameter(torch.zeros(dim) + 0.1)

    def forward(self, x):
        p = torch.sigmoid(self.bn(x))
        return self.alpha * (1 - p) * x + p * x


class AuxiliaryNet(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 64), nn.Sigmoid(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 1))

    def forward(self, states, items):
        return self.net(torch.cat([states, items], dim=-1)).squeeze(-1)


class Model(nn.Module):
    """DIEN: nn.GRU interest extraction with auxiliary loss, attention-scaled AUGRU evolution, Dice MLP."""

    def __init__(self, items, cats, users, emb, mlp):
        super().__init__()
        self.item_emb = nn.Embedding(items, emb, padding_idx=0)
        self.cat_emb = nn.Embedding(cats, emb, padding_idx=0)
        self.user_emb = nn.Embedding(users, emb)
        d = 2 * emb
        self.extractor = nn.GRU(d, d, batch_first=True)
        self.aux = AuxiliaryNet(2 * d)
        self.att_w = nn.Parameter(torch.randn(d, d) * 0.1)
        self.evolution = DynamicGRU(d, d)
        layers, c = [], emb + 4 * d
        for m in mlp:
            layers += [nn.Linear(c, m), Dice(m)]
            c = m
        self.mlp = nn.Sequential(*layers, nn.Linear(c, 2))

    def embed(self, item, cat):
        return torch.cat([self.item_emb(item), self.cat_emb(cat)], dim=-1)

    def forward(self, user, item, cat, hist_item, hist_cat, neg_item, neg_cat, label):
        mask = hist_item != 0
        target = self.embed(item, cat)
        hist = self.embed(hist_item, hist_cat)
        neg = self.embed(neg_item, neg_cat)
        states, _ = self.extractor(hist)
        # auxiliary loss: the state at t must tell the click at t + 1 from a negative
        m = mask[:, 1:].to(hist.dtype)
        pos_logit = self.aux(states[:, :-1], hist[:, 1:])
        neg_logit = self.aux(states[:, :-1], neg[:, 1:])
        aux_loss = -((F.logsigmoid(pos_logit) + F.logsigmoid(-neg_logit)) * m).sum() / m.sum()
        scores = torch.einsum("btd,de,be->bt", states, self.att_w, target)
        scores = scores.masked_fill(~mask, -(2.0 ** 20)).softmax(-1)
        final = self.evolution(states, scores, mask)
        hist_sum = (hist * mask.unsqueeze(-1)).sum(1)
        x = torch.cat([self.user_emb(user), target, hist_sum, target * hist_sum, final], dim=-1)
        prob = torch.softmax(self.mlp(x), dim=-1) + 1e-8
        onehot = torch.stack([label, 1 - label], dim=1).to(prob.dtype)
        loss = -(torch.log(prob) * onehot).sum(1).mean()
        return loss + 0.5 * aux_loss, aux_loss, prob[:, 0]


def get_inputs():
    B, T = 70, 30
    lengths = torch.randint(5, T + 1, (B, 1))
    keep = (torch.arange(T)[None] < lengths).long()
    return [
        torch.randint(0, 200, (B,)), torch.randint(1, 1000, (B,)), torch.randint(1, 40, (B,)),
        torch.randint(1, 1000, (B, T)) * keep, torch.randint(1, 40, (B, T)) * keep,
        torch.randint(1, 1000, (B, T)) * keep, torch.randint(1, 40, (B, T)) * keep, torch.randint(0, 2, (B,)),
    ]


def get_init_inputs():
    return [1000, 40, 200, 32, (100, 50)]

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def relative_bucket(rel, buckets, max_distance):
    """T5's bidirectional buckets: exact near, logarithmic far."""
    half = buckets // 2
    ret = (rel > 0).long() * half
    n = rel.abs()
    exact = half // 2
    far = exact + (torch.log(n.float().clamp(min=1) / exact) / math.log(max_distance / exact) * (half - exact)).long()
    return ret + torch.where(n < exact, n, far.clamp(max=half - 1))


class Subsampling(nn.Module):
    def __init__(self, feats, ch, d):
        super().__init__()
        self.conv1 = nn.Conv2d(1, ch, 3, 2)
        self.dw, self.pw = nn.Conv2d(ch, ch, 3, 2, groups=ch), nn.Conv2d(ch, ch, 1)
        self.out = nn.Linear(ch * (((feats - 1) // 2 - 1) // 2), d)

    def forward(self, x, lens):
        x = F.relu(self.conv1(x.unsqueeze(1)))
        x = F.relu(self.pw(self.dw(x)))
        b, c, t, f = x.shape
        return self.out(x.transpose(1, 2).contiguous().view(b, t, c * f)), ((lens - 1) // 2 - 1) // 2


class EncoderLayer(nn.Module):
    def __init__(self, d, heads, ff, kernel):
        super().__init__()
        self.h = heads
        self.norm = nn.ModuleList([nn.LayerNorm(d) for _ in range(3)])
        self.q, self.kv, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(d, d)
        self.gate = nn.Conv1d(d, 2 * d, kernel, padding="same", groups=d)
        self.mix = nn.Conv1d(d, d, 1)
        self.ff = nn.Sequential(nn.Linear(d, ff), nn.Mish(), nn.Linear(ff, d))

    def forward(self, x, bias, mask):
        b, t, d = x.shape
        y = self.norm[0](x)
        q = self.q(y).view(b, t, self.h, -1)
        k, v = self.kv(y).view(b, t, 2, self.h, -1).unbind(2)
        s = torch.einsum("bihd,bjhd->bhij", q, k) / (d // self.h) ** 0.5 + bias
        p = s.masked_fill(~mask[:, None, None], -1e9).softmax(-1)
        x = x + self.o(torch.einsum("bhij,bjhd->bihd", p, v).reshape(b, t, d))
        y = (self.norm[1](x) * mask.unsqueeze(-1)).transpose(1, 2)
        x = x + self.mix(F.glu(self.gate(y), dim=1)).transpose(1, 2)
        return x + self.ff(self.norm[2](x))


class Model(nn.Module):
    """Speech transducer: convolutional subsampling, T5-biased encoder, stateless convolutional predictor, joint
    lattice with its forward recursion along anti-diagonals written out."""

    def __init__(self, feats, ch, d, heads, ff, layers, vocab, joint):
        super().__init__()
        self.sub = Subsampling(feats, ch, d)
        self.rel = nn.Embedding(16, heads)
        self.layers = nn.ModuleList([EncoderLayer(d, heads, ff, 7) for _ in range(layers)])
        self.embed = nn.Embedding(vocab, d)
        self.context = nn.Conv1d(d, d, 2, groups=d // 2)
        self.enc_proj, self.pred_proj = nn.Linear(d, joint), nn.Linear(d, joint, bias=False)
        self.out = nn.Linear(joint, vocab)

    def lattice(self, logp, labels, tlen, ulen):
        """-log p of each utterance; blank is 0."""
        b, t, u1, _ = logp.shape
        blank = logp[..., 0]
        emit = logp[:, :, :-1, 1:].gather(3, (labels - 1).clamp(min=0)[:, None, :, None].expand(-1, t, -1, 1)).squeeze(-1)
        rows = []
        alpha = F.pad(emit[:, 0].cumsum(1), (1, 0))
        rows.append(alpha)
        for i in range(1, t):
            up = alpha + blank[:, i - 1]
            cells = [up[:, 0]]
            for j in range(1, u1):
                cells.append(torch.logaddexp(up[:, j], cells[-1] + emit[:, i, j - 1]))
            alpha = torch.stack(cells, 1)
            rows.append(alpha)
        alpha = torch.stack(rows, 1)
        n = torch.arange(b, device=logp.device)
        return -(alpha[n, tlen - 1, ulen] + blank[n, tlen - 1, ulen])

    def forward(self, feats, lens, labels, ulen):
        x, tlen = self.sub(feats, lens)
        t = x.size(1)
        pos = torch.arange(t, device=x.device)
        mask = pos[None] < tlen[:, None]
        bias = self.rel(relative_bucket(pos[None] - pos[:, None], 16, 40)).permute(2, 0, 1)[None]
        for layer in self.layers:
            x = layer(x, bias, mask)
        y = self.embed(F.pad(labels, (2, 0)))
        y = F.relu(self.context(y.transpose(1, 2))).transpose(1, 2)
        j = torch.tanh(self.enc_proj(x).unsqueeze(2) + self.pred_proj(y).unsqueeze(1))
        logp = self.out(j).log_softmax(-1)
        nll = self.lattice(logp, labels, tlen, ulen)
        w = mask.unsqueeze(-1).float()
        mean = (x * w).sum(1) / w.sum(1)
        std = (((x - mean.unsqueeze(1)) ** 2 * w).sum(1) / w.sum(1) + 1e-6).sqrt()
        return nll, torch.cat([mean, std], -1)


def get_inputs():
    labels = torch.randint(1, 45, (3, 6))
    labels[1, 4:] = 0
    return [torch.randn(3, 75, 40), torch.tensor([75, 60, 47]), labels, torch.tensor([6, 4, 6])]


def get_init_inputs():
    return [40, 16, 54, 3, 110, 2, 45, 58]

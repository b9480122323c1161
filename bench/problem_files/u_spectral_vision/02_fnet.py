import torch
import torch.nn as nn
import torch.nn.functional as F


class FourierMixing(nn.Module):
    def forward(self, x, mask):
        x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


class FNetBlock(nn.Module):
    def __init__(self, dim, hidden, eps=1e-12):
        super().__init__()
        self.mix = FourierMixing()
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.intermediate = nn.Linear(dim, hidden)
        self.output = nn.Linear(hidden, dim)

    def forward(self, x, mask):
        x = self.norm1(x + self.mix(x, mask))
        h = F.gelu(self.intermediate(x), approximate="tanh")
        return self.norm2(x + self.output(h))


class Model(nn.Module):
    """FNet encoder: token and position embeddings, Fourier token mixing, masked mean pooling, MLM style logits."""

    def __init__(self, vocab=211, dim=64, hidden=160, depth=2, max_len=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim, padding_idx=0)
        self.pos = nn.Embedding(max_len, dim)
        self.ln = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList([FNetBlock(dim, hidden) for _ in range(depth)])
        self.pooler = nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids):
        b, t = ids.shape
        pos = torch.arange(t, device=ids.device)[None, :].expand(b, -1)
        mask = ids != 0
        x = self.ln(self.tok(ids) + self.pos(pos))
        for blk in self.blocks:
            x = blk(x, mask)
        m = mask.unsqueeze(-1).to(x.dtype)
        pooled = (x * m).sum(1) / m.sum(1).clamp_min(1.0)
        pooled = torch.tanh(self.pooler(pooled))
        logits = x @ self.tok.weight.t() + self.bias
        return logits, pooled


def get_inputs():
    ids = torch.randint(1, 211, (4, 47))
    lens = torch.tensor([47, 40, 31, 12])
    ids[torch.arange(47)[None] >= lens[:, None]] = 0
    return [ids]


def get_init_inputs():
    return [211, 64, 160, 2, 64]

import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, V, H = 4, 1024, 1000, 32003, 2736


class Model(nn.Module):
    """Embedding tied with the output head; position table; one gated MLP;
    label smoothed cross entropy with ignore index plus z-loss."""

    def __init__(self, vocab, dim, hidden, max_len, smoothing, z_weight):
        super().__init__()
        self.emb = nn.Parameter(torch.randn(vocab, dim) / dim ** 0.5)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.1)
        self.head_bias = nn.Parameter(torch.randn(vocab) * 0.1)
        self.norm_in = nn.Parameter(torch.ones(dim))
        self.norm_out = nn.Parameter(torch.ones(dim))
        self.gate = nn.Linear(dim, hidden, bias=True)
        self.up = nn.Linear(dim, hidden, bias=True)
        self.down = nn.Linear(hidden, dim, bias=False)
        self.dim = dim
        self.smoothing = smoothing
        self.z_weight = z_weight

    def forward(self, ids, labels):
        x = F.embedding(ids, self.emb) * self.dim ** 0.5 + self.pos[: ids.shape[1]]
        h = F.rms_norm(x, (self.dim,), self.norm_in, 1e-6)
        x = x + self.down(F.gelu(self.gate(h)) * self.up(h))
        x = F.rms_norm(x, (self.dim,), self.norm_out, 1e-6)
        logits = F.linear(x, self.emb, self.head_bias)
        keep = labels != -100
        safe = labels.masked_fill(~keep, 0)
        lse = torch.logsumexp(logits, dim=-1)
        nll = lse - logits.gather(-1, safe.unsqueeze(-1)).squeeze(-1)
        smooth = lse - logits.mean(dim=-1)
        per_tok = (1 - self.smoothing) * nll + self.smoothing * smooth
        per_tok = per_tok + self.z_weight * lse.square()
        return (per_tok * keep).sum() / keep.sum().clamp(min=1)


def get_inputs():
    ids = torch.randint(0, V, (B, T))
    labels = torch.randint(0, V, (B, T))
    labels[:, -T // 8:] = -100
    return [ids, labels]


def get_init_inputs():
    return [V, D, H, T, 0.1, 1e-3]

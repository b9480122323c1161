import torch
import torch.nn as nn


class Model(nn.Module):
    """Talking-heads attention with distinct numbers of qk, softmax and value heads, causal."""

    def __init__(self, dim, hk, h, hv, dk, dv):
        super().__init__()
        self.wq = nn.Parameter(torch.randn(dim, hk, dk) * dim ** -0.5)
        self.wk = nn.Parameter(torch.randn(dim, hk, dk) * dim ** -0.5)
        self.wv = nn.Parameter(torch.randn(dim, hv, dv) * dim ** -0.5)
        self.wo = nn.Parameter(torch.randn(dim, hv, dv) * (hv * dv) ** -0.5)
        self.pl = nn.Parameter(torch.randn(hk, h) * hk ** -0.5)
        self.pw = nn.Parameter(torch.randn(h, hv) * h ** -0.5)
        self.scale = dk ** -0.5

    def forward(self, x):
        n = x.size(1)
        q = torch.einsum("bnd,dhk->bhnk", x, self.wq)
        k = torch.einsum("bnd,dhk->bhnk", x, self.wk)
        v = torch.einsum("bnd,dhv->bhnv", x, self.wv)
        logits = torch.einsum("bhnk,bhmk->bhnm", q, k) * self.scale
        logits = torch.einsum("bhnm,hi->binm", logits, self.pl)
        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        w = logits.masked_fill(causal, float("-inf")).softmax(dim=-1)
        w = torch.einsum("binm,ij->bjnm", w, self.pw)
        o = torch.einsum("bjnm,bjmv->bjnv", w, v)
        return torch.einsum("bjnv,djv->bnd", o, self.wo)


def get_inputs():
    return [torch.randn(2, 93, 72)]


def get_init_inputs():
    return [72, 6, 5, 7, 13, 11]

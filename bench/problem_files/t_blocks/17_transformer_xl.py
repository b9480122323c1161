import torch
import torch.nn as nn


class Model(nn.Module):
    """Transformer-XL layer with memory, sinusoid relative encodings and the rel-shift trick."""

    def __init__(self, d_model, heads, d_inner):
        super().__init__()
        self.h, self.dh = heads, d_model // heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.r = nn.Linear(d_model, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)
        self.u = nn.Parameter(torch.randn(heads, self.dh) * 0.02)
        self.vb = nn.Parameter(torch.randn(heads, self.dh) * 0.02)
        self.ln1 = nn.LayerNorm(d_model)
        self.ln2 = nn.LayerNorm(d_model)
        self.f1 = nn.Linear(d_model, d_inner)
        self.f2 = nn.Linear(d_inner, d_model)
        self.register_buffer("inv", 1.0 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model)))

    @staticmethod
    def rel_shift(x):
        b, h, q, k = x.shape
        pad = x.new_zeros(b, h, q, 1)
        x = torch.cat([pad, x], dim=-1).view(b, h, k + 1, q)
        return x[:, :, 1:].reshape(b, h, q, k)

    def forward(self, w, mem):
        qlen, b, d = w.shape
        cat = torch.cat([mem, w], 0)
        klen = cat.size(0)
        pos = torch.arange(klen - 1, -1, -1.0, device=w.device, dtype=w.dtype)
        ang = torch.outer(pos, self.inv)
        r = self.r(torch.cat([ang.sin(), ang.cos()], -1)).view(klen, self.h, self.dh)
        q, k, v = self.qkv(cat).chunk(3, dim=-1)
        q = q[-qlen:].view(qlen, b, self.h, self.dh)
        k = k.view(klen, b, self.h, self.dh)
        v = v.view(klen, b, self.h, self.dh)
        ac = torch.einsum("ibnd,jbnd->bnij", q + self.u, k)
        bd = self.rel_shift(torch.einsum("ibnd,jnd->bnij", q + self.vb, r))
        att = (ac + bd) * self.dh ** -0.5
        mask = torch.triu(torch.ones(qlen, klen, device=w.device), 1 + klen - qlen).bool()
        p = att.masked_fill(mask, float("-inf")).softmax(-1)
        vec = torch.einsum("bnij,jbnd->ibnd", p, v).reshape(qlen, b, d)
        y = self.ln1(w + self.o(vec))
        return self.ln2(y + self.f2(torch.relu(self.f1(y))))


def get_inputs():
    return [torch.randn(48, 3, 88), torch.randn(37, 3, 88)]


def get_init_inputs():
    return [88, 4, 210]

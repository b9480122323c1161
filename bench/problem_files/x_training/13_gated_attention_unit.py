import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, E, S = 8, 1024, 768, 1536, 128


class Model(nn.Module):
    """Gated attention unit (FLASH): u, v and base from one linear, q/k by per-dimension
    affine of the shared base, squared-ReLU attention with a Toeplitz position bias."""

    def __init__(self, dim, expanded, shared, max_len):
        super().__init__()
        self.e, self.s, self.n = expanded, shared, max_len
        self.ln = nn.LayerNorm(dim)
        self.uv = nn.Linear(dim, 2 * expanded + shared, bias=True)
        nn.init.normal_(self.uv.bias, std=0.2)
        self.gamma = nn.Parameter(1 + 0.2 * torch.randn(2, shared))
        self.beta = nn.Parameter(0.2 * torch.randn(2, shared))
        self.w = nn.Parameter(torch.randn(2 * max_len - 1) * 0.5)
        self.o = nn.Linear(expanded, dim, bias=True)

    def rel_bias(self, n):
        i = torch.arange(n, device=self.w.device)
        return self.w[i[None, :] - i[:, None] + self.n - 1]

    def forward(self, x):
        n = x.shape[1]
        u, v, base = F.silu(self.uv(self.ln(x))).split([self.e, self.e, self.s], dim=-1)
        base = torch.einsum("...r,hr->...hr", base, self.gamma) + self.beta
        q, k = base.unbind(dim=-2)
        scores = torch.einsum("bnd,bmd->bnm", q, k) * self.s ** -0.5 + self.rel_bias(n)
        kernel = F.relu(scores).square() / n ** 0.5
        keep = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        kernel = kernel.masked_fill(~keep, 0.0)
        y = u * torch.einsum("bnm,bme->bne", kernel, v)
        return x + self.o(y)


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, E, S, T]

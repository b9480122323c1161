import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """FLASH gated attention unit: squared ReLU attention with shared base and offset-scale."""

    def __init__(self, dim, expansion, s, seq):
        super().__init__()
        e = int(dim * expansion)
        self.e, self.s, self.seq = e, s, seq
        self.norm_g = nn.Parameter(torch.ones(1))
        self.uv = nn.Linear(dim, 2 * e + s)
        self.gamma = nn.Parameter(torch.randn(2, s) * 0.02 + 1.0)
        self.beta = nn.Parameter(torch.zeros(2, s))
        self.rel = nn.Parameter(torch.randn(2 * seq - 1) * 0.02)
        self.o = nn.Linear(e, dim)

    def forward(self, x):
        b, n, d = x.shape
        y = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5) * d ** 0.5 * self.norm_g
        uv = F.silu(self.uv(y))
        u, v, base = torch.split(uv, [self.e, self.e, self.s], dim=-1)
        base = base.unsqueeze(2) * self.gamma + self.beta
        q, k = base.unbind(dim=2)
        i = torch.arange(n, device=x.device)
        bias = self.rel[i[:, None] - i[None, :] + self.seq - 1]
        a = torch.bmm(q, k.transpose(1, 2)) / n + bias
        a = torch.square(F.relu(a))
        a = a.tril()
        return x + self.o(u * torch.bmm(a, v))


def get_inputs():
    return [torch.randn(2, 141, 70)]


def get_init_inputs():
    return [70, 1.5, 32, 141]

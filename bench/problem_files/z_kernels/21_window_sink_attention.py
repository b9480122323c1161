import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Sliding-window causal attention by unfold of keys and values, with learned sink keys."""

    def __init__(self, heads, dh, window, sinks):
        super().__init__()
        self.w = window
        self.sk = nn.Parameter(torch.randn(heads, sinks, dh) * 0.3)
        self.sv = nn.Parameter(torch.randn(heads, sinks, dh) * 0.3)
        self.bias = nn.Parameter(torch.zeros(heads, 1, window))
        self.cap = 20.0

    def forward(self, q, k, v):
        t, d, n = q.shape[2], q.shape[3], self.w
        kw = F.pad(k, (0, 0, n - 1, 0)).unfold(2, n, 1)
        vw = F.pad(v, (0, 0, n - 1, 0)).unfold(2, n, 1)
        q = q * d ** -0.5
        s = (q.unsqueeze(-1) * kw).sum(-2) + self.bias
        s = self.cap * torch.tanh(s / self.cap)
        i = torch.arange(t, device=q.device).unsqueeze(1)
        j = torch.arange(n, device=q.device) - (n - 1)
        s = s.masked_fill(i + j < 0, float("-inf"))
        z = q @ self.sk.transpose(-1, -2)
        p = torch.softmax(torch.cat([z, s], -1), -1)
        ns = z.shape[-1]
        return p[..., :ns] @ self.sv + (p[..., ns:].unsqueeze(-2) * vw).sum(-1)


def get_inputs():
    mk = lambda: torch.randn(3, 2039, 6, 32).transpose(1, 2)
    return [mk(), mk(), mk()]


def get_init_inputs():
    return [6, 32, 33, 4]

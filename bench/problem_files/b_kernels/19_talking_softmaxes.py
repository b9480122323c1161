import torch
import torch.nn as nn


class Model(nn.Module):
    """Talking heads with three softmaxes over different dims of the same scores (keys, queries, heads)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.pre = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.tau = nn.Parameter(torch.zeros(heads, 1, 1))
        self.o = nn.Linear(dim, dim)

    def forward(self, x, length):
        B, N, D = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        s = (q @ k.transpose(-1, -2)) * torch.exp(self.tau) * (D // self.h) ** -0.5
        s = torch.einsum("bhij,hg->bgij", s, self.pre) + 0.1 * s.sum(1, keepdim=True)
        i = torch.arange(N, device=x.device)
        pad = i[None, :] >= length[:, None]                                   # (B, N)
        comb = ((i[:, None] - i[None, :]) % 3 == 0) | (i[:, None] - i[None, :] == 1)
        ok = comb & ~pad[:, None, None, :]
        masked = s.masked_fill(~ok, float("-inf"))
        alive = ok.any(-1, keepdim=True)
        masked = torch.where(alive, masked, torch.zeros_like(masked))         # rows with no key: uniform
        over_k = torch.softmax(masked, dim=-1)
        over_q = torch.softmax(s, dim=-2)
        over_h = torch.softmax(s, dim=1)
        a = over_k * (0.5 + over_h) + over_q * ~pad[:, None, None, :]
        a = a / a.sum(-1, keepdim=True).clamp_min(1e-6)
        out = self.o((a @ v).transpose(1, 2).reshape(B, N, D))
        ent = -(over_k * torch.log(over_k + 1e-9)).sum(-1)
        return out, ent.mean(1), over_h.amax(dim=(2, 3))


def get_inputs():
    return [torch.randn(4, 83, 60), torch.tensor([83, 1, 40, 67])]


def get_init_inputs():
    return [60, 5]

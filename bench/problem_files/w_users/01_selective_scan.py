import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Selective state space block, python loop over time, state kept as a buffer with EMA."""

    def __init__(self, dim=32, state=8, ksize=4):
        super().__init__()
        self.dim, self.state, self.ksize = dim, state, ksize
        self.in_proj = nn.Linear(dim, 2 * dim, bias=False)
        self.conv = nn.Conv1d(dim, dim, ksize, groups=dim, padding=ksize - 1)
        self.x_proj = nn.Linear(dim, 2 * state + 4, bias=False)
        self.dt_proj = nn.Linear(4, dim)
        A = torch.arange(1, state + 1, dtype=torch.float32).repeat(dim, 1)
        self.A_log = nn.Parameter(A.log())
        self.D = nn.Parameter(torch.ones(dim))
        self.out = nn.Linear(dim, dim)
        self.register_buffer("ema_state", torch.zeros(dim, state))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x, lengths):
        B, T, C = x.shape
        u, gate = self.in_proj(x).chunk(2, dim=-1)
        u = self.conv(u.transpose(1, 2))[..., :T].transpose(1, 2)
        u = F.silu(u)
        dt, Bm, Cm = torch.split(self.x_proj(u), [4, self.state, self.state], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        A = -torch.exp(self.A_log)
        dA = torch.exp(dt.unsqueeze(-1) * A)
        dBu = dt.unsqueeze(-1) * Bm.unsqueeze(2) * u.unsqueeze(-1)
        valid = (torch.arange(T, device=x.device)[None] < lengths[:, None])
        h = self.ema_state.clone().expand(B, -1, -1)
        ys = []
        for t in range(T):
            h_new = dA[:, t] * h + dBu[:, t]
            h = torch.where(valid[:, t, None, None], h_new, h)
            ys += [torch.einsum("bdn,bn->bd", h, Cm[:, t])]
        y = torch.stack(ys, 1)
        y = y + u * self.D
        y *= F.silu(gate)
        y = self.out(y)
        y = y.masked_fill(~valid.unsqueeze(-1), 0.0)
        if self.training:
            with torch.no_grad():
                self.ema_state.mul_(0.9).add_(h.mean(0), alpha=0.1)
                self.steps += 1
        last = y.gather(1, (lengths - 1).view(B, 1, 1).expand(-1, 1, C)).squeeze(1)
        return y, last, self.steps.clone()


def get_inputs():
    return [torch.randn(8, 24, 32), torch.randint(5, 25, (8,))]


def get_init_inputs():
    return [32, 8, 4]

import torch
import torch.nn as nn


class Model(nn.Module):
    """Mixed-radix states decoded by division, wrapped and clamped moves, value sweeps by gather, SARSA."""

    def __init__(self, dims, sweeps):
        super().__init__()
        self.dims, self.sweeps = dims, sweeps
        n = dims[0] * dims[1] * dims[2]
        self.rew = nn.Parameter(torch.randn(n))
        self.cost = nn.Parameter(torch.rand(n, 6))
        self.lg = nn.Parameter(torch.tensor(2.0))

    def step(self, s, a):
        d0, d1, d2 = self.dims
        i, j, k = s // (d1 * d2), s // d2 % d1, s % d2
        sg = (a % 2) * 2 - 1
        i = (i + sg * (a // 2 == 0)) % d0
        j = (j + 2 * sg * (a // 2 == 1)).clamp(0, d1 - 1)
        k = torch.where((a // 2 == 2) & ((i + j) % 3 != 0), torch.remainder(k * sg - 1, d2), k)
        return (i * d1 + j) * d2 + k

    def forward(self, st, ac, x):
        n = self.rew.shape[0]
        g = torch.sigmoid(self.lg)
        s = torch.arange(n, device=st.device)
        nxt = self.step(s.unsqueeze(1), torch.arange(6, device=st.device))
        v = torch.zeros_like(self.rew)
        for _ in range(self.sweeps):
            q = self.rew[nxt] - self.cost + g * v[nxt]
            v = q.amax(1)
        pol = q.argmax(1)
        tie = (q >= v.unsqueeze(1) - 1e-12).sum(1)
        s2 = self.step(st, ac)
        a2 = torch.cat([ac[:, 1:], pol[s2[:, -1:]]], 1)
        pi = torch.softmax(q * 2, 1)
        exp_v = (pi * q).sum(1)
        r = self.rew[s2].detach() + x
        td = r + g * (0.5 * q[s2, a2] + 0.5 * exp_v[s2]).detach() - q[st, ac]
        hub = torch.where(td.abs() < 1, 0.5 * td.square(), td.abs() - 0.5)
        key = st * 6 + ac
        tot = torch.zeros(n * 6, device=x.device, dtype=x.dtype).scatter_add(0, key.flatten(), td.flatten())
        cnt = torch.zeros(n * 6, dtype=torch.long, device=x.device).index_add(
            0, key.flatten(), torch.ones_like(key.flatten()))
        upd = (q.flatten() + 0.1 * tot / cnt.clamp(min=1)).view(n, 6)
        greedy = (ac == pol[st]).sum(1) * 100 // ac.shape[1]
        par = (s2 - st).abs() % 2 == (ac % 2)
        hm = torch.where(par, hub, 0).sum(1) / par.sum(1).clamp(min=1)
        return v, upd, hm, td, greedy, tie, cnt, torch.where(st > s2, s2 - st, (s2 - st) // 4)


def get_inputs():
    n = 23 * 17 * 19
    return [torch.randint(0, n, (61, 4099)), torch.randint(0, 6, (61, 4099)), torch.randn(61, 4099) * 0.3]


def get_init_inputs():
    return [(23, 17, 19), 6]

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    # 2D reaction diffusion + wave equation, all with slice assignment like the numpy version had
    def __init__(self, n=48, steps=8):
        super(Model, self).__init__()
        self.n = n
        self.steps = steps
        self.Du = nn.Parameter(torch.tensor(0.16))
        self.Dv = nn.Parameter(torch.tensor(0.08))
        self.feed = nn.Parameter(torch.tensor(0.035))
        self.kill = nn.Parameter(torch.tensor(0.065))
        self.c2 = nn.Parameter(0.1 + 0.1 * torch.rand(n, n))
        k = torch.tensor([[0.05, 0.2, 0.05], [0.2, -1.0, 0.2], [0.05, 0.2, 0.05]])
        self.register_buffer("lap_k", k[None, None])
        self.register_buffer("time", torch.zeros(1))

    def lap_roll(self, z):
        return (torch.roll(z, 1, 0) + torch.roll(z, -1, 0) + torch.roll(z, 1, 1)
                + torch.roll(z, -1, 1) - 4 * z)

    def lap_slice(self, z):
        out = torch.zeros_like(z)
        out[1:-1, 1:-1] = z[:-2, 1:-1] + z[2:, 1:-1] + z[1:-1, :-2] + z[1:-1, 2:]
        out[1:-1, 1:-1] -= 4 * z[1:-1, 1:-1]
        return out

    def lap_conv(self, z):
        return F.conv2d(F.pad(z[None, None], (1, 1, 1, 1), mode="circular"), self.lap_k)[0, 0]

    def forward(self, seed, source):
        n = self.n
        u = torch.ones(n, n, dtype=seed.dtype, device=seed.device)
        v = torch.zeros_like(u)
        c = n // 2
        u[c - 5:c + 5, c - 5:c + 5] = 0.5
        v[c - 5:c + 5, c - 5:c + 5] = 0.25
        u = u + 0.01 * seed
        v = v + 0.01 * seed.t()
        p = source.clone()
        p_old = p * 0.98
        trace = torch.empty(self.steps, 4, dtype=seed.dtype, device=seed.device)
        for i in range(self.steps):
            uvv = u * v * v
            lu = self.lap_roll(u) if i % 2 == 0 else self.lap_conv(u)
            u = u + self.Du * lu - uvv + self.feed * (1 - u)
            v = v + self.Dv * self.lap_roll(v) + uvv - (self.feed + self.kill) * v
            # wave, leap frog, absorbing borders
            p_new = 2 * p - p_old + self.c2 * self.lap_slice(p)
            p_new[0] = p[1]
            p_new[-1, :] = p[-2, :]
            p_new[:, 0] = p_new[:, 1]
            p_new[:, -1] = 0
            p_new[c, c] += torch.sin(torch.tensor(0.3 * i, device=p.device))
            p_old, p = p, p_new
            trace[i, 0] = u.mean()
            trace[i, 1] = v.amax()
            trace[i, 2:] = torch.stack([p.norm(), (p - p_old).pow(2).sum()])
        self.time += self.steps * 0.1
        gx, gy = torch.gradient(p)
        energy = 0.5 * (gx ** 2 + gy ** 2).sum() + trace[:, 3].mean()
        div = torch.diff(gx, dim=0, prepend=gx[:1]) + torch.diff(gy, dim=1, append=gy[:, -1:])
        return u, v, p, trace, energy, div, self.time.clone()


def get_inputs():
    return [torch.randn(48, 48), torch.rand(48, 48)]


def get_init_inputs():
    return [48, 8]

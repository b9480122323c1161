import torch
import torch.nn as nn
import torch.nn.functional as F


def squash(s, dim=-1):
    n2 = (s * s).sum(dim, keepdim=True)
    return n2 / (1 + n2) * s / torch.sqrt(n2 + 1e-8)


class Model(nn.Module):
    """Primary capsules with dynamic routing; poses evolve by a fixed-step RK4 neural ODE whose
    weights come from a hypernetwork fed by the class embedding."""

    def __init__(self, in_ch, caps, pdim, ncls, odim, routes, hyper, steps):
        super().__init__()
        self.caps, self.pdim, self.odim, self.routes, self.steps = caps, pdim, odim, routes, steps
        self.conv = nn.Conv2d(in_ch, caps * pdim, 5, stride=2)
        n = caps * 5 * 5
        self.W = nn.Parameter(torch.randn(1, n, ncls, odim, pdim) * 0.1)
        self.z = nn.Parameter(torch.randn(ncls, hyper))
        self.h1 = nn.Linear(hyper, 24)
        self.h2 = nn.Linear(24, odim * odim + 2 * odim)

    def route(self, u):
        b = torch.zeros(u.shape[:3], device=u.device, dtype=u.dtype)
        for r in range(self.routes):
            c = b.softmax(dim=2)
            v = squash((c.unsqueeze(-1) * u).sum(1))
            if r < self.routes - 1:
                b = b + torch.einsum("bnco,bco->bnc", u, v)
        return v

    def forward(self, x):
        p = self.conv(x)
        B = p.size(0)
        p = p.view(B, self.caps, self.pdim, -1).permute(0, 1, 3, 2).reshape(B, -1, self.pdim)
        p = squash(p)
        u = torch.matmul(self.W, p[:, :, None, :, None]).squeeze(-1)
        v = self.route(u)
        o = self.odim
        gen = self.h2(torch.tanh(self.h1(self.z)))
        A, bias, tw = gen.split([o * o, o, o], -1)
        A = A.view(-1, o, o) / o ** 0.5

        def f(t, y):
            return torch.tanh(torch.einsum("bco,cpo->bcp", y, A) + bias + t * tw) - 0.1 * y

        dt = 1.0 / self.steps
        for i in range(self.steps):
            t = i * dt
            k1 = f(t, v)
            k2 = f(t + dt / 2, v + dt / 2 * k1)
            k3 = f(t + dt / 2, v + dt / 2 * k2)
            k4 = f(t + dt, v + dt * k3)
            v = v + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return v.norm(dim=-1), v


def get_inputs():
    return [torch.randn(5, 9, 13, 13)]


def get_init_inputs():
    return [9, 6, 7, 10, 11, 3, 12, 6]

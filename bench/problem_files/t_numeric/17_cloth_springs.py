import torch
import torch.nn as nn


class Model(nn.Module):
    """Mass-spring cloth: structural, shear and bend springs, damping along the
    spring, wind drag from face normals, symplectic Euler, two pinned corners."""

    def __init__(self, rows, cols, k, damping, dt, steps, gravity):
        super().__init__()
        self.k, self.kd, self.dt, self.steps = k, damping, dt, steps
        idx = torch.arange(rows * cols).view(rows, cols)
        pairs = [
            (idx[:, :-1], idx[:, 1:]), (idx[:-1], idx[1:]),
            (idx[:-1, :-1], idx[1:, 1:]), (idx[:-1, 1:], idx[1:, :-1]),
            (idx[:, :-2], idx[:, 2:]), (idx[:-2], idx[2:]),
        ]
        self.register_buffer("i", torch.cat([a.reshape(-1) for a, _ in pairs]))
        self.register_buffer("j", torch.cat([b.reshape(-1) for _, b in pairs]))
        rest = torch.cat([torch.full((a.numel(),), l) for (a, _), l in
                          zip(pairs, (1.0, 1.0, 2 ** 0.5, 2 ** 0.5, 2.0, 2.0))])
        self.register_buffer("rest", rest)
        f1 = torch.stack((idx[:-1, :-1], idx[1:, :-1], idx[:-1, 1:]), -1).reshape(-1, 3)
        f2 = torch.stack((idx[1:, 1:], idx[:-1, 1:], idx[1:, :-1]), -1).reshape(-1, 3)
        self.register_buffer("faces", torch.cat((f1, f2)))
        free = torch.ones(rows * cols, 1)
        free[0] = 0.0
        free[cols - 1] = 0.0
        self.register_buffer("free", free)
        self.register_buffer("g", torch.tensor([0.0, -gravity, 0.0]))

    def forces(self, x, v, wind):
        d = x[self.j] - x[self.i]
        length = d.norm(dim=-1, keepdim=True).clamp(min=1e-4)
        n = d / length
        rel = ((v[self.j] - v[self.i]) * n).sum(-1, keepdim=True)
        f = (self.k * (length - self.rest.unsqueeze(-1)) + self.kd * rel) * n
        out = self.g.expand_as(x).clone()
        out.index_add_(0, self.i, f)
        out.index_add_(0, self.j, f, alpha=-1)
        tri = x[self.faces]
        area_n = 0.5 * torch.cross(tri[:, 1] - tri[:, 0], tri[:, 2] - tri[:, 0], dim=-1)
        vrel = wind - v[self.faces].mean(1)
        drag = (vrel * area_n).sum(-1, keepdim=True) * area_n / 3.0
        for c in range(3):
            out.index_add_(0, self.faces[:, c], 0.2 * drag)
        return out

    def forward(self, x, v, wind):
        for _ in range(self.steps):
            v = (v + self.dt * self.forces(x, v, wind)) * self.free
            x = x + self.dt * v
        stretch = (x[self.j] - x[self.i]).norm(dim=-1) / self.rest
        return x, v, stretch


def get_inputs():
    r, c = 26, 31
    yy, xx = torch.meshgrid(torch.arange(r), torch.arange(c), indexing="ij")
    x = torch.stack((xx, -yy, torch.zeros_like(xx)), -1).reshape(-1, 3).float()
    x = x + 0.05 * torch.randn_like(x)
    return [x, 0.1 * torch.randn_like(x), torch.tensor([0.3, 0.1, 1.2])]


def get_init_inputs():
    return [26, 31, 40.0, 0.5, 0.01, 5, 1.0]

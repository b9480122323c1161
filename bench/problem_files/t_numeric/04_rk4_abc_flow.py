import torch
import torch.nn as nn


class Model(nn.Module):
    """Advects tracer particles in the ABC flow with classical RK4, and
    transports a passive tangent vector (Lagrangian deformation) along."""

    def __init__(self, a, b, c, dt, steps):
        super().__init__()
        self.register_buffer("abc", torch.tensor([a, b, c]))
        self.dt = dt
        self.steps = steps

    def field(self, p, v):
        a, b, c = self.abc.unbind(0)
        x, y, z = p.unbind(-1)
        vx, vy, vz = v.unbind(-1)
        sx, cx = torch.sin(x), torch.cos(x)
        sy, cy = torch.sin(y), torch.cos(y)
        sz, cz = torch.sin(z), torch.cos(z)
        dp = torch.stack((a * sz + c * cy, b * sx + a * cz, c * sy + b * cx), dim=-1)
        dv = torch.stack((
            a * cz * vz - c * sy * vy,
            b * cx * vx - a * sz * vz,
            c * cy * vy - b * sx * vx,
        ), dim=-1)
        return dp, dv

    def forward(self, pos, tangent):
        h = self.dt
        for _ in range(self.steps):
            k1, l1 = self.field(pos, tangent)
            k2, l2 = self.field(pos + 0.5 * h * k1, tangent + 0.5 * h * l1)
            k3, l3 = self.field(pos + 0.5 * h * k2, tangent + 0.5 * h * l2)
            k4, l4 = self.field(pos + h * k3, tangent + h * l3)
            pos = pos + (h / 6.0) * (k1 + 2 * k2 + 2 * k3 + k4)
            tangent = tangent + (h / 6.0) * (l1 + 2 * l2 + 2 * l3 + l4)
        stretch = torch.log(tangent.norm(dim=-1) + 1e-6)
        return pos, stretch / (h * self.steps)


def get_inputs():
    pos = 6.2831853 * torch.rand(5003, 3)
    tangent = torch.randn(5003, 3)
    tangent = tangent / tangent.norm(dim=-1, keepdim=True)
    return [pos, tangent]


def get_init_inputs():
    return [1.0, 0.8164966, 0.5773503, 0.05, 5]

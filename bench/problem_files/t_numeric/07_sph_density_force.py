import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """SPH: cubic spline density, Tait pressure, symmetric pressure force and XSPH viscosity."""

    def __init__(self, h, rho0, stiffness, gamma, mu):
        super().__init__()
        self.h, self.rho0, self.k, self.gamma, self.mu = h, rho0, stiffness, gamma, mu
        self.norm = 10.0 / (7.0 * math.pi * h * h)

    def kernel(self, q):
        w = torch.where(q < 1.0, 1.0 - 1.5 * q ** 2 + 0.75 * q ** 3, 0.25 * (2.0 - q).clamp(min=0.0) ** 3)
        return self.norm * w

    def dkernel_over_r(self, q):
        # (dW/dr)/r, finite for q -> 0
        near = -3.0 + 2.25 * q
        far = -0.75 * (2.0 - q).clamp(min=0.0) ** 2 / q.clamp(min=1e-3)
        return self.norm * torch.where(q < 1.0, near, far) / (self.h * self.h)

    def forward(self, x, v, m):
        diff = x[:, None] - x[None, :]
        r = torch.sqrt(diff.square().sum(-1) + 1e-12)
        q = r / self.h
        W = self.kernel(q)
        rho = W @ m
        p = self.k * ((rho / self.rho0) ** self.gamma - 1.0)
        term = p / rho ** 2
        gw = self.dkernel_over_r(q)
        coef = -(m[None, :] * (term[:, None] + term[None, :])) * gw
        acc_p = (coef[..., None] * diff).sum(1)
        visc = (m / rho)[None, :] * W
        acc_v = self.mu * (visc @ v - visc.sum(1, keepdim=True) * v)
        cfl = (v.norm(dim=-1) + torch.sqrt(self.gamma * p.clamp(min=0.0) / rho + 1e-4)).max()
        return rho, acc_p + acc_v, cfl


def get_inputs():
    nx, ny = 21, 19
    gx, gy = torch.meshgrid(torch.arange(nx), torch.arange(ny), indexing="ij")
    x = torch.stack((gx, gy), -1).reshape(-1, 2).float() * 0.1
    x = x + 0.02 * torch.rand_like(x)
    v = 0.3 * torch.randn_like(x)
    m = 0.01 * (0.9 + 0.2 * torch.rand(x.shape[0]))
    return [x, v, m]


def get_init_inputs():
    return [0.13, 1.0, 2.0, 3.0, 0.05]

import torch
import torch.nn as nn


class Model(nn.Module):
    """Explicit finite-volume heat conduction with a variable conductivity field.

    Face conductivities are harmonic means; the left/right walls are held fixed
    (Dirichlet), top/bottom walls are insulated (Neumann).
    """

    def __init__(self, dt, h, steps, t_left, t_right):
        super().__init__()
        self.dt = dt
        self.h = h
        self.steps = steps
        self.t_left = t_left
        self.t_right = t_right

    def forward(self, T, k, q):
        # T, k, q: (B, H, W)
        kx = 2.0 * k[:, :, 1:] * k[:, :, :-1] / (k[:, :, 1:] + k[:, :, :-1])
        ky = 2.0 * k[:, 1:, :] * k[:, :-1, :] / (k[:, 1:, :] + k[:, :-1, :])
        r = self.dt / (self.h * self.h)
        T = T.clone()
        T[:, :, 0] = self.t_left
        T[:, :, -1] = self.t_right
        for _ in range(self.steps):
            fx = kx * (T[:, :, 1:] - T[:, :, :-1])
            fy = ky * (T[:, 1:, :] - T[:, :-1, :])
            dT = torch.zeros_like(T)
            dT[:, :, :-1] += fx
            dT[:, :, 1:] -= fx
            dT[:, :-1, :] += fy
            dT[:, 1:, :] -= fy
            T = T + r * dT + self.dt * q
            T[:, :, 0] = self.t_left
            T[:, :, -1] = self.t_right
        flux_out = (kx[:, :, -1] * (T[:, :, -1] - T[:, :, -2])).sum(dim=1) / self.h
        return T, flux_out


def get_inputs():
    B, H, W = 3, 257, 301
    T = 1.0 + 0.1 * torch.randn(B, H, W)
    k = 0.5 + torch.rand(B, H, W)
    q = 0.2 * torch.rand(B, H, W)
    return [T, k, q]


def get_init_inputs():
    return [0.1, 1.0, 8, 1.5, 0.5]

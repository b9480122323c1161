import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """3-D acoustic wave propagation: 4th order in space, leapfrog in time,
    absorbing sponge near the faces, one point source with a Ricker wavelet."""

    def __init__(self, shape, dt, steps, sponge_width, peak_freq):
        super().__init__()
        self.dt = dt
        self.steps = steps
        self.peak_freq = peak_freq
        damp = torch.ones(*shape)
        for axis, n in enumerate(shape):
            i = torch.arange(n, dtype=torch.float32)
            dist = torch.minimum(i, n - 1 - i)
            g = torch.exp(-((0.3 * (sponge_width - dist).clamp(min=0) / sponge_width) ** 2))
            view = [1, 1, 1]
            view[axis] = n
            damp = damp * g.view(view)
        self.register_buffer("damp", damp)
        self.src = tuple(n // 2 for n in shape)

    @staticmethod
    def laplacian(u):
        p = F.pad(u, (2, 2, 2, 2, 2, 2))
        c = p[:, 2:-2, 2:-2, 2:-2]
        out = -7.5 * c
        out = out + (4.0 / 3.0) * (
            p[:, 1:-3, 2:-2, 2:-2] + p[:, 3:-1, 2:-2, 2:-2]
            + p[:, 2:-2, 1:-3, 2:-2] + p[:, 2:-2, 3:-1, 2:-2]
            + p[:, 2:-2, 2:-2, 1:-3] + p[:, 2:-2, 2:-2, 3:-1]
        )
        out = out - (1.0 / 12.0) * (
            p[:, :-4, 2:-2, 2:-2] + p[:, 4:, 2:-2, 2:-2]
            + p[:, 2:-2, :-4, 2:-2] + p[:, 2:-2, 4:, 2:-2]
            + p[:, 2:-2, 2:-2, :-4] + p[:, 2:-2, 2:-2, 4:]
        )
        return out

    def forward(self, u, u_prev, vel):
        c2dt2 = (vel * self.dt) ** 2
        z, y, x = self.src
        traces = []
        for n in range(self.steps):
            u_next = 2.0 * u - u_prev + c2dt2 * self.laplacian(u)
            a = (3.14159265 * self.peak_freq * (n * self.dt - 0.5)) ** 2
            amp = (1.0 - 2.0 * a) * 2.718281828 ** (-a)
            u_next[:, z, y, x] += amp * c2dt2[:, z, y, x]
            u_prev = u * self.damp
            u = u_next * self.damp
            traces.append(u[:, 4, :, x])
        return u, torch.stack(traces, dim=1)


def get_inputs():
    B, D, H, W = 1, 58, 61, 77
    u = 0.1 * torch.randn(B, D, H, W)
    u_prev = u + 0.01 * torch.randn(B, D, H, W)
    vel = 1.0 + 0.8 * torch.rand(B, D, H, W)
    return [u, u_prev, vel]


def get_init_inputs():
    return [(58, 61, 77), 0.2, 4, 6, 1.2]

import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Rational sample-rate conversion with a Kaiser-windowed sinc in polyphase
    form, and a fractional (cubic Hermite) read-out at arbitrary times."""

    def __init__(self, up, down, half_len, beta):
        super().__init__()
        self.up, self.down, self.half = up, down, half_len
        n = 2 * half_len * up + 1
        t = (torch.arange(n, dtype=torch.float64) - half_len * up) / up
        cut = min(1.0, up / down) * 0.95
        h = torch.special.sinc(t * cut) * cut * torch.kaiser_window(n, periodic=False, beta=beta, dtype=torch.float64)
        h = h / h.sum() * up
        h = F.pad(h, (0, up - 1))                    # multiple of `up`
        phases = h.view(-1, up).t().flip(1).float()  # (up, taps)
        self.register_buffer("phases", phases.unsqueeze(1).contiguous())

    def resample(self, x):
        B, C, T = x.shape
        taps = self.phases.shape[-1]
        x = F.pad(x.reshape(B * C, 1, T), (self.half, taps - 1 - self.half), mode="reflect")
        y = F.conv1d(x, self.phases)                 # (BC, up, T)
        y = y.transpose(1, 2).reshape(B, C, -1)
        return y[..., :: self.down]

    def hermite(self, y, pos):
        n = y.shape[-1]
        i = pos.floor().long().clamp(1, n - 3)
        f = pos - i.to(pos.dtype)
        idx = torch.stack((i - 1, i, i + 1, i + 2), dim=0)       # (4, M)
        p0, p1, p2, p3 = y[..., idx].unbind(-2)
        m1, m2 = 0.5 * (p2 - p0), 0.5 * (p3 - p1)
        f2, f3 = f * f, f * f * f
        return ((2 * f3 - 3 * f2 + 1) * p1 + (f3 - 2 * f2 + f) * m1
                + (-2 * f3 + 3 * f2) * p2 + (f3 - f2) * m2)

    def forward(self, x, pos):
        y = self.resample(x)
        return y, self.hermite(y, pos)


def get_inputs():
    x = torch.randn(3, 2, 6001)
    pos = 2.0 + 8900.0 * torch.rand(5000)
    return [x, pos]


def get_init_inputs():
    return [3, 2, 12, 8.0]

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Anti-aliased snake (2x up, x + sin^2, 2x down) with a weight-normed dilated conv1d and residual."""

    def __init__(self, ch, taps, dil):
        super().__init__()
        self.taps, self.dil = taps, dil
        t = torch.arange(taps, dtype=torch.float32) - (taps - 1) / 2
        k = torch.sinc(t * 0.5) * torch.hann_window(taps + 2, periodic=False)[1:-1]
        self.register_buffer("fir", (k / k.sum()).view(1, 1, -1))
        self.la = nn.Parameter(torch.randn(ch, 1) * 0.2)
        self.lb = nn.Parameter(torch.randn(ch, 1) * 0.2)
        self.v = nn.Parameter(torch.randn(ch, ch, 3))
        self.g = nn.Parameter(torch.ones(ch, 1, 1))
        self.b = nn.Parameter(torch.zeros(ch))

    def forward(self, x):
        c, t = x.shape[1], x.shape[2]
        k = self.fir.expand(c, 1, -1)
        p = self.taps // 2
        u = F.pad(x, (p, p), mode="replicate")
        u = 2.0 * F.conv_transpose1d(u, k, stride=2, groups=c)
        off = (u.shape[-1] - 2 * t) // 2
        u = u[..., off:off + 2 * t]
        u = u + torch.sin(u * self.la.exp()).square() / (self.lb.exp() + 1e-9)
        u = F.pad(u, (p - 1, p), mode="replicate")
        y = F.conv1d(u, k, stride=2, groups=c)[..., :t]
        w = self.g * self.v / self.v.norm(dim=(1, 2), keepdim=True)
        return x + F.conv1d(y, w, self.b, padding=self.dil, dilation=self.dil)


def get_inputs():
    return [torch.randn(8, 178, 8191)]


def get_init_inputs():
    return [178, 12, 5]

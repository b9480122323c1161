import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Grey, separable gaussian with reflect padding, sobel pair, soft orientation, local-maximum suppression."""

    def __init__(self, sigma, radius, sharp):
        super().__init__()
        t = torch.arange(-radius, radius + 1).float()
        g = torch.exp(-0.5 * (t / sigma) ** 2)
        g = g / g.sum()
        self.radius = radius
        self.sharp = sharp
        self.register_buffer("gx", g.view(1, 1, 1, -1))
        self.register_buffer("gy", g.view(1, 1, -1, 1))
        s = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
        self.register_buffer("sobel", torch.stack([s, s.t()]).unsqueeze(1))
        self.mix = nn.Parameter(torch.tensor([0.299, 0.587, 0.114]))
        self.threshold = nn.Parameter(torch.tensor(0.4))

    def forward(self, img):
        grey = (img * self.mix.view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
        r = self.radius
        y = F.conv2d(F.pad(grey, (r, r, 0, 0), mode="reflect"), self.gx)
        y = F.conv2d(F.pad(y, (0, 0, r, r), mode="reflect"), self.gy)
        d = F.conv2d(F.pad(y, (1, 1, 1, 1), mode="replicate"), self.sobel)
        dx, dy = d[:, :1], d[:, 1:]
        mag = torch.sqrt(dx * dx + dy * dy + 1e-8)
        angle = torch.atan2(dy, dx + 1e-6)
        peak = F.max_pool2d(mag, 3, stride=1, padding=1)
        thin = torch.where(mag >= 0.999 * peak, mag, 0.2 * mag)
        edge = torch.sigmoid((thin - self.threshold) * self.sharp)
        return torch.cat([edge, edge * torch.cos(2.0 * angle), edge * torch.sin(2.0 * angle)], dim=1)


batch = 24


def get_inputs():
    return [torch.rand(batch, 3, 540, 540)]


def get_init_inputs():
    return [1.4, 3, 8.0]

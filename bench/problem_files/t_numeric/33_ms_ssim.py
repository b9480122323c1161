import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Multi-scale SSIM with a separable Gaussian window; returns score and the SSIM map."""

    def __init__(self, win, sigma, weights, data_range):
        super().__init__()
        t = torch.arange(win).float() - (win - 1) / 2
        g = torch.exp(-0.5 * (t / sigma) ** 2)
        self.register_buffer("g", g / g.sum())
        self.register_buffer("weights", torch.tensor(weights))
        self.c1 = (0.01 * data_range) ** 2
        self.c2 = (0.03 * data_range) ** 2

    def filt(self, x):
        C, n = x.shape[1], self.g.numel()
        x = F.conv2d(x, self.g.view(1, 1, 1, n).expand(C, 1, 1, n), groups=C)
        return F.conv2d(x, self.g.view(1, 1, n, 1).expand(C, 1, n, 1), groups=C)

    def stats(self, x, y):
        C = x.shape[1]
        f = self.filt(torch.cat((x, y, x * x, y * y, x * y), dim=1))
        mx, my, xx, yy, xy = f.chunk(5, dim=1)
        sxx, syy, sxy = xx - mx * mx, yy - my * my, xy - mx * my
        cs = (2 * sxy + self.c2) / (sxx + syy + self.c2)
        lum = (2 * mx * my + self.c1) / (mx * mx + my * my + self.c1)
        return lum * cs, cs

    def forward(self, x, y):
        vals = []
        first = None
        L = self.weights.numel()
        for i in range(L):
            full, cs = self.stats(x, y)
            if first is None:
                first = full
            v = full if i == L - 1 else cs
            vals.append(torch.relu(v.mean(dim=(2, 3))))
            if i < L - 1:
                pad = [x.shape[-1] % 2, x.shape[-2] % 2]
                x = F.avg_pool2d(x, 2, padding=(pad[1], pad[0]), count_include_pad=False)
                y = F.avg_pool2d(y, 2, padding=(pad[1], pad[0]), count_include_pad=False)
        vals = torch.stack(vals, dim=0)
        score = torch.prod(vals ** self.weights.view(-1, 1, 1), dim=0).mean(1)
        return score, first


def get_inputs():
    x = F.interpolate(torch.rand(2, 3, 20, 22), size=(92, 103), mode="bilinear", align_corners=False)
    x = (0.7 * x + 0.3 * torch.rand_like(x))
    return [x, (x + 0.05 * torch.randn_like(x)).clamp(0, 1)]


def get_init_inputs():
    return [11, 1.5, [0.25, 0.35, 0.4], 1.0]

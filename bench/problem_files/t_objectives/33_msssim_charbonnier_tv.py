import torch
import torch.nn as nn
import torch.nn.functional as F


def gaussian_window(size, sigma, channels):
    coords = torch.arange(size, dtype=torch.float) - size // 2
    g = torch.exp(-(coords ** 2) / (2 * sigma ** 2))
    g = g / g.sum()
    return g.view(1, 1, 1, size).repeat(channels, 1, 1, 1)


class Model(nn.Module):
    """Image restoration loss: MS-SSIM with separable windows, Charbonnier, Laplacian edge and total variation."""

    def __init__(self, channels, win_size, sigma, weights):
        super().__init__()
        self.c = channels
        self.register_buffer("win", gaussian_window(win_size, sigma, channels))
        self.register_buffer("weights", torch.tensor(weights))
        k = torch.tensor([[0.05, 0.25, 0.4, 0.25, 0.05]])
        self.register_buffer("lap", (k.t() @ k).expand(channels, 1, 5, 5).clone())

    def blur(self, x):
        x = F.conv2d(x, self.win, groups=self.c)
        return F.conv2d(x, self.win.transpose(2, 3), groups=self.c)

    def ssim(self, x, y, c1=0.01 ** 2, c2=0.03 ** 2):
        mx, my = self.blur(x), self.blur(y)
        mx2, my2, mxy = mx * mx, my * my, mx * my
        sx = self.blur(x * x) - mx2
        sy = self.blur(y * y) - my2
        sxy = self.blur(x * y) - mxy
        cs = (2 * sxy + c2) / (sx + sy + c2)
        l = (2 * mxy + c1) / (mx2 + my2 + c1)
        return (l * cs).flatten(2).mean(-1), cs.flatten(2).mean(-1)

    def ms_ssim(self, x, y):
        mcs = []
        levels = self.weights.numel()
        for i in range(levels):
            ss, cs = self.ssim(x, y)
            if i < levels - 1:
                mcs.append(torch.relu(cs) + 1e-4)
                pad = [s % 2 for s in x.shape[2:]]
                x = F.avg_pool2d(x, 2, padding=pad)
                y = F.avg_pool2d(y, 2, padding=pad)
        stack = torch.stack(mcs + [torch.relu(ss) + 1e-4], dim=0)
        return torch.prod(stack ** self.weights.view(-1, 1, 1), dim=0).mean()

    def edges(self, x):
        return x - F.conv2d(F.pad(x, (2, 2, 2, 2), mode="replicate"), self.lap, groups=self.c)

    @staticmethod
    def charbonnier(a, b, eps=1e-3):
        return torch.sqrt((a - b).pow(2) + eps ** 2).mean()

    def forward(self, pred, target):
        p = torch.sigmoid(pred)
        tv = (p[:, :, 1:] - p[:, :, :-1]).abs().mean() + (p[..., 1:] - p[..., :-1]).abs().mean()
        return (
            self.charbonnier(p, target)
            + 0.05 * self.charbonnier(self.edges(p), self.edges(target))
            + 0.2 * (1 - self.ms_ssim(p, target))
            + 0.01 * tv
        )


def get_inputs():
    t = torch.rand(2, 3, 83, 94)
    logit = torch.log((t * 0.9 + 0.05) / (0.95 - 0.9 * t))
    return [logit + 0.5 * torch.randn_like(t), t]


def get_init_inputs():
    return [3, 9, 1.5, [0.2, 0.4, 0.4]]

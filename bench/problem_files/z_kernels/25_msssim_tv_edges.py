import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Three-scale SSIM with separable Gaussian windows, total variation and Charbonnier on Sobel edges."""

    def __init__(self, win, sigma):
        super().__init__()
        t = torch.arange(win, dtype=torch.float32) - win // 2
        g = torch.exp(-t * t / (2 * sigma * sigma))
        g = g / g.sum()
        self.register_buffer("gx", g.view(1, 1, 1, -1))
        self.register_buffer("gy", g.view(1, 1, -1, 1))
        s = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]]) / 4
        self.register_buffer("sob", torch.stack([s, s.t()]).unsqueeze(1))
        self.w = nn.Parameter(torch.zeros(3))

    def _blur(self, x):
        c = x.shape[1]
        x = F.conv2d(x, self.gx.expand(c, 1, 1, -1), groups=c)
        return F.conv2d(x, self.gy.expand(c, 1, -1, 1), groups=c)

    def forward(self, x, y):
        gray = (x - y).mean(1, keepdim=True)
        edge = torch.sqrt(F.conv2d(gray, self.sob).square().sum(1) + 1e-6).mean(dim=(1, 2))
        tv = (x[:, :, 1:] - x[:, :, :-1]).abs().mean(dim=(1, 2, 3)) + \
             (x[..., 1:] - x[..., :-1]).abs().mean(dim=(1, 2, 3))
        wt, tot = torch.softmax(self.w, 0), 0.0
        for i in range(3):
            m = self._blur(torch.cat([x, y, x * x, y * y, x * y], 1))
            mx, my, xx, yy, xy = m.chunk(5, 1)
            cs = (2 * (xy - mx * my) + 9e-4) / (xx - mx * mx + yy - my * my + 9e-4)
            l = (2 * mx * my + 1e-4) / (mx * mx + my * my + 1e-4)
            tot = tot + wt[i] * (l * cs).mean(dim=(1, 2, 3))
            if i < 2:
                x, y = F.avg_pool2d(x, 2, ceil_mode=True), F.avg_pool2d(y, 2, ceil_mode=True)
        return (1 - tot) + 0.1 * tv + edge


def get_inputs():
    return [torch.rand(6, 3, 383, 509), torch.rand(6, 383, 509, 3).permute(0, 3, 1, 2)]


def get_init_inputs():
    return [11, 1.5]

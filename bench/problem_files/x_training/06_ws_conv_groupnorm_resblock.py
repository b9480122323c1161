import torch
import torch.nn as nn
import torch.nn.functional as F

B, CI, CO, S, G, E = 16, 160, 240, 56, 8, 512


class WSConv2d(nn.Conv2d):
    def forward(self, x):
        w = self.weight
        mean = w.mean(dim=(1, 2, 3), keepdim=True)
        var = w.var(dim=(1, 2, 3), unbiased=False, keepdim=True)
        fan_in = w.shape[1] * w.shape[2] * w.shape[3]
        w = (w - mean) * torch.rsqrt(var * fan_in + 1e-4)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Model(nn.Module):
    """Diffusion U-Net residual block with weight standardised convolutions and a
    scale/shift from the time embedding after the first group norm."""

    def __init__(self, cin, cout, groups, emb):
        super().__init__()
        self.conv1 = WSConv2d(cin, cout, 3, padding=1)
        self.norm1 = nn.GroupNorm(groups, cout)
        self.conv2 = WSConv2d(cout, cout, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, cout)
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(emb, cout * 2))
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x, temb):
        ss = self.time(temb)[:, :, None, None]
        scale, shift = ss.chunk(2, dim=1)
        h = self.norm1(self.conv1(x))
        h = F.silu(h * (scale + 1) + shift)
        h = F.silu(self.norm2(self.conv2(h)))
        return h + self.skip(x)


def get_inputs():
    return [torch.randn(B, CI, S, S), torch.randn(B, E)]


def get_init_inputs():
    return [CI, CO, G, E]

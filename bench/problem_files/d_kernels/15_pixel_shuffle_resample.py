import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Pixel unshuffle by 3, grouped 1x1 mix, pixel shuffle by 2, then bicubic, nearest-exact, bilinear and area resampling with residuals."""

    def __init__(self, channels):
        super().__init__()
        self.mix = nn.Conv2d(channels * 9, channels * 4, 1, groups=channels)
        self.alpha = nn.Parameter(torch.full((channels, 1, 1), 0.3))

    def forward(self, x):
        h, w = x.shape[-2:]
        y = F.pixel_shuffle(F.gelu(self.mix(F.pixel_unshuffle(x, 3))), 2)
        up = F.interpolate(y, size=(h, w), mode="bicubic", align_corners=False)
        gate = F.interpolate(x.mean(dim=1, keepdim=True), scale_factor=(0.37, 0.61), mode="nearest-exact")
        gate = F.interpolate(torch.sigmoid(gate), size=(h, w), mode="bilinear", align_corners=True)
        low = F.interpolate(x - up, size=(29, 17), mode="area")
        low = F.interpolate(low, size=(h, w), mode="nearest")
        return up * gate + self.alpha * low


def get_inputs():
    return [torch.randn(5, 18, 93, 75)]


def get_init_inputs():
    return [18]

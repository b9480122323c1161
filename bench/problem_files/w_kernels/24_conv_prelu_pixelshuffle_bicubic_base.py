import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Super-resolution tail: conv, PReLU, pixel shuffle by 3, bicubic upsampled base, clamp, local contrast."""

    def __init__(self, in_ch, factor):
        super().__init__()
        self.factor = factor
        self.conv = nn.Conv2d(in_ch, 3 * factor * factor, 3, padding=1)
        self.prelu = nn.PReLU(3 * factor * factor)

    def forward(self, feat, base):
        detail = F.pixel_shuffle(self.prelu(self.conv(feat)), self.factor)
        up = F.interpolate(base, scale_factor=self.factor, mode="bicubic", align_corners=False)
        img = (up + 0.2 * detail).clamp(-0.1, 1.1)
        smooth = F.avg_pool2d(img, 3, stride=1, padding=1)
        return img + 0.5 * (img - smooth)


batch = 16
in_ch = 64


def get_inputs():
    return [torch.randn(batch, in_ch, 150, 150), torch.rand(batch, 3, 150, 150)]


def get_init_inputs():
    return [in_ch, 3]

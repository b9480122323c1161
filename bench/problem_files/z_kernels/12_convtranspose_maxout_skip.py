import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Grouped transposed convolution with output padding, hardswish, maxout, pixel norm, bicubic skip."""

    def __init__(self, cin, cout, groups, pieces):
        super().__init__()
        self.p = pieces
        self.up = nn.ConvTranspose2d(cin, cout, (5, 4), stride=(3, 2), padding=(2, 1),
                                     output_padding=(1, 1), groups=groups)
        self.gain = nn.Parameter(torch.ones(cout // pieces, 1, 1))
        self.skip = nn.Conv2d(cin, cout // pieces, 1, bias=False)

    def forward(self, x):
        y = F.hardswish(self.up(x))
        b, c, h, w = y.shape
        y = y.reshape(b, c // self.p, self.p, h, w).amax(dim=2)
        y = y * torch.rsqrt(y.square().mean(dim=1, keepdim=True) + 1e-6) * self.gain
        s = F.interpolate(self.skip(x), size=(h, w), mode="bicubic", align_corners=False)
        return F.hardtanh(y + s, -3.0, 3.0)


def get_inputs():
    return [torch.randn(6, 45, 97, 113).to(memory_format=torch.channels_last)]


def get_init_inputs():
    return [45, 60, 5, 3]

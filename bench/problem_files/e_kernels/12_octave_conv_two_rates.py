import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Octave convolution: a fine and a coarse feature map exchange information by pooling and nearest upsampling, then each has its own group norm and SiLU."""

    def __init__(self, fine, coarse, groups):
        super().__init__()
        self.ff = nn.Conv2d(fine, fine, 3, padding=1, bias=False)
        self.fc = nn.Conv2d(fine, coarse, 3, padding=1, bias=False)
        self.cf = nn.Conv2d(coarse, fine, 1, bias=False)
        self.cc = nn.Conv2d(coarse, coarse, 3, padding=1, bias=False)
        self.norm_f = nn.GroupNorm(groups, fine)
        self.norm_c = nn.GroupNorm(groups, coarse)
        self.mix = nn.Parameter(torch.tensor([0.2, -0.4]))

    def forward(self, fine, coarse):
        a = torch.sigmoid(self.mix)
        f = self.ff(fine) + F.interpolate(self.cf(coarse), scale_factor=2, mode="nearest")
        c = self.cc(coarse) + self.fc(F.avg_pool2d(fine, 2))
        f = F.silu(self.norm_f(f)) * a[0] + fine
        c = F.silu(self.norm_c(c)) * a[1] + coarse
        return f, c, F.max_pool2d(f, 2).mean(dim=1) - c.mean(dim=1)


def get_inputs():
    return [torch.randn(4, 32, 86, 102), torch.randn(4, 12, 43, 51)]


def get_init_inputs():
    return [32, 12, 4]

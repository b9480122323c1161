import torch
import torch.nn as nn
import torch.nn.functional as F

B, C, EXP, S, SE = 32, 36, 6, 112, 9


class Model(nn.Module):
    """Inverted bottleneck (expand, depthwise 5x5, squeeze-excite, project) with batch
    norm in training mode, running buffers and a residual."""

    def __init__(self, ch, expansion, se_ch):
        super().__init__()
        mid = ch * expansion
        self.expand = nn.Conv2d(ch, mid, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(mid, momentum=0.01, eps=1e-3)
        self.dw = nn.Conv2d(mid, mid, 5, padding=2, groups=mid, bias=False)
        self.bn2 = nn.BatchNorm2d(mid, momentum=0.01, eps=1e-3)
        self.se_reduce = nn.Conv2d(mid, se_ch, 1)
        self.se_expand = nn.Conv2d(se_ch, mid, 1)
        self.project = nn.Conv2d(mid, ch, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(ch, momentum=0.01, eps=1e-3)

    def forward(self, x):
        h = F.silu(self.bn1(self.expand(x)))
        h = F.silu(self.bn2(self.dw(h)))
        s = F.adaptive_avg_pool2d(h, 1)
        s = self.se_expand(F.silu(self.se_reduce(s)))
        h = h * torch.sigmoid(s)
        return x + self.bn3(self.project(h))


def get_inputs():
    return [torch.randn(B, C, S, S)]


def get_init_inputs():
    return [C, EXP, SE]

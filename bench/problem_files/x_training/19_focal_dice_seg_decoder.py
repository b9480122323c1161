import torch
import torch.nn as nn
import torch.nn.functional as F

B, C1, C2, MID, K, S = 16, 60, 236, 96, 20, 28


class SepConv(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.dw = nn.Conv2d(cin, cin, 3, padding=dilation, dilation=dilation, groups=cin, bias=False)
        self.pw = nn.Conv2d(cin, cout, 1, bias=False)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return F.relu(self.bn(self.pw(self.dw(x))))


class Model(nn.Module):
    """Segmentation decoder: coarse features upsampled and concatenated with a lateral
    branch, separable convolutions, then sigmoid focal loss plus soft dice."""

    def __init__(self, low_ch, high_ch, mid, classes, alpha, gamma):
        super().__init__()
        self.lateral = nn.Conv2d(low_ch, mid // 2, 1)
        self.aspp = nn.ModuleList([SepConv(high_ch, mid, r) for r in (1, 2, 3)])
        self.merge = SepConv(3 * mid + mid // 2, mid, 1)
        self.cls = nn.Conv2d(mid, classes, 1)
        nn.init.constant_(self.cls.bias, -1.0)
        self.alpha, self.gamma = alpha, gamma

    def forward(self, low, high, target):
        y = torch.cat([m(high) for m in self.aspp], dim=1)
        y = F.interpolate(y, size=low.shape[-2:], mode="bilinear", align_corners=False)
        y = self.merge(torch.cat([self.lateral(low), y], dim=1))
        logits = self.cls(y)
        logits = F.interpolate(logits, scale_factor=2, mode="bilinear", align_corners=False)
        onehot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).to(logits.dtype)
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, onehot, reduction="none")
        pt = p * onehot + (1 - p) * (1 - onehot)
        at = self.alpha * onehot + (1 - self.alpha) * (1 - onehot)
        focal = (at * (1 - pt).pow(self.gamma) * ce).mean(dim=(2, 3)).sum(dim=1).mean()
        inter = (p * onehot).mean(dim=(2, 3))
        union = p.mean(dim=(2, 3)) + onehot.mean(dim=(2, 3))
        dice = (1 - (2 * inter + 1e-3) / (union + 1e-3)).mean()
        return focal, dice


def get_inputs():
    return [torch.randn(B, C1, 4 * S, 4 * S), torch.randn(B, C2, S, S),
            torch.randint(0, K, (B, 8 * S, 8 * S))]


def get_init_inputs():
    return [C1, C2, MID, K, 0.25, 2.0]

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Convolutional block attention: channel gate then spatial gate, in a residual block."""

    def __init__(self, ch, reduction, ksize):
        super().__init__()
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.gn1 = nn.GroupNorm(5, ch)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1)
        self.gn2 = nn.GroupNorm(5, ch)
        self.w1 = nn.Parameter(torch.randn(ch // reduction, ch) * 0.1)
        self.w2 = nn.Parameter(torch.randn(ch, ch // reduction) * 0.1)
        self.spatial = nn.Conv2d(2, 1, ksize, padding=ksize // 2, bias=False)

    def channel_gate(self, x):
        avg = x.mean(dim=(2, 3))
        mx = x.amax(dim=(2, 3))
        a = F.linear(F.relu(F.linear(avg, self.w1)), self.w2)
        m = F.linear(F.relu(F.linear(mx, self.w1)), self.w2)
        return torch.sigmoid(a + m)[:, :, None, None]

    def spatial_gate(self, x):
        pooled = torch.cat([x.max(dim=1, keepdim=True)[0], x.mean(dim=1, keepdim=True)], dim=1)
        return torch.sigmoid(self.spatial(pooled))

    def forward(self, x):
        y = F.relu(self.gn1(self.conv1(x)))
        y = self.gn2(self.conv2(y))
        y = y * self.channel_gate(y)
        y = y * self.spatial_gate(y)
        return F.relu(x + y)


def get_inputs():
    return [torch.randn(4, 40, 26, 30)]


def get_init_inputs():
    return [40, 8, 7]

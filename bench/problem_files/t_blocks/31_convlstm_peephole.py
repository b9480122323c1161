import torch
import torch.nn as nn


class Cell(nn.Module):
    def __init__(self, ci, ch, k, h, w):
        super().__init__()
        self.ch = ch
        self.conv = nn.Conv2d(ci + ch, 4 * ch, k, padding=k // 2)
        self.wci = nn.Parameter(torch.randn(1, ch, h, w) * 0.02)
        self.wcf = nn.Parameter(torch.randn(1, ch, h, w) * 0.02)
        self.wco = nn.Parameter(torch.randn(1, ch, h, w) * 0.02)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = torch.split(self.conv(torch.cat([x, h], 1)), self.ch, 1)
        i = torch.sigmoid(i + self.wci * c)
        f = torch.sigmoid(f + self.wcf * c + 1.0)
        c = f * c + i * torch.tanh(g)
        o = torch.sigmoid(o + self.wco * c)
        return o * torch.tanh(c), c


class Model(nn.Module):
    """Two-layer ConvLSTM with peepholes that forecasts the next frame."""

    def __init__(self, ci, ch, k, h, w):
        super().__init__()
        self.ch = ch
        self.l1 = Cell(ci, ch, k, h, w)
        self.l2 = Cell(ch, ch, k, h, w)
        self.head = nn.Conv2d(ch, ci, 1)

    def forward(self, x):
        b, t, c, h, w = x.shape
        z = x.new_zeros(b, self.ch, h, w)
        s1, s2 = (z, z), (z, z)
        for i in range(t):
            s1 = self.l1(x[:, i], s1)
            s2 = self.l2(s1[0], s2)
        return torch.sigmoid(self.head(s2[0]))


def get_inputs():
    return [torch.rand(2, 7, 2, 19, 17)]


def get_init_inputs():
    return [2, 14, 3, 19, 17]

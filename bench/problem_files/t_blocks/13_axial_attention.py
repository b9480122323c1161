import torch
import torch.nn as nn
import torch.nn.functional as F


class AxisAttention(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(heads, length, length))
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        n, l, d = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)

        def heads(t):
            return t.view(n, l, self.h, d // self.h).transpose(1, 2)

        q, k, v = heads(q), heads(k), heads(v)
        att = torch.matmul(q, k.transpose(2, 3)) / (d // self.h) ** 0.5 + self.bias
        o = torch.matmul(F.softmax(att, dim=-1), v)
        return self.o(o.transpose(1, 2).reshape(n, l, d))


class Model(nn.Module):
    """Axial attention over rows then columns of an image."""

    def __init__(self, dim, heads, h, w):
        super().__init__()
        self.ln = nn.LayerNorm(dim)
        self.rows = AxisAttention(dim, heads, w)
        self.cols = AxisAttention(dim, heads, h)
        self.gate = nn.Parameter(torch.tensor([0.5, 0.5]))

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.ln(x.permute(0, 2, 3, 1))
        r = self.rows(y.reshape(b * h, w, c)).view(b, h, w, c)
        y = y + self.gate[0] * r
        z = self.cols(y.transpose(1, 2).reshape(b * w, h, c)).view(b, w, h, c).transpose(1, 2)
        y = y + self.gate[1] * z
        return x + y.permute(0, 3, 1, 2)


def get_inputs():
    return [torch.randn(2, 60, 18, 22)]


def get_init_inputs():
    return [60, 4, 18, 22]

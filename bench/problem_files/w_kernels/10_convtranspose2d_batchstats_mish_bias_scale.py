import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Transposed conv, batch norm with the statistics of this batch, mish, spatial gate from a channel mean."""

    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_ch, out_ch, 4, stride=2, padding=1)
        self.weight = nn.Parameter(torch.rand(out_ch) + 0.5)
        self.bias = nn.Parameter(torch.randn(out_ch) * 0.1)
        self.extra = nn.Parameter(torch.randn(out_ch, 1, 1) * 0.1)

    def forward(self, x):
        y = self.up(x)
        y = F.batch_norm(y, None, None, self.weight, self.bias, training=True, eps=1e-5)
        y = F.mish(y) + self.extra
        gate = torch.sigmoid(y.mean(dim=1, keepdim=True))
        return y * gate


batch = 24
in_ch = 64
out_ch = 32


def get_inputs():
    return [torch.randn(batch, in_ch, 72, 72)]


def get_init_inputs():
    return [in_ch, out_ch]

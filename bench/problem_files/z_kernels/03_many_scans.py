import torch
import torch.nn as nn


class Model(nn.Module):
    """Scans of several kinds along different dimensions, one of them of a broadcast value."""

    def __init__(self, rows):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(rows, 1))
        self.bias = nn.Parameter(torch.randn(rows, 1) * 0.05)

    def forward(self, x, step):
        excl = torch.cumsum(x, dim=2) - x
        rev = torch.flip(torch.cumsum(torch.flip(x, [1]), dim=1), [1])
        lce = torch.logcumsumexp(x, dim=1)
        top = torch.cummax(x, dim=2).values
        ramp = torch.cumsum(self.bias.unsqueeze(0).expand_as(x), dim=2)
        damp = torch.cumprod((1.0 - 0.02 * torch.sigmoid(self.decay + step)).expand_as(x), dim=1)
        y = damp * (excl + rev) * 0.05 + torch.tanh(lce - top) + 0.01 * ramp
        return y, y[:, ::2, 1:].sum(dim=1)


def get_inputs():
    return [torch.randn(24, 257, 1031), torch.randn(24, 1, 1)]


def get_init_inputs():
    return [257]

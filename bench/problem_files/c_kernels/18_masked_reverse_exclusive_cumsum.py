import torch
import torch.nn as nn


class Model(nn.Module):
    """Discount-free returns: masked rewards summed from the right without the current step, minus a running mean from the left."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x, mask):
        m = (mask > 0).to(x.dtype)
        r = x * m
        suffix = torch.flip(torch.cumsum(torch.flip(r, dims=[1]), dim=1), dims=[1]) - r
        count = torch.cumsum(m, dim=1).clamp_min(1.0)
        running = torch.cumsum(r, dim=1) / count
        y = suffix * self.scale - running
        return y.masked_fill(m == 0, 0.0)


def get_inputs():
    return [torch.randn(2063, 2999), torch.randint(0, 4, (2063, 2999))]


def get_init_inputs():
    return [0.05]

import torch
import torch.nn as nn


class Model(nn.Module):
    """Selects whose untaken branch is NaN or inf (log, sqrt, division by zero); one is guarded twice, one only once."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x, y):
        pos = x > 0
        single = torch.where(pos, torch.sqrt(x), torch.sinh(x.clamp(min=-3.0)))  # d/dx is NaN for x < 0
        safe = torch.where(pos, x, torch.ones_like(x))
        double = torch.where(pos, torch.log(safe), -x * self.shift)
        ratio = torch.where(y == 0, torch.zeros_like(y), (y * y) / y)  # 0/0 is not taken
        acos = torch.where(y.abs() <= 1, torch.acos(y), y.new_tensor(-1.0))
        mix = single.mean(dim=0, keepdim=True) + double * ratio
        return (mix * self.gain + acos).sum(dim=1, keepdim=True) / x.shape[1] + torch.nan_to_num(single / ratio, nan=0.25, posinf=2.0, neginf=-2.0).clamp(-8, 8)


def get_inputs():
    x = torch.randn(37, 149, 131)
    x[:, ::7, ::5] = 0.0
    y = torch.randn(37, 149, 131)
    y[3:9, 10:40] = 0.0
    return [x, y]


def get_init_inputs():
    return [131]

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Depthwise 7x7, layer norm in channels-last, expand, gelu, global response norm, contract, residual."""

    def __init__(self, ch, expand):
        super().__init__()
        self.dw = nn.Conv2d(ch, ch, 7, padding=3, groups=ch)
        self.ln = nn.LayerNorm(ch, eps=1e-6)
        self.fc1 = nn.Linear(ch, ch * expand)
        self.gamma = nn.Parameter(torch.randn(ch * expand) * 0.1)
        self.beta = nn.Parameter(torch.randn(ch * expand) * 0.1)
        self.fc2 = nn.Linear(ch * expand, ch)

    def forward(self, x):
        y = self.dw(x).permute(0, 2, 3, 1)
        y = F.gelu(self.fc1(self.ln(y)))
        energy = torch.sqrt(y.square().sum(dim=(1, 2), keepdim=True) + 1e-6)
        ratio = energy / (energy.mean(dim=-1, keepdim=True) + 1e-6)
        y = y + y * ratio * self.gamma + self.beta
        return x + self.fc2(y).permute(0, 3, 1, 2)


batch = 16
ch = 96


def get_inputs():
    return [torch.randn(batch, ch, 112, 112)]


def get_init_inputs():
    return [ch, 3]

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Grouped transposed convolution with output padding, bias taken after a multiply, ReLU6, max pool, sum over height and squeeze, then ELU."""

    def __init__(self, in_channels, out_channels, groups):
        super().__init__()
        self.up = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size=(4, 3), stride=(2, 3), padding=(1, 0),
            output_padding=(1, 2), groups=groups, bias=False,
        )
        self.gain = nn.Parameter(torch.rand(out_channels, 1, 1) + 0.5)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1) * 0.2)

    def forward(self, x):
        y = F.relu6(self.up(x) * self.gain + self.bias)
        y = F.max_pool2d(y, kernel_size=(3, 2), stride=(1, 2))
        y = torch.sum(y, dim=2, keepdim=True).squeeze(2)
        return F.elu(y - y.mean(dim=-1, keepdim=True), alpha=0.8)


def get_inputs():
    return [torch.randn(19, 48, 45, 53)]


def get_init_inputs():
    return [48, 36, 6]

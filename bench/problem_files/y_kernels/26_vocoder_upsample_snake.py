import torch
import torch.nn as nn


class Model(nn.Module):
    """Vocoder stage: strided transposed conv1d, Snake activation with learned frequency, wide conv1d, tanh."""

    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super().__init__()
        self.up = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride=stride,
                                     padding=(kernel_size - stride) // 2)
        self.alpha = nn.Parameter(torch.rand(1, out_channels, 1) + 0.5)
        self.post = nn.Conv1d(out_channels, out_channels, 7, padding=9, dilation=3)

    def forward(self, x):
        y = self.up(x)
        y = y + torch.sin(self.alpha * y).pow(2) / (self.alpha + 1e-6)
        return torch.tanh(y + self.post(y))


batch_size = 8
in_channels = 96
out_channels = 50
length = 3001
kernel_size = 11
stride = 5


def get_inputs():
    return [torch.randn(batch_size, in_channels, length)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride]

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Learnable filterbank: wide strided conv1d with replicate padding, L2 pooling, log compression, batch norm."""

    def __init__(self, filters, kernel_size, stride, pool):
        super().__init__()
        self.conv = nn.Conv1d(1, filters, kernel_size, stride=stride, padding=kernel_size // 2,
                              padding_mode="replicate", bias=False)
        self.pool = pool
        self.log_gain = nn.Parameter(torch.randn(filters, 1) * 0.3 + 1.0)
        self.bn = nn.BatchNorm1d(filters)

    def forward(self, wave):
        y = self.conv(wave.unsqueeze(1))
        y = F.lp_pool1d(y, 2.0, self.pool, stride=self.pool // 2)
        y = torch.log1p(torch.exp(self.log_gain) * y)
        return self.bn(y)


batch_size = 60
samples = 48000
filters = 80
kernel_size = 401
stride = 40
pool = 7


def get_inputs():
    return [torch.randn(batch_size, samples)]


def get_init_inputs():
    return [filters, kernel_size, stride, pool]

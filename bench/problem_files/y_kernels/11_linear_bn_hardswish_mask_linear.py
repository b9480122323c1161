import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Two-layer MLP: linear, batch norm, hardswish, explicit dropout mask, linear, residual mean subtraction."""

    def __init__(self, in_features, hidden, out_features, keep):
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden, bias=False)
        self.bn = nn.BatchNorm1d(hidden)
        self.fc2 = nn.Linear(hidden, out_features)
        self.keep = keep

    def forward(self, x, mask):
        h = F.hardswish(self.bn(self.fc1(x)))
        h = h * mask / self.keep
        y = self.fc2(h)
        return y - y.mean(dim=1, keepdim=True)


batch_size = 4099
in_features = 1536
hidden = 3000
out_features = 1000


def get_inputs():
    return [torch.randn(batch_size, in_features), torch.rand(batch_size, hidden) < 0.9]


def get_init_inputs():
    return [in_features, hidden, out_features, 0.9]

import torch
import torch.nn as nn


class Model(nn.Module):
    """Linear to two halves, sine gate, group norm over features, max pooling along features, mean subtraction."""

    def __init__(self, in_features, hidden, groups, pool):
        super().__init__()
        self.linear = nn.Linear(in_features, 2 * hidden)
        self.norm = nn.GroupNorm(groups, hidden)
        self.freq = nn.Parameter(torch.linspace(0.5, 3.0, hidden))
        self.pool = nn.MaxPool1d(pool)

    def forward(self, x):
        a, b = self.linear(x).chunk(2, dim=-1)
        h = a * torch.sin(self.freq * b) + a
        h = self.norm(h)
        h = self.pool(h.unsqueeze(1)).squeeze(1)
        return h - h.mean(dim=0, keepdim=True)


batch_size = 2048
in_features = 2000
hidden = 2310
groups = 21
pool = 3


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, hidden, groups, pool]

import torch
import torch.nn as nn


class Model(nn.Module):
    """Sparse MLP: hidden units are shifted by the k-th largest pre-activation, then squared ReLU and projected back."""

    def __init__(self, dim, hidden, k):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)
        nn.init.normal_(self.up.weight, std=dim ** -0.5)
        nn.init.normal_(self.down.weight, std=0.1)
        self.k = k

    def forward(self, x):
        h = self.up(x)
        kth = torch.topk(h, self.k, dim=-1).values[..., -1:]
        h = torch.relu(h - kth).square()
        return x + self.down(h)


batch_size = 7
tokens = 431
dim = 1024
hidden = 4000
k = 256


def get_inputs():
    return [torch.randn(batch_size, tokens, dim)]


def get_init_inputs():
    return [dim, hidden, k]

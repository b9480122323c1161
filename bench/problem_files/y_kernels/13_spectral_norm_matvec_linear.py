import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Linear layer whose weight is divided by a power-iteration estimate of its spectral norm; SELU output."""

    def __init__(self, in_features, out_features, iters):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features, in_features) / in_features ** 0.5)
        self.bias = nn.Parameter(torch.randn(out_features) * 0.1)
        self.register_buffer("u", F.normalize(torch.randn(out_features), dim=0))
        self.iters = iters

    def forward(self, x):
        u = self.u
        for _ in range(self.iters):
            v = F.normalize(self.weight.t().mv(u), dim=0, eps=1e-6)
            u = F.normalize(self.weight.mv(v), dim=0, eps=1e-6)
        sigma = torch.dot(u, self.weight.mv(v))
        return F.selu(F.linear(x, self.weight / sigma) + self.bias)


batch_size = 131
in_features = 5000
out_features = 4096
iters = 2


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, iters]

import torch
import torch.nn as nn


class Model(nn.Module):
    """Pairwise squared distances to a codebook, nearest distance, and soft-min reconstruction."""

    def __init__(self, num_codes, dim, temperature):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(num_codes, dim))
        self.temperature = temperature

    def forward(self, x):
        b, c, h, w = x.shape
        flat = x.permute(0, 2, 3, 1).reshape(-1, c)
        d = flat.pow(2).sum(1, keepdim=True) - 2.0 * flat @ self.codebook.t() + self.codebook.pow(2).sum(1)
        nearest = d.min(dim=1).values
        p = torch.softmax(-d / self.temperature, dim=1)
        rec = (p @ self.codebook).view(b, h, w, c).permute(0, 3, 1, 2)
        return rec, nearest.view(b, h, w)


batch_size = 24
dim = 96
height = 30
width = 30
num_codes = 1021


def get_inputs():
    return [torch.randn(batch_size, dim, height, width)]


def get_init_inputs():
    return [num_codes, dim, 20.0]

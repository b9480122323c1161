import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Bags of hashed ids looked up in two small tables, by quotient and by remainder, pooled as weighted sum, mean and maximum and crossed in the manner of factorisation machines."""

    def __init__(self, tables, width):
        super().__init__()
        self.tables = tables
        self.quotient = nn.Parameter(torch.randn(tables, width) / width ** 0.5)
        self.remainder = nn.Parameter(torch.randn(tables, width) / width ** 0.5)
        self.top = nn.Linear(3 * width, 1)

    def forward(self, ids, offsets, weights):
        hashed = (ids * 2654435761 + 12345) % (self.tables * self.tables)
        q, r = hashed // self.tables, hashed % self.tables
        w = torch.sigmoid(weights)
        total = F.embedding_bag(q, self.quotient, offsets, mode="sum", per_sample_weights=w)
        mean = F.embedding_bag(r, self.remainder, offsets, mode="mean")
        peak = F.embedding_bag(r, self.remainder, offsets, mode="max")
        fields = torch.stack([total, mean, peak], dim=1)  # (bags, 3, width)
        cross = 0.5 * (fields.sum(dim=1).square() - fields.square().sum(dim=1)).sum(dim=1)
        deep = self.top(F.relu6(fields.flatten(1))).squeeze(1)
        single = (F.embedding(q, self.quotient) * F.embedding(r, self.remainder)).sum(dim=1) * w  # a score for every id
        return torch.sigmoid(cross + deep), single


def get_inputs():
    lengths = torch.randint(1, 60, (2003,))
    offsets = torch.cumsum(lengths, 0) - lengths
    n = int(lengths.sum())
    return [torch.randint(0, 2 ** 30, (n,)), offsets, torch.randn(n)]


def get_init_inputs():
    return [331, 40]

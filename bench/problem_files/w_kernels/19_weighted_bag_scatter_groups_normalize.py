import torch
import torch.nn as nn


class Model(nn.Module):
    """Weighted embedding bags, l2 normalised, scatter-added into groups, group means subtracted back."""

    def __init__(self, vocab, dim, groups):
        super().__init__()
        self.table = nn.Embedding(vocab, dim)
        self.bias = nn.Parameter(torch.randn(dim) * 0.1)
        self.groups = groups

    def forward(self, ids, weights, group):
        w = weights / (weights.sum(dim=1, keepdim=True) + 1e-6)
        bag = (self.table(ids) * w.unsqueeze(-1)).sum(dim=1) + self.bias
        bag = bag * torch.rsqrt(bag.square().sum(dim=1, keepdim=True) + 1e-8)
        index = group[:, None].expand_as(bag)
        total = bag.new_zeros(self.groups, bag.shape[1]).scatter_add(0, index, bag)
        count = bag.new_zeros(self.groups).scatter_add(0, group, torch.ones_like(bag[:, 0]))
        mean = total / count.clamp(min=1.0).unsqueeze(1)
        return bag - torch.gather(mean, 0, index)


batch = 16384
bag = 37
vocab = 200003
dim = 128
groups = 1000


def get_inputs():
    return [
        torch.randint(0, vocab, (batch, bag)),
        torch.rand(batch, bag),
        torch.randint(0, groups, (batch,)),
    ]


def get_init_inputs():
    return [vocab, dim, groups]

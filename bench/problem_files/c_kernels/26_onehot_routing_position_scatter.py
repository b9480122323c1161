import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Top-1 routing: softmax gate, one-hot position in each expert by cumsum, rows over capacity dropped, kept rows scattered to expert buffers, load loss."""

    def __init__(self, dim, experts, capacity):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = experts
        self.capacity = capacity

    def forward(self, x):
        prob = torch.softmax(self.gate(x), dim=-1)
        best, index = prob.max(dim=-1)
        hot = F.one_hot(index, self.experts)
        position = ((torch.cumsum(hot, dim=0) - 1) * hot).sum(dim=-1)
        keep = position < self.capacity
        slot = torch.where(keep, index * self.capacity + position, self.experts * self.capacity)
        rows = x * (best * keep.to(x.dtype)).unsqueeze(1)
        out = x.new_zeros(self.experts * self.capacity + 1, x.shape[1])
        out = out.scatter(0, slot.unsqueeze(1).expand_as(x), rows)
        load = hot.to(x.dtype).mean(dim=0)
        aux = self.experts * (load * prob.mean(dim=0)).sum()
        return out[:-1].view(self.experts, self.capacity, -1), aux


def get_inputs():
    return [torch.randn(20011, 390)]


def get_init_inputs():
    return [390, 22, 950]

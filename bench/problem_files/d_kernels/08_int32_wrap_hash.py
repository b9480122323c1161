import torch
import torch.nn as nn


class Model(nn.Module):
    """An int32 hash with overflow wraparound and arithmetic shifts; floor/trunc division and remainders of negatives; a table lookup."""

    def __init__(self, buckets):
        super().__init__()
        self.table = nn.Parameter(torch.randn(buckets))
        self.buckets = buckets

    def forward(self, x, d):
        h = x * -1640531527 + 12345
        h = h ^ (h >> 15)
        h = (h << 7) - (~x)
        q = torch.div(h, d, rounding_mode="floor") - torch.div(h, d, rounding_mode="trunc")  # 0 or -1
        r = torch.remainder(h, d) + torch.fmod(h, d)
        slot = torch.remainder(h, self.buckets)  # never negative
        picked = self.table[slot]
        row = (h >> 20).sum(dim=1, keepdim=True)  # accumulates in int64
        parity = (row % 11 - 5).to(picked.dtype)
        wrapped = h.sum(dim=0, dtype=torch.int32) >> 24
        return picked * (1 + q) + r * 0.125 + parity - wrapped


def get_inputs():
    x = torch.randint(-2**31, 2**31 - 1, (1501, 701), dtype=torch.int64).to(torch.int32)
    d = torch.randint(2, 9, (1501, 701), dtype=torch.int32)
    d = d * (torch.randint(0, 2, (1501, 701), dtype=torch.int32) * 2 - 1)
    return [x, d]


def get_init_inputs():
    return [1009]

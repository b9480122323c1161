import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Weighted-sum, mean and max embedding bags over one ragged index list with empty bags and a padding index, compared by cosine."""

    def __init__(self, rows, width, padding_idx):
        super().__init__()
        self.table = nn.Parameter(torch.randn(rows, width) * 0.3)
        self.padding_idx = padding_idx

    def forward(self, idx, offsets, weights):
        kw = dict(include_last_offset=True, padding_idx=self.padding_idx)
        table = torch.tanh(self.table)
        s = F.embedding_bag(idx, table, offsets, mode="sum", per_sample_weights=weights, **kw)
        m = F.embedding_bag(idx, table, offsets, mode="mean", **kw)
        x = F.embedding_bag(idx, table, offsets, mode="max", **kw)
        size = (offsets[1:] - offsets[:-1]).unsqueeze(1)
        sim = F.cosine_similarity(s + 0.5 * m, x, dim=1, eps=1e-3)  # 0 for empty bags
        y = torch.where(size == 0, self.table.mean(dim=0), s * sim.unsqueeze(1) + m)
        return F.normalize(y, p=1.0, dim=0) + y / (1 + size)


def get_inputs():
    n, bags = 9001, 1499
    cuts = torch.sort(torch.randint(0, n + 1, (bags - 1,))).values
    cuts[200:207] = cuts[200]
    offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([n])])
    return [torch.randint(0, 5003, (n,)) % 4999, offsets, torch.randn(n)]


def get_init_inputs():
    return [5003, 129, 17]

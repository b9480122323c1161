import torch
import torch.nn as nn


class Model(nn.Module):
    """cdist in L1, L2 and Linf between two point clouds, run through sinc, i0e and log_ndtr, with softmin, plus pdist of the anchors."""

    def __init__(self, anchors, dim):
        super().__init__()
        self.anchors = nn.Parameter(torch.randn(anchors, dim))
        self.width = nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        a = self.anchors
        d1 = torch.cdist(x, a.unsqueeze(0), p=1.0)
        d2 = torch.cdist(x, a.expand(x.shape[0], -1, -1), p=2.0, compute_mode="donot_use_mm_for_euclid_dist")
        di = torch.cdist(x, a.unsqueeze(0), p=float("inf"))
        k = torch.sinc(d2 / self.width.abs()) + torch.special.i0e(d1) * torch.special.log_ndtr(-di)
        soft = torch.nn.functional.softmin(di, dim=1)  # over the points
        near = d1.min(dim=2, keepdim=True).values
        spread = torch.pdist(a, p=2.0)
        return k * soft + near / spread.mean() - spread.amin()


def get_inputs():
    return [torch.randn(11, 307, 5)]


def get_init_inputs():
    return [193, 5]

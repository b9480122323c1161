"""Norms, softmaxes and losses over the channels of images, whose memory runs across them, on a GPU:
as exact as eager, over numbers of channels and sizes of images that fill tiles or do not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld


class Along(nn.Module):
    def __init__(self, channels: int, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)
        self.kind = kind

    def forward(self, x, y):
        return getattr(self, self.kind)(x, y)

    def norm_last(self, x, y):
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.weight)

    def norm_first(self, x, y):
        return self.norm_last(x + y, y).permute(0, 3, 1, 2).contiguous()

    def rows_turned(self, x, y):
        x = x.permute(0, 2, 3, 1).contiguous()
        return F.layer_norm(x.cos(), x.shape[-1:], self.weight).transpose(1, 3) + y.transpose(2, 3)

    def softmax(self, x, y):
        return torch.softmax(x, 1)

    def divergence(self, x, y):
        p = torch.log_softmax(x, 1)
        return (p.exp() * (p - torch.log_softmax(y, 1))).sum(1)

    def variance(self, x, y):
        return x.var(1), x.amax(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(7, 48, 64, 50), (12, 69, 97, 37), (4, 96, 56, 42), (5, 200, 33, 61),
              (30, 384, 14, 23), (9, 1000, 36, 28)]
)  # fmt: skip
@pytest.mark.parametrize(
    "kind", ["norm_last", "norm_first", "rows_turned", "softmax", "divergence", "variance"]
)
def test_as_exact_as_eager(kind, shape, dtype):
    torch.manual_seed(0)
    model = Along(shape[1], kind).to("cuda", dtype).eval()
    x, y = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    with torch.no_grad():
        found, eager = _several(torchweld.fuse(model)(x, y)), _several(model(x, y))
        exact = _several(copy.deepcopy(model).double()(x.double(), y.double()))
    for ours, theirs, wanted in zip(found, eager, exact):
        assert ours.shape == theirs.shape and ours.stride() == theirs.stride()
        error, allowed = (ours - wanted).norm(), (theirs - wanted).norm()
        assert error <= 1.2 * allowed + 4 * torch.finfo(dtype).eps * 1e-2 * wanted.norm()


def _several(found):
    return found if isinstance(found, tuple) else (found,)

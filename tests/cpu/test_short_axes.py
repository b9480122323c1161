"""Axes of a few points: what runs over them fills vectors, and is as exact as eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.api import records
from torchweld.exact.verify import verify


def sources(fused) -> str:
    return "\n".join(
        source.text
        for record in records(fused)
        for bundle in record.bundles.values()
        for source in bundle.sources
    )


def turned(x, steps):
    angle = x[:, None] * steps[:, None]
    return angle.sin() + angle.cos()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows, steps, width", [(101, 10, 3), (33, 2, 7), (5, 3, 2)])
def test_the_last_two_axes_are_short(rows, steps, width, dtype):
    given = torch.randn(rows, width).to(dtype), torch.randn(steps).to(dtype)
    fused = torchweld.fuse(turned)
    assert verify(turned, fused, given, seeds=(0,)).ok
    assert (f"m0 = ({rows} + 31) / 32" in sources(fused)) == (rows >= 16)


class Channels(torch.nn.Module):
    """A norm over channels in the middle: the gradients of its weights are sums over rows, whose
    neighbours are adjacent."""

    def __init__(self, count: int):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(count, 1))
        self.shift = torch.nn.Parameter(torch.randn(count, 1))

    def forward(self, x):
        variance, mean = torch.var_mean(x, 1, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.scale + self.shift


@pytest.mark.parametrize("shape", [(3, 45, 301), (2, 130, 17), (5, 7, 64), (1, 33, 1000)])
def test_sums_over_rows_along_a_lane_of_rows(shape):
    module, given = Channels(shape[1]), (torch.randn(shape),)
    fused = torchweld.fuse(module)
    assert verify(module, fused, given, train=True, seeds=(0,)).ok
    if shape[1] > 32:
        assert "reduction(+ : r" in sources(fused)


@pytest.mark.parametrize("rows, depth, columns", [
    (257, 6, 6), (999, 13, 3), (6, 1805, 6), (300, 40, 5), (3, 257, 45), (5, 31, 300),
    (1, 19, 777), (7, 16, 16), (2, 15, 500)])  # fmt: skip
def test_products_with_a_few_of_something(rows, depth, columns):
    def layer(x, w):
        return F.relu(x @ w)

    for turn in (False, True):
        w = torch.randn(columns, depth).t() if turn else torch.randn(depth, columns)
        given = torch.randn(rows, depth), w
        assert verify(layer, torchweld.fuse(layer), given, seeds=(0,)).ok


def test_a_run_of_a_few_numbers_is_no_packed_weight():
    """Sines of coordinates, of which there are fewer than of what is made of them."""
    steps, w = torch.arange(1.0, 11.0), torch.randn(63, 128)

    def encoded(x):
        angle = (x[:, None] * steps[:, None]).flatten(1)
        return F.relu(torch.cat([x, angle.sin(), angle.cos()], 1) @ w)

    fused, given = torchweld.fuse(encoded), (torch.rand(700, 3),)
    assert verify(encoded, fused, given, seeds=(0,)).ok
    templates = {getattr(d, "template", "") for r in records(fused) for d in r.decisions}
    assert "gemm/cpu" in templates and "gemm/dequantised" not in templates


def test_a_choice_of_whole_rows_leaves_vectors():
    """The gradient of a pooling, whose rows may lie outside, with work behind it."""

    def pooled(x):
        return F.avg_pool2d(F.softplus(x) ** 3, 3, 2)

    fused, given = torchweld.fuse(pooled), (torch.randn(2, 3, 31, 71),)
    assert verify(pooled, fused, given, train=True, seeds=(0,)).ok
    assert "tw_choose(v" in sources(fused)


def test_products_of_one_row_and_no_softmax_between_are_no_score_nest():
    """Talking heads: weights of a softmax are mixed over heads before they meet the values."""

    def mixed(weights, mix, values):
        return torch.einsum("bgij,gh,bhjd->bhid", weights.softmax(-1), mix, values)

    given = torch.randn(2, 6, 35, 35), torch.randn(6, 6), torch.randn(2, 6, 35, 24)
    fused = torchweld.fuse(mixed)
    assert verify(mixed, fused, given, seeds=(0,)).ok
    templates = {getattr(d, "template", "") for r in records(fused) for d in r.decisions}
    assert "attention/cpu" not in templates


def spline(x, knots, some):
    """One step of a recursion of B-splines, where `some` chooses."""
    left = (x.unsqueeze(-1) - knots[:, :-1]) / (knots[:, 1:] - knots[:, :-1])
    return torch.where(some, left * left.sigmoid(), left.exp()) * some


@pytest.mark.parametrize("width", [6, 9, 10, 15, 24, 31, 33, 63])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("points", [300, 70, 5])
def test_bools_beside_numbers_along_a_short_lane(points, each, width):
    """`each`: one for each point, not for each row of knots alone."""
    torch.compiler.reset()
    knots = torch.arange(width + 1.0).repeat(5, 1) / 7
    some = torch.rand((points, 5, width) if each else (5, width)) > 0.5
    fused = torchweld.fuse(spline)
    assert verify(spline, fused, (torch.randn(points, 5), knots, some), seeds=(0,)).ok
    assert not each or ("int32_t w" in sources(fused)) == (8 <= width < 64)

"""Distances of pairs of points are computed where they are reduced, and never in memory."""

from __future__ import annotations

from math import prod

import pytest
import torch
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Reduce
from torchweld.passes.pairs import pairs_written_out
from torchweld.pipeline import finished_plan
from torchweld.targets.find import named_target


def chamfer(x, y):
    distances = ((x[:, None] - y) ** 2).sum(-1)
    return distances.amin(0), distances.amin(1)


def forces(x, y):
    apart = y - x[:, None]
    squares = (apart * apart).sum(-1) + 0.01
    return (apart * (squares.rsqrt() / squares)[..., None]).sum(1)


def largest_of_each_pair(x, y):
    return (x[:, None] - y).abs().amax(-1).exp().sum(1)


def rows_of_three(x, y):
    return (x + y[:1]).square().sum(-1)


def points(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=generator).to(dtype) for n in (67, 129)]


def lowered(function, dtype=torch.float32):
    return lower(capture(function, *points(dtype)), Options()).graph


@pytest.mark.parametrize("function", [chamfer, forces, largest_of_each_pair])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_meaning_stays(function, dtype):
    before = lowered(function, dtype)
    after = pairs_written_out(before)
    check_graph(after)
    assert reductions(after) < reductions(before)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(*(run_graph(g, points(dtype)) for g in (after, before)), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("function", [chamfer, forces])
def test_no_pairs_in_memory(function):
    args = [torch.randn(2048, 3), torch.randn(4096, 3)]
    graph = finished_plan(capture(function, *args), Options(), named_target("H100")).graph
    stored = [graph.buffers[s.buffer] for n in graph.nodes for s in n.stores]
    assert all(prod(b.shape) < 2048 * 4096 for b in stored)


def test_what_comes_from_memory_is_left():
    graph = lowered(rows_of_three)
    assert pairs_written_out(graph) == graph


def reductions(graph) -> int:
    return sum(isinstance(i, Reduce) for n in graph.nodes for i in getattr(n, "body", ()))

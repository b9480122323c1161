"""Batches of products with one row are sums that mean the same, fused with what is around."""

from __future__ import annotations

import pytest
import torch
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern
from torchweld.passes.single_rows import single_rows_as_sums
from torchweld.plan.search import plan
from torchweld.targets.find import named_target

B, H, S, D = 3, 2, 17, 8


def step(q, k, v):
    """One query, whose scores the caller wants: keys and values lie in rows of a cache."""
    k, v = (t.view(B, S, H, D).permute(0, 2, 1, 3) for t in (k, v))
    scores = (q * 0.5) @ (k * 0.5).transpose(-1, -2)
    return scores.softmax(-1) @ v, scores


def added(q, k, v):
    q, k = q.reshape(B * H, 1, D), k.view(B, S, H, D).permute(0, 2, 3, 1).reshape(B * H, D, S)
    return (torch.baddbmm(v.flatten()[:S], q, k, alpha=0.5, beta=2.0),)


def two_rows(q, k, v):
    return (torch.cat([q, q], 2) @ k.view(B, H, D, S),)


def as_sums(function, *args):
    graph = lower(capture(function, *args), Options()).graph
    after = single_rows_as_sums(graph)
    check_graph(after)
    for one, other in zip(run_graph(after, args), run_graph(graph, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    return after


def given(dtype=torch.float32):
    torch.manual_seed(0)
    shapes = (B, H, 1, D), (B, S, H * D), (B, S, H * D)
    return [torch.randn(s).to(dtype) for s in shapes]


def calls(graph) -> int:
    return sum(isinstance(n, Extern) for n in graph.nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [step, added])
def test_no_call_is_left(function, dtype):
    assert calls(as_sums(function, *given(dtype))) == 0


def of_few_results(x, w):
    """Of matrices that lie turned, and of others; with a bias."""
    a, b = x.view(2, 600, 3).mT, w.view(2, 600, 2)
    flat = torch.addmm(w[:2], a.reshape(6, 600)[:2], b[0], alpha=0.5)
    return a * 2 @ b.relu(), flat


def of_more_results(x, w):
    return (x.view(2, 450, 4).mT @ x.view(2, 450, 4),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_few_long_sums(dtype):
    x, w = torch.randn(3600).to(dtype), torch.randn(2400).to(dtype)
    graph = as_sums(of_few_results, x, w)
    assert calls(graph) == 0
    (made,) = (n for n in graph.nodes if isinstance(n, Comp) and n.name == "bmm")
    assert len(made.stores) == 6


def test_products_of_more_rows_stay_calls():
    assert calls(as_sums(two_rows, *given())) == 1
    assert calls(as_sums(of_more_results, torch.randn(3600), torch.randn(1))) == 1
    assert calls(as_sums(two_rows, *given())) == 1


def test_keys_are_read_where_they_lie():
    """Neither turned nor copied: the sums read the cache, and their scale is made on the way."""
    graph = plan(as_sums(step, *given(torch.bfloat16)), named_target("H200"), Options()).graph
    keys = graph.inputs[1]
    (scores,) = (n for n in graph.nodes if isinstance(n, Comp) and keys in n.reads)
    assert graph.outputs[1].buffer in scores.writes

"""Tensors that are filled part by part hold what eager's hold, and are put together once."""

from __future__ import annotations

import random

import pytest
import torch
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import torchweld
from torchweld.capture import filled

aten = torch.ops.aten


def columns(x):
    out, state = torch.empty_like(x), torch.zeros(x.shape[0], dtype=x.dtype)
    for t in range(x.shape[1]):
        state = state * 0.5 + x[:, t]
        out[:, t] = state
    return out


def rows_that_are_read_again(x):
    out = torch.zeros(x.shape[1], x.shape[0], dtype=x.dtype)
    for t in range(x.shape[1]):
        out[t] = x[:, t].sin() + (out[t - 1] if t else 0)
    return out * out[-1]


def borders(x):
    out = x.clone()
    out[1:-1] = (x[2:] + x[:-2]) / 2
    out[0], out[-1] = x[0] * 2, x[-1] * 3
    return out


def twice(x):
    out = torch.ones_like(x)
    for t in (0, 2, 2, 1, 0):
        out[:, t] = out[:, t] * 2 + x[:, t]
    return out.exp()


def added_to(x):
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        out[:, t] += x[:, t] * t
    for t in reversed(range(x.shape[1])):
        out[:, t] += x[:, -1 - t]
    return out


def crossing(x):
    out = torch.full_like(x, 3.0)
    out[:, 0] = x[:, 1]
    out[0, :] = x[1, :]
    out[:, 1] = x[:, 2]
    out[:2, :2] = out[1:3, 1:3] + 1
    return out


def parts_of_parts(x):
    out = torch.full((x.shape[0], 4, x.shape[1]), 24.0, dtype=x.dtype)
    for d in range(4):
        out[:, d, d:] = x[:, d:] - x[:, : x.shape[1] - d]
    return out.sum(1)


def turned(x):
    out = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype).t()
    for t in range(x.shape[1]):
        out[:, t] = x[:, t] + 1
    return out, out.reshape(-1) * 2


FUNCTIONS = [
    columns, rows_that_are_read_again, borders, twice, added_to, crossing, parts_of_parts, turned,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(5, 7), (3, 17)], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_as_eager(function, shape, grad):
    torch.compiler.reset()
    x = torch.randn(shape, requires_grad=grad)
    fused, expected = torchweld.fuse(function)(x), function(x)
    torch.testing.assert_close(fused, expected)
    if grad:
        sums = [
            sum((y * y).sum() for y in (made if isinstance(made, tuple) else (made,)))
            for made in (fused, expected)
        ]
        ours, eagers = (torch.autograd.grad(s, x)[0] for s in sums)
        torch.testing.assert_close(ours, eagers)


def program(seed):
    """Random writes to and reads of two tensors, along both dimensions."""
    draw, steps = random.Random(seed), []
    for _ in range(draw.randint(3, 9)):
        dim, length = draw.randint(0, 1), draw.choice([0, 1, 2, 3])
        start = draw.randint(0 if length else -5, 5 - dim - max(length, 1))
        steps.append((dim, start, length, draw.randint(0, 1), draw.randint(0, 2)))

    def function(x):
        tensors = [torch.zeros(6, 5), x.clone()]
        for dim, start, length, which, how in steps:
            t = tensors[which]
            t = t.narrow(dim, start, length) if length else t.select(dim, start)
            if how == 0:
                t.copy_(t.sin() + 1)
            elif how == 1:
                t += 2
            else:
                t.copy_(tensors[1 - which].sum() / 9)
        return tensors[0] * tensors[1], tensors[0].sum(0)

    return function


@pytest.mark.parametrize("seed", range(60))
def test_any_writes(seed):
    function, x = program(seed), torch.randn(6, 5)
    traced = make_fx(torch.func.functionalize(function), tracing_mode="fake")(x)
    filled.put_together(traced)
    traced.recompile()
    torch.testing.assert_close(traced(x), function(x))


def targets(gm: GraphModule) -> list:
    graph: Graph = gm.graph
    return [n.target for n in graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("function", [columns, rows_that_are_read_again, borders, parts_of_parts])
def test_writes_are_one_concatenation(function):
    gm = make_fx(torch.func.functionalize(function), tracing_mode="fake")(torch.randn(5, 4))
    filled.put_together(gm)
    made = targets(gm)
    assert made.count(aten.cat.default) == 1 and aten.select_scatter.default not in made


def test_gradients_of_parts_are_one_concatenation():
    torch.compiler.reset()
    x = torch.randn(6, 9, requires_grad=True)
    fused = torchweld.fuse(columns)
    fused(x).sum().backward()
    backward = torchweld.records(fused)[-1]
    assert backward.kind == "backward" and len(backward.graph.nodes) == 1

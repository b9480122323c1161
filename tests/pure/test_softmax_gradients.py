"""The backward of attention by hand, as it is captured: what is saved, and what rounds."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from torchweld.capture import aot
from torchweld.capture.captured import Captured
from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.nodes import Cast, Comp

aten = torch.ops.aten


def attention(q, k, v):
    return ((q @ k.transpose(-2, -1)) * 0.25).softmax(-1) @ v


def causal(q, k, v):
    s = (q @ k.transpose(-2, -1)) * 0.25
    rows, keys = (torch.arange(n) for n in s.shape[-2:])
    return s.masked_fill(keys > rows[:, None] - 3, -math.inf).softmax(-1) @ v  # 3 rows see nothing


def rounded(q, k, v):
    s = ((q @ k.transpose(-2, -1)) * 0.25).softmax(-1)
    return s.float().bfloat16() @ v


def normalised(q, k, v):
    s = ((q @ k.transpose(-2, -1)) * 0.25).softmax(-1)
    return (s / (s.sum(-1, keepdim=True) + 1e-6)) @ v


def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    sizes = (2, 3, 17, 8), (2, 3, 23, 8), (2, 3, 23, 5)
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in sizes]


def compiled(function, compile_graph):
    """As if templates took the scores."""
    torch.compiler.reset()
    backend = aot.make_backend(compile_graph, Options(), takes=lambda scores: True)
    return torch.compile(function, backend=backend, dynamic=False)


@functools.cache
def gradients(function, dtype: torch.dtype) -> tuple[Captured, list[torch.Tensor]]:
    """The captured backward; what it computes."""
    graphs = {}

    def keep(captured: Captured, options: Options):
        graphs[captured.kind] = captured
        return aot.run_eagerly(captured.module)

    given = inputs(dtype)
    out = compiled(function, keep)(*given)
    out.backward(torch.ones_like(out))
    return graphs["backward"], [g.grad for g in given]


def operations(captured: Captured) -> set:
    return {n.target for n in captured.module.graph.nodes if n.op == "call_function"}


@pytest.mark.parametrize("function", [attention, causal, rounded])
def test_no_score_is_divided_in_16_bits(function):
    found = operations(gradients(function, torch.bfloat16)[0])
    assert aten.reciprocal.default in found and aten.div.Tensor not in found
    if function is not rounded:
        assert aten.div.Tensor in operations(gradients(function, torch.float32)[0])


@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_weights_that_are_made_again_add_up_to_one(size):
    """Of scores up to 10^5, too. Otherwise what the values of a row have in common would not cancel
    in the gradient."""
    found = {}

    class Watched(torch.fx.Interpreter):
        def run_node(self, n):
            found[n] = super().run_node(n)
            return found[n]

    def watch(captured: Captured, options: Options):
        run = aot.run_eagerly(captured.module)
        if captured.kind == "forward":
            return run

        def boxed(args: list):
            Watched(captured.module).run(*args)
            return run(args)

        boxed._boxed_call = True
        return boxed

    given = [a.detach().mul(size).requires_grad_() for a in inputs(torch.bfloat16)]
    compiled(attention, watch)(*given).sum().backward()
    (exp,) = (n for n in found if n.target is aten.exp.default)
    (weights,) = (u for u in exp.users if u.target is aten.mul.Tensor)
    assert (found[weights].double().sum(-1) - 1).abs().max() < 1e-6


def asked_roundings(captured: Captured) -> int:
    graph = lower(captured, Options()).graph
    comps = (n for n in graph.nodes if isinstance(n, Comp))
    return sum(isinstance(i, Cast) and i.must_round for c in comps for i in c.body)


def test_only_roundings_that_somebody_asked_for_are_kept():
    assert asked_roundings(gradients(attention, torch.bfloat16)[0]) == 0
    assert asked_roundings(gradients(rounded, torch.bfloat16)[0]) > 0


def test_what_a_sum_by_hand_was_taken_of_is_rounded():
    """The sum was taken of rounded weights, and its gradient is added to those of all of them."""
    assert asked_roundings(gradients(normalised, torch.bfloat16)[0]) > 0


@pytest.mark.parametrize("function", [attention, causal])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_they_are_as_exact_as_eager(function, dtype):
    exact, eager = ([a.detach().to(kind).requires_grad_() for a in inputs(dtype)]
                    for kind in (torch.float64, dtype))  # fmt: skip
    for given in (exact, eager):
        out = function(*given)
        out.backward(torch.ones_like(out))
    for got, near, true in zip(gradients(function, dtype)[1], eager, exact):
        same = near.grad.isnan()
        assert torch.equal(got.isnan(), same)
        error, allowed = ((g.double() - true.grad)[~same].norm() for g in (got, near.grad))
        assert error <= 1.5 * allowed

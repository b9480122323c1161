"""Columns beside scores come apart where all that is made of them does."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture.columns import compute_apart
from torchweld.capture.joint import drop_detach
from torchweld.capture.scores import shape_of
from torchweld.capture.torch_private import core_decompositions

aten = torch.ops.aten
WHOLE = {aten.cat.default, aten.constant_pad_nd.default, aten._softmax.default}


def beside(s, c):
    return torch.cat([s, c.expand(*s.shape[:-1], -1)], -1)


def last(s, c):
    return beside(s, c).softmax(-1)[..., :-1]


def first(s, c):
    return torch.cat([c.expand(*s.shape[:-1], -1), s], -1).mul(0.5).softmax(-1)[..., 3:]


def shifted(s, c):
    every = beside(s, c)
    return (every - every.max(-1, keepdim=True).values).softmax(-1)[..., : s.shape[-1]]


def shifted_by_amax(s, c):
    every = beside(s, c)
    return (every - every.amax(-1, keepdim=True)).softmax(-1)[..., : s.shape[-1]]


def viewed(s, c):
    return beside(s, c).flatten(0, 1).softmax(-1)[..., : s.shape[-1]]


def padded(s, c):
    return F.pad(s, (0, 1)).softmax(-1)[..., :-1] * c.sum()


def reduced(s, c):
    """By hand."""
    every = beside(s, c)
    e = (every - every.amax(-1, keepdim=True)).exp()
    return e[..., : s.shape[-1]] / e.sum(-1, keepdim=True)


def returned(s, c):
    weights = beside(s, c).softmax(-1)
    return weights[..., :-1], weights


def cut_elsewhere(s, c):
    return beside(s, c).softmax(-1)[..., 1:-1]


def masked(s, c):
    """By something that has all columns itself."""
    every = beside(s, c)
    return every.masked_fill(torch.ones_like(every[0]).cumsum(-1) > 4, 0).softmax(-1)[..., :-1]


def another_shift(s, c):
    """Not its own maximum."""
    return (beside(s, c) - s.max(-1, keepdim=True).values).softmax(-1)[..., : s.shape[-1]]


APART = (last, first, shifted, shifted_by_amax, viewed, padded)
WIDTHS = {"first": 3, "shifted": 2}  # columns beside the scores


def inputs(function) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (2, 3, 7, 19), (WIDTHS.get(function.__name__, 1),)
    return [torch.randn(s, dtype=torch.float64) for s in shapes]


def traced(function, *args) -> torch.fx.GraphModule:
    gm = make_fx(function, decomposition_table=core(), tracing_mode="fake")(*args)
    drop_detach(gm)
    return gm


@cache
def core() -> dict:
    whole = {aten._softmax.default, aten._softmax_backward_data.default}
    whole |= {aten.slice_backward.default}
    return {op: f for op, f in core_decompositions().items() if op not in whole}


def with_gradients(function):
    def both(*args):
        made = function(*args)
        return made, *torch.autograd.grad(made.sin().sum(), args, allow_unused=True)

    return both


@pytest.mark.parametrize("function, form", [
    *((f, with_gradients(f)) for f in APART), (reduced, lambda *args: (reduced(*args),)),
], ids=lambda f: f.__name__)  # fmt: skip
def test_parts_mean_what_was_written(function, form):
    args = [a.requires_grad_() for a in inputs(function)]
    gm = traced(form, *args)
    compute_apart(gm)
    gm.recompile()
    total = args[0].shape[-1] + args[1].shape[-1]
    assert all(shape_of(n)[-1:] != (total,) for n in gm.graph.nodes)
    assert not {n.target for n in gm.graph.nodes} & WHOLE
    with torch.no_grad():
        found = gm(*(a.detach() for a in args))
    for got, wanted in zip(found, form(*args)):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("target, given", [
    (aten.new_zeros.default, lambda like, shape: (like, shape)),
    (aten.zeros.default, lambda like, shape: (shape,)),  # torch 2.11
    (aten.full.default, lambda like, shape: (shape, 0)),
])  # fmt: skip
def test_a_maximum_s_gradient_goes_whatever_zeros_it_begins_with(target, given):
    gm = traced(with_gradients(shifted), *(a.requires_grad_() for a in inputs(shifted)))
    (scatter,) = gm.graph.find_nodes(op="call_function", target=aten.scatter.src)
    zeros, total = scatter.args[0], scatter.args[3]
    with gm.graph.inserting_before(scatter):
        made = gm.graph.call_function(target, given(total, list(shape_of(zeros))))
    made.meta["val"] = zeros.meta["val"]
    scatter.replace_input_with(zeros, made)
    compute_apart(gm)
    assert not gm.graph.find_nodes(op="call_function", target=aten.scatter.src)


@pytest.mark.parametrize("function", [returned, cut_elsewhere, masked])
def test_what_is_needed_together_stays(function):
    gm = traced(function, *inputs(function))
    before = [n.target for n in gm.graph.nodes]
    compute_apart(gm)
    assert [n.target for n in gm.graph.nodes] == before


def test_another_shift_is_subtracted():
    gm = traced(another_shift, *inputs(another_shift))
    compute_apart(gm)
    assert gm.graph.find_nodes(op="call_function", target=aten.max.dim)


def test_a_row_that_sees_only_its_sink_is_zero():
    s, c = inputs(last)
    s[0, 0, 0] = -torch.inf
    gm = traced(last, s, c)
    compute_apart(gm)
    gm.recompile()
    assert not gm(s, c)[0, 0, 0].any()

"""Loops over time that Dynamo has unrolled: products of all steps' inputs with one matrix are one
product before the loop. What a step does with its state stays where it is.

    linear(x[:, 0], w, b), ..., linear(x[:, T-1], w, b)
        ->  y = linear(x, w, b);  y[:, 0], ..., y[:, T-1]

A cell of torch's is such a product and the rest of the cell. Before autograd, so that the gradients
of x, w and b are one product each, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from torchweld.capture import constant
from torchweld.capture.constant import example

_VIEWS = {"select", "unbind"}
_FRESH = {"zeros", "ones", "empty", "full", "new_zeros", "new_ones", "new_empty", "new_full",
          "zeros_like", "ones_like", "empty_like", "full_like", "clone"}  # fmt: skip
MODES = {"_set_grad_enabled", "_enter_autocast", "_exit_autocast", "set_grad_enabled"}


def _lstm(gates, state, hidden, bias=None):
    h, c = state
    i, f, g, o = (gates + F.linear(h, hidden, bias)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(gates, h, hidden, bias=None):
    i_r, i_z, i_n = gates.chunk(3, 1)
    h_r, h_z, h_n = F.linear(h, hidden, bias).chunk(3, 1)
    r, z = (h_r + i_r).sigmoid(), (h_z + i_z).sigmoid()
    n = (i_n + h_n * r).tanh()
    return (h - n) * z + n


def _rnn_tanh(gates, h, hidden, bias=None):
    return (gates + F.linear(h, hidden, bias)).tanh()


def _rnn_relu(gates, h, hidden, bias=None):
    return (gates + F.linear(h, hidden, bias)).relu()


# (x, state, weight of x, weight of the state, bias of x, bias of the state), by what is left of it
_CELLS: dict[Callable, Callable] = {
    torch.lstm_cell: _lstm, torch.gru_cell: _gru,
    torch.rnn_tanh_cell: _rnn_tanh, torch.rnn_relu_cell: _rnn_relu,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Step:
    """One product of element `at` of `whole` along `dim` with a weight."""

    node: Node
    whole: Node
    dim: int
    at: int
    weight: Node
    bias: Node | None

    @property
    def key(self) -> tuple:
        return self.whole, self.dim, self.weight, self.bias


def hoist_products(gm: GraphModule) -> None:
    """Applies the rule to Dynamo's graph, in place: where all steps of a tensor are multiplied, and
    nothing is written to in the graph but tensors that it has made, none of which is multiplied."""
    groups: dict[tuple, list[_Step]] = {}
    for node in gm.graph.nodes:
        step = _step(node)
        if step is not None:
            groups.setdefault(step.key, []).append(step)
    groups = {key: steps for key, steps in groups.items() if _is_complete(steps)}
    if not groups or _under_autocast() or not all(map(_is_harmless, gm.graph.nodes)):
        return
    written = {n for node in gm.graph.nodes if constant.writes(node) for n in _bases(node.args[0])}
    for steps in groups.values():
        if _reads(steps[0], written):  # a step may write what the next one multiplies
            continue
        _hoist(gm.graph, steps)
    gm.graph.lint()  # what is dead stays: writes look dead in a graph that is not functional
    gm.recompile()


def _under_autocast() -> bool:
    """Where a cell of torch's is in other types than its parts would be."""
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def _step(node: Node) -> _Step | None:
    if node.op != "call_function" or node.kwargs:
        return None
    if node.target is F.linear and len(node.args) in (2, 3):
        x, weight, bias = (*node.args, None)[:3]
    elif node.target in _CELLS and len(node.args) in (4, 6):
        x, _, weight, _, bias, _ = (*node.args, None, None)[:6]
    else:
        return None
    place = _place(x) if isinstance(x, Node) else None
    return None if place is None else _Step(node, *place, weight, bias)


def _place(x: Node) -> tuple[Node, int, int] | None:
    """(whole, dim, at) of x = whole[:, ..., at]."""
    if x.target is not operator.getitem:
        return None
    whole, at = x.args
    if isinstance(whole, Node) and whole.target in (torch.unbind, "unbind"):
        dim = (*whole.args[1:], *whole.kwargs.values(), 0)[0]
        return _checked(whole.args[0], dim, at)
    at = at if isinstance(at, tuple) else (at,)
    *before, last = at
    return _checked(whole, len(before), last) if all(b == slice(None) for b in before) else None


def _checked(whole: Node, dim, at) -> tuple[Node, int, int] | None:
    value = example(whole)
    numbers = type(dim) is int and type(at) is int
    if not numbers or not isinstance(value, torch.Tensor) or value.dim() != 3 or dim not in (0, 1):
        return None
    length = value.shape[dim]
    inside = isinstance(length, int) and -length <= at < length
    return (whole, dim, at % length) if inside else None


def _is_complete(steps: list[_Step]) -> bool:
    length = example(steps[0].whole).shape[steps[0].dim]
    return length > 1 and {step.at for step in steps} == set(range(length))


def _hoist(graph: torch.fx.Graph, steps: list[_Step]) -> None:
    first = steps[0]
    with graph.inserting_before(first.node):
        whole = graph.call_function(F.linear, (first.whole, first.weight, first.bias))
    for step in steps:
        node = step.node
        with graph.inserting_before(node):
            at = (slice(None),) * step.dim + (step.at,)
            made = graph.call_function(operator.getitem, (whole, at))
            if node.target in _CELLS:
                state, hidden, bias = node.args[1], node.args[3], (*node.args, None)[5:6]
                made = graph.call_function(_CELLS[node.target], (made, state, hidden, *bias))
        made.meta = {k: v for k, v in node.meta.items() if k != "example_value"}
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _is_harmless(node: Node) -> bool:
    """It changes no mode, and writes to no tensor but one that the graph has made."""
    if node.op not in ("call_function", "call_method"):
        return True
    if constant.name_of(node) in MODES or "out" in node.kwargs:
        return False
    return not constant.writes(node) or _is_fresh(node.args[0])


def _is_fresh(node) -> bool:
    """A tensor that the graph has made, or a part of one."""
    return constant.name_of([*_bases(node)][-1]) in _FRESH if isinstance(node, Node) else False


def _bases(node: Node) -> Iterator[Node]:
    """A tensor, what it is a part of, and so on to what was made whole."""
    while isinstance(node, Node):
        yield node
        node = node.args[0] if constant.name_of(node) in ("getitem", "setitem", *_VIEWS) else None


def _reads(step: _Step, written: set[Node]) -> bool:
    """Whether a factor is, or was made from, one of `written`."""
    given = (step.whole, step.weight, step.bias)
    behind = (n for g in given if isinstance(g, Node) for n in constant.inputs_first(g, ()))
    return not written.isdisjoint(behind)

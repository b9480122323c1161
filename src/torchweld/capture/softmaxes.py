"""A softmax written by hand is one, in Dynamo's graph, before autograd.

    e = exp(x - max(x));  e / sum(e)            ->  softmax(x)
    softmax(x - max(x)),  log_softmax(same)     ->  softmax(x),  log_softmax(x)

All along one dimension, which is kept. The gradient is then that of a softmax. What comes back
through the maximum adds up to zero: eager finds that out by a comparison, three sums and their
roundings, and no kernel of attention could recompute such scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch.fx import GraphModule, Node

from torchweld.capture.constant import example, is_written_between, name_of

_REDUCTION = {"input", "self", "dim", "axis", "keepdim"}
_SOFTMAXES = ("softmax", "log_softmax")
_PARTS = {"truediv", "div", "sum", "exp", "sub", "amax", "max", "getitem", "detach", "alias"}


@dataclass(frozen=True, slots=True)
class _Along:
    """A reduction of `x` along `dim` (not negative), which is kept; `first`: its first node."""

    x: Node
    dim: int
    first: Node


def say_softmax(gm: GraphModule) -> int:
    """Changes the graph in place; returns how many it has found."""
    changed = sum(_divided(n) or _shifted(n) for n in list(gm.graph.nodes))
    if changed:
        gm.recompile()
    return changed


def _divided(node: Node) -> bool:
    """e / sum(e)"""
    e, total = _operands(node, ("truediv", "div"))
    added = _reduced(total, "sum")
    if added is None or added.x is not e or name_of(e) != "exp" or set(e.users) != {total, node}:
        return False
    shifted = e.args[0] if e.args else None
    found = _less_maximum(shifted)
    if found is None or found.dim != added.dim or not _is_same(found.x, node):
        return False
    if is_written_between(found.first, node):
        return False
    with node.graph.inserting_before(node):
        made = node.graph.call_function(F.softmax, (found.x, found.dim))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    _erase(node)
    return True


def _shifted(node: Node) -> bool:
    """softmax(x - max(x))"""
    if name_of(node) not in _SOFTMAXES or not node.args or not isinstance(node.args[0], Node):
        return False
    found, dim = _less_maximum(node.args[0]), _dimension(node)
    if found is None or dim is None or dim % example(found.x).dim() != found.dim:
        return False
    if not _is_same(found.x, node.args[0]) or is_written_between(found.first, node):
        return False
    shifted, node.args = node.args[0], (found.x, *node.args[1:])
    _erase(shifted)
    return True


def _erase(node: Node) -> None:
    """The node, and what was of use to it alone, back to the tensors that were given."""
    if node.users or node.op not in ("call_function", "call_method") or name_of(node) not in _PARTS:
        return
    before = node.all_input_nodes
    node.graph.erase_node(node)
    for each in before:
        _erase(each)


def _less_maximum(node: object) -> _Along | None:
    """What x is less its maximum."""
    x, top = _operands(node, ("sub",))
    while isinstance(top, Node) and name_of(top) in ("detach", "alias"):
        top = top.args[0]
    found = _reduced(top, "amax") or _maximum(top)
    return found if found is not None and found.x is x else None


def _maximum(node: object) -> _Along | None:
    """The values of `max` along a dimension."""
    values = isinstance(node, Node) and name_of(node) == "getitem" and node.args[1] == 0
    return _reduced(node.args[0], "max") if values else None


def _operands(node: object, names: tuple[str, ...]) -> tuple[Node | None, Node | None]:
    """Of an operation of two tensors, not in place."""
    known = isinstance(node, Node) and name_of(node) in names and not node.kwargs
    if not known or len(node.args) != 2 or not all(isinstance(a, Node) for a in node.args):
        return None, None
    return node.args


def _reduced(node: object, name: str) -> _Along | None:
    if not isinstance(node, Node) or name_of(node) != name or node.kwargs.keys() - _REDUCTION:
        return None
    x = node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("self"))
    kept = node.args[2] if len(node.args) == 3 else node.kwargs.get("keepdim")
    dim, value = _dimension(node), example(x)
    if len(node.args) > 3 or kept is not True or dim is None or value is None or not value.dim():
        return None
    return _Along(x, dim % value.dim(), node)


def _dimension(node: Node) -> int | None:
    """The one that a reduction or softmax is told."""
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis"))
    if isinstance(given, (list, tuple)) and len(given) == 1:
        (given,) = given
    return given if type(given) is int else None


def _is_same(x: Node, node: Node) -> bool:
    """Whether both are floating-point tensors of one type and shape."""
    value, other = example(x), example(node)
    return (
        value is not None and other is not None and value.is_floating_point()
        and value.dtype == other.dtype and value.shape == other.shape
    )  # fmt: skip

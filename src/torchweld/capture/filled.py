"""Tensors that a loop fills part by part: their parts, put together once.

    out = empty(n, 3);  out[:, 0] = a;  out[:, 1] = b;  out[:, 2] = f(out[:, 1])
        x = select_scatter(out, a, 1, 0);  y = select_scatter(x, b, 1, 1);  c = f(select(y, 1, 1))
        z = select_scatter(y, c, 1, 2)
    ->  c = f(b);  z = cat([a, b, c])

Each write is a tensor of its own in a functional graph, and would be as much work as all of `out`.
What reads a part reads what was written there, or what was there before. So do gradients: zeros
with a part each, added up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch.fx import GraphModule, Node

from torchweld.capture.calls import add_call

aten = torch.ops.aten
_SELECT, _SLICE = aten.select.int, aten.slice.Tensor
_SCATTERS = {aten.select_scatter.default: True, aten.slice_scatter.default: False}
_GRADIENTS = {aten.select_backward.default: True, aten.slice_backward.default: False}
_COPY, _CLONE, _ADD = aten.copy.default, aten.clone.default, aten.add.Tensor
_WHOLE = (None, None, 1)  # a slice


@dataclass(frozen=True, slots=True)
class _Part:
    """Positions `start` to `end` - 1 along the dimension. `flat`: `value` lacks that dimension."""

    start: int
    end: int
    value: Node
    flat: bool


@dataclass(frozen=True, slots=True)
class _Filled:
    """What a node is: `base` (None: zeros) with `parts` along `dim`, in order, none of which
    overlap. `writes`: how many made it."""

    base: Node | None
    dim: int
    size: int
    parts: tuple[_Part, ...] = ()
    writes: int = 0

    def with_part(self, new: _Part) -> _Filled | None:
        """None where a part would be left of an older one."""
        kept = [p for p in self.parts if not new.start <= p.start < p.end <= new.end]
        if any(p.start < new.end and new.start < p.end for p in kept):
            return None
        parts = tuple(sorted((*kept, new), key=lambda p: p.start))
        return replace(self, parts=parts, writes=self.writes + 1)

    def gaps(self) -> list[tuple[int, int]]:
        """(start, end) of what no part covers."""
        ends = [0, *(p.end for p in self.parts)]
        starts = [*(p.start for p in self.parts), self.size]
        return [(end, start) for end, start in zip(ends, starts) if end < start]


def put_together(gm: GraphModule) -> None:
    """Of a functional graph, in place."""
    graph, filled = gm.graph, dict[Node, _Filled]()
    for node in list(graph.nodes):
        if node.op == "call_function":
            _look_at(node, filled)
    if not filled:
        return
    graph.eliminate_dead_code()
    left = set(graph.nodes)
    for node, what in filled.items():
        if node in left and _is_last(node, filled) and _is_worth_it(node, what):
            _replace(node, what)
    graph.eliminate_dead_code()


def _look_at(node: Node, filled: dict[Node, _Filled]) -> None:
    if node.target in (_SELECT, _SLICE):
        _read(node, filled)
        return
    found = None
    if node.target in _SCATTERS:
        found = _written(node, filled)
    elif node.target in _GRADIENTS:
        found = _gradient(node)
    elif node.target in (_COPY, _CLONE) and _is_same(node):
        found = filled.get(node.args[-1])
    elif node.target is _ADD and not node.kwargs:
        found = _added(*map(filled.get, node.args))
    if found is not None:
        filled[node] = found


def _is_same(node: Node) -> bool:
    """Whether a copy has the values of its source, its last argument."""
    source = node.args[-1]
    if not isinstance(source, Node):
        return False
    a, b = node.meta["val"], source.meta.get("val")  # an attribute has none
    return b is not None and (a.dtype, a.shape) == (b.dtype, b.shape) and len(node.args) <= 2


def _written(node: Node, filled: dict[Node, _Filled]) -> _Filled | None:
    x, part, *place = node.args
    found = _place(x.meta.get("val"), place, flat=_SCATTERS[node.target])
    if found is None:
        return None
    dim, start, end = found
    size, known = x.meta["val"].shape[dim], filled.get(x)
    before = known if known is not None and known.dim == dim else _Filled(x, dim, size)
    new = _Part(start, end, _source(part), _SCATTERS[node.target])
    return before.with_part(new) or _Filled(x, dim, size, (new,), 1)


def _gradient(node: Node) -> _Filled | None:
    part, _, *place = node.args
    flat = _GRADIENTS[node.target]
    found = _place(node.meta["val"], place, flat)
    if found is None:
        return None
    dim, start, end = found
    size = node.meta["val"].shape[dim]
    return _Filled(None, dim, size).with_part(_Part(start, end, _source(part), flat))


def _added(one: _Filled | None, other: _Filled | None) -> _Filled | None:
    """Both, where each is zero at the other's parts."""
    if one is None or other is None or one.base is not None or other.base is not None:
        return None
    if (one.dim, one.size) != (other.dim, other.size):
        return None
    parts = sorted((*one.parts, *other.parts), key=lambda p: p.start)
    if any(b.start < a.end for a, b in pairwise(parts)):
        return None
    return replace(one, parts=tuple(parts), writes=one.writes + other.writes)


def _place(x: torch.Tensor | None, place: list, flat: bool) -> tuple[int, int, int] | None:
    """(dimension, start, end) of a part of `x`, of the arguments of select or else slice. None
    where it is not known, empty, or has gaps."""
    if x is None or not x.dim():
        return None
    dim = (place[0] if place else 0) % x.dim()
    size = x.shape[dim]
    first, end, step = (place[1], None, 1) if flat else (*place[1:], *_WHOLE[len(place[1:]) :])
    start = 0 if first is None else first
    end = size if end is None else end
    if step != 1 or not all(isinstance(n, int) for n in (size, start, end)):
        return None
    start, end = (min(n + size if n < 0 else n, size) for n in (start, end))
    end = start + 1 if flat else end
    return (dim, start, end) if 0 <= start < end else None


def _source(value: Node) -> Node:
    """What was copied into a part, in its type and shape."""
    while value.target in (_COPY, _CLONE) and _is_same(value):
        value = value.args[-1]
    return value


def _read(node: Node, filled: dict[Node, _Filled]) -> None:
    """Reads what was written there; what was there before, where nothing was."""
    x, flat = node.args[0], node.target is _SELECT
    what = filled.get(x) if isinstance(x, Node) else None
    found = what and _place(x.meta["val"], list(node.args[1:]), flat)
    if not found or found[0] != what.dim or any(u.op == "output" for u in node.users):
        return
    _, start, end = found
    near = [p for p in what.parts if p.start < end and start < p.end]
    if not near and what.base is not None:
        node.args = (what.base, *node.args[1:])
    elif len(near) == 1 and (near[0].start, near[0].end) == (start, end):
        (part,) = near
        value = part.value if part.flat == flat else _turned(node, part)
        node.replace_all_uses_with(_laid_out_for(node, value))


def _turned(node: Node, part: _Part) -> Node:
    """A part with the dimension that it lacks, or without that of one position."""
    dim = node.args[1] % node.args[0].meta["val"].dim()
    if part.flat:
        return add_call(node, aten.unsqueeze.default, (part.value, dim))
    return add_call(node, _SELECT, (part.value, dim, 0))


def _laid_out_for(node: Node, value: Node) -> Node:
    """`value`, copied where the views that are made of `node` may not be ones of it."""
    made = value.meta["val"]
    if made.is_contiguous() or made.stride() == node.meta["val"].stride():
        return value
    return add_call(node, _CLONE, (value,), memory_format=torch.contiguous_format)


def _is_last(node: Node, filled: dict[Node, _Filled]) -> bool:
    """Whether something needs the whole, and none of it is a later write or sum."""
    return bool(node.users) and not any(_goes_on(node, u, filled) for u in node.users)


def _goes_on(node: Node, user: Node, filled: dict[Node, _Filled]) -> bool:
    if user not in filled or filled[user].dim != filled[node].dim:
        return False
    if user.target in _SCATTERS:
        return user.args[0] is node
    return user.target is _ADD or user.args[-1] is node


def _is_worth_it(node: Node, what: _Filled) -> bool:
    """Several writes, not back to an input (those are done in place)."""
    value = node.meta["val"]
    back = any(u.target is aten.copy_.default for u in node.users)
    whole = what.base is not None or not what.gaps()
    return what.writes > 1 and whole and not back and value.is_contiguous()


def _replace(node: Node, what: _Filled) -> None:
    pieces = list[tuple[int, Node]]()
    for part in what.parts:
        value = part.value
        if part.flat:
            value = add_call(node, aten.unsqueeze.default, (value, what.dim))
        pieces.append((part.start, value))
    for start, end in what.gaps():
        pieces.append((start, add_call(node, _SLICE, (what.base, what.dim, start, end))))
    whole = [value for _, value in sorted(pieces, key=lambda piece: piece[0])]
    made = add_call(node, aten.cat.default, (whole, what.dim))
    made.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(made)

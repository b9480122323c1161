"""Weights that a kernel reads number by number, each a line of channels: lines in memory.

    before: y[n, h, w, c] = ... + x[n, h+1, w+1, c] * v[c, 0, 2, 2]
    after:  t[1, 3, 3, c] = v;  y[n, h, w, c] = ... + x[n, h+1, w+1, c] * t[0, 2, 2, c]

A depthwise convolution (passes/depthwise.py) of an image with its channels innermost would else
load each weight of a channel alone, from a cache line of its own. It comes after the plan, which
would take the copy into its reader again.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Graph, IndexMap, Load, Node, Store
from torchweld.ir.size import hint, product
from torchweld.ir.views import contiguous_strides

_LEAST = 4  # numbers of a channel: fewer are in one piece of 8 or 16 bytes
_LEAST_READS = 32  # of each number: a copy is no gain for what is read once, as corners of boxes


def taps_apart(graph: Graph) -> Graph:
    """`graph` with copies of such weights."""
    fixed = set(graph.inputs) - {n for node in graph.nodes for n in node.writes}
    buffers, nodes = dict(graph.buffers), []
    copies: dict[tuple[str, int], str] = {}
    for node in graph.nodes:
        for name, line in _lines(node, graph, fixed) if isinstance(node, Comp) else ():
            if (name, line) not in copies:
                copy, made = _copy(buffers[name], line, node)
                copies[name, line] = made.name
                buffers[made.name] = made
                nodes.append(copy)
            node = _read(node, name, line, copies[name, line])
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _lines(comp: Comp, graph: Graph, fixed: set[str]) -> list[tuple[str, int]]:
    """The weights that `comp` reads so, and the dimension along which the lines are."""
    found: dict[str, list[IndexMap]] = {}
    for instr in comp.body:
        if isinstance(instr, Load) and instr.buffer in fixed:
            found.setdefault(instr.buffer, []).append(instr.index)
    inner = _innermost(comp, graph)
    lines = {name: _line(graph.buffers[name], maps, inner) for name, maps in found.items()}
    return [
        (name, line) for name, line in lines.items()
        if line is not None and _reads(comp, found[name], graph) >= _LEAST_READS
    ]  # fmt: skip


def _reads(comp: Comp, maps: list[IndexMap], graph: Graph) -> int:
    """How often each number is read, with typical values for symbols."""
    along = frozenset().union(*(place.axes for index in maps for place in index))
    return hint(product(a.extent for a in comp.axes if a.name not in along), graph.hints)


def _innermost(comp: Comp, graph: Graph) -> frozenset[str]:
    """Axes along which what is stored is dense."""
    store = comp.stores[0]
    strides = graph.buffers[store.buffer].strides
    return frozenset().union(*(
        place.axes for place, stride in zip(store.index, strides)
        if stride == 1 and isinstance(place, Affine)
    ))  # fmt: skip


def _line(buffer: Buffer, maps: list[IndexMap], inner: frozenset[str]) -> int | None:
    if not all(isinstance(place, Affine) for index in maps for place in index):
        return None
    moving = {d for index in maps for d, place in enumerate(index) if place.axes}
    if len(moving) != 1 or not all(isinstance(n, int) for n in buffer.shape):
        return None
    (line,) = moving
    numbers = product(n for d, n in enumerate(buffer.shape) if d != line)
    varied = all(index[line].axes & inner for index in maps)
    return line if varied and len(set(maps)) == numbers >= _LEAST else None


def _copy(weight: Buffer, line: int, reader: Comp) -> tuple[Comp, Buffer]:
    order = _order(len(weight.shape), line)
    shape = tuple(weight.shape[d] for d in order)
    name = f"{weight.name}_taps{line}"
    made = replace(weight, name=name, shape=shape, strides=contiguous_strides(shape),
                   frozen=False, slack=0)  # fmt: skip
    names = {d: f"i{d}" for d in order if weight.shape[d] != 1}
    places = {d: axis(names[d]) if d in names else constant(0) for d in order}
    body = BodyBuilder()
    value = body.load(weight.name, tuple(places[d] for d in sorted(order)), weight.dtype)
    axes = tuple(Axis(names[d], weight.shape[d]) for d in order if d in names)
    store = Store(name, tuple(places[d] for d in order), value)
    return Comp(f"{name}_copy", axes, body.body, (store,), reader.origins), made


def _order(rank: int, line: int) -> list[int]:
    return [*(d for d in range(rank) if d != line), line]


def _read(comp: Comp, name: str, line: int, copy: str) -> Node:
    body = tuple(
        replace(i, buffer=copy, index=tuple(i.index[d] for d in _order(len(i.index), line)))
        if isinstance(i, Load) and i.buffer == name else i
        for i in comp.body
    )  # fmt: skip
    return replace(comp, body=body)

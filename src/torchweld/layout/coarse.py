"""Buffers in the shape that a library call reads or writes them in.

    before: store t[g, c, h, w] ...   t is f32[8, 4, 16, 16], and a call reads it as [1, 32, 16, 16]
    after:  store t[0, 4*g+c, h, w]   t is f32[1, 32, 16, 16]

The memory stays as it is: neighbouring dimensions become one, and dimensions of one come and go.
What a convolution writes keeps the number of its dimensions, by which its sides are known; one
that is depthwise may get sides of one, which passes/depthwise.py knows of. What other calls write
keeps its shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torchweld.ir.affine import Affine, constant
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, IndexMap, Load, Node
from torchweld.ir.size import Size, divide
from torchweld.ir.views import contiguous_strides
from torchweld.templates.conv.comp import call_of
from torchweld.templates.conv.depthwise import is_depthwise

_Groups = tuple[tuple[int, ...], ...]  # of each new dimension, the old ones that it is made of


def coarsened(graph: Graph, shapes: Iterable[tuple[str, tuple[Size, ...]]]) -> Graph:
    """`graph` with buffers in the given shapes (name, shape), where every access to them can be
    said so. Inputs keep their shapes."""
    for name, shape in shapes:
        buffer = graph.buffers[name]
        if tuple(buffer.shape) == tuple(shape) or name in graph.inputs:
            continue
        groups = _groups(buffer, shape)
        if groups is not None and _all_affine(graph, name) and _sides_stay(graph, name, shape):
            graph = _reshaped(graph, buffer, shape, groups)
    return graph


def _groups(buffer: Buffer, shape: Sequence[Size]) -> _Groups | None:
    """None unless `buffer` is dense and `shape` joins neighbouring dimensions of it."""
    if buffer.strides != contiguous_strides(buffer.shape):
        return None
    found, at = [], 0
    for extent in shape:
        group, left = [], extent
        while left != 1:
            rest = divide(left, buffer.shape[at]) if at < len(buffer.shape) else None
            if rest is None:
                return None
            group.append(at)
            left, at = rest, at + 1
        found.append(tuple(group))
    return tuple(found) if all(n == 1 for n in buffer.shape[at:]) else None


def _all_affine(graph: Graph, name: str) -> bool:
    comps = [n for n in graph.nodes if isinstance(n, Comp)]
    if any(s.init == name for c in comps for s in c.stores):
        return False
    indices = (a.index for c in comps for a in _accesses(c) if a.buffer == name)
    return all(isinstance(e, Affine) for index in indices for e in index)


def _sides_stay(graph: Graph, name: str, shape: Sequence[Size]) -> bool:
    calls = [call_of(n) for n in graph.nodes if isinstance(n, Extern) and name in n.writes]
    return all(c and (len(c.image.shape) == len(shape) or is_depthwise(c)) for c in calls)


def _accesses(comp: Comp) -> list:
    return [*(i for i in comp.body if isinstance(i, Load)), *comp.stores]


def _reshaped(graph: Graph, buffer: Buffer, shape: tuple[Size, ...], groups: _Groups) -> Graph:
    def moved(index: IndexMap) -> IndexMap:
        return tuple(_joined(index, group, buffer) for group in groups)

    def changed(node: Node) -> Node:
        if not isinstance(node, Comp) or buffer.name not in (*node.reads, *node.writes):
            return node
        body = tuple(
            replace(i, index=moved(i.index)) if getattr(i, "buffer", None) == buffer.name else i
            for i in node.body
        )
        stores = tuple(
            replace(s, index=moved(s.index)) if s.buffer == buffer.name else s for s in node.stores
        )
        return replace(node, body=body, stores=stores)

    made = replace(buffer, shape=shape, strides=contiguous_strides(shape))
    nodes = tuple(map(changed, graph.nodes))
    return replace(graph, nodes=nodes, buffers={**graph.buffers, buffer.name: made})


def _joined(index: IndexMap, group: tuple[int, ...], buffer: Buffer) -> Affine:
    total = constant(0)
    for d in group:
        total = total * buffer.shape[d] + index[d]
    return total

"""Bytes that a node of a graph reads and writes: one count, under the plan's groups, the totals
of a report and the work of a profile, so that they add up.

Each buffer counts once for reading and once for writing, as far as it is touched, in whatever
order: a weight read transposed is no more of it. (What such reading costs in time is the templates'
affair: `pointwise_reduce/price.py`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from torchweld.ir.nodes import (
    Buffer,
    Extern,
    Load,
    Node,
    Store,
    View,
    map_axes,
    operands,
    store_operands,
    value_axes,
    views,
)
from torchweld.ir.size import hint
from torchweld.templates.library.odd_rows import ODD_ROWS
from torchweld.templates.pointwise_reduce.price import bytes_of

Buffers, Hints = Mapping[str, Buffer], Mapping[str, int]


def node_bytes(node: Node, buffers: Buffers, hints: Hints) -> int:
    """Of one run of a kernel or a library call; symbols as at capture."""
    if isinstance(node, Extern):
        return _extern_bytes(node, buffers, hints)
    axes, extents = value_axes(node.body), {a.name: hint(a.extent, hints) for a in node.axes}
    found: dict[tuple[type, str], int] = {}
    for access in (*(i for i in node.body if isinstance(i, Load)), *node.stores):
        buffer = buffers[access.buffer]
        indirect = operands(access) if isinstance(access, Load) else store_operands(access)
        along = map_axes(access.index).union(*(axes[v] for v in indirect))
        points = prod(extents[name] for name in along) * buffer.dtype.bytes
        key = type(access), access.buffer
        found[key] = min(found.get(key, 0) + points, bytes_of(buffer, hints))
    scattered = [s.buffer for s in node.stores if s.combine]
    return sum(found.values()) + sum(found[Store, name] for name in scattered)


def _extern_bytes(node: Extern, buffers: Buffers, hints: Hints) -> int:
    read: dict[str, int] = {}
    for view in views(node.args + tuple(value for _, value in node.kwargs)):
        buffer = buffers[view.buffer]
        most = bytes_of(buffer, hints)
        read[view.buffer] = min(read.get(view.buffer, 0) + _view_bytes(view, buffer, hints), most)
    written = sum(bytes_of(buffers[name], hints) for name in node.writes)
    again = 2 * written if node.target == ODD_ROWS else 0  # its result is moved once more
    return sum(read.values()) + written + again


def _view_bytes(view: View, buffer: Buffer, hints: Hints) -> int:
    """An expanded dimension (stride 0) counts once."""
    sizes = [hint(n, hints) if hint(s, hints) else 1 for n, s in zip(view.shape, view.strides)]
    return prod(sizes) * buffer.dtype.bytes

"""Large results of products whose rows are no multiple of 16 bytes and that the caller sees: logits
of 50257 classes. cuBLAS is slow there, a copy of the whole result needs its memory twice. They
become `torchweld.mm_odd_rows` (runtime/odd_rows.py): parts of the product are made with longer rows
in that end of the result which is still free, and moved to their places.

Measured on an H100, [8192, 768] x [768, 50257] in bfloat16: 6.57 ms by cuBLAS into odd rows, 1.49
by a product of longer rows and a copy, 1.45 in halves; the product of aligned rows alone 0.88.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Buffer, Extern, Graph, Node, View, views

ODD_ROWS = "torchweld.mm_odd_rows"
_MM = "aten.mm.default"
_UNIT = 16  # bytes that rows and columns are to be multiples of
_LEAST_BYTES = 64 << 20  # of a result; a smaller one may be in memory twice
_LEAST_COLUMNS = 4096
_LEAST_ROWS = 256  # that a part should have: fewer keep not all multiprocessors busy


def with_odd_rows(graph: Graph) -> Graph:
    """`graph`, of inference on a GPU, with such products made in parts."""
    returned = {v.buffer for v in views(graph.outputs)}

    def changed(node: Node) -> Node:
        fits = isinstance(node, Extern) and node.target == _MM and node.outputs[0] in returned
        return replace(node, target=ODD_ROWS) if fits and _suits(node, graph) else node

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))


def aligned_columns(columns: int, item_bytes: int) -> int:
    """The first columns of rows of `columns` elements, that many bytes each, that end at a multiple
    of 16 bytes."""
    unit = _UNIT // item_bytes
    return columns // unit * unit


def parts(rows: int, columns: int, pitch: int) -> list[tuple[int, int, int | None]]:
    """(first row, rows, element of the result at which the part is made with rows of `pitch`
    elements, a multiple of 16) for all rows of a dense result. None: the part needs memory of its
    own; the last ones, for which no room is left, of which the first is the longest."""
    found, first = [], 0
    while first < rows:
        left = (rows - first) * columns - _UNIT
        count = left // (columns + pitch) // _LEAST_ROWS * _LEAST_ROWS
        if count < _LEAST_ROWS:
            count = min(_LEAST_ROWS, rows - first)
            found.append((first, count, None))
        else:
            after = (first + count) * columns
            found.append((first, count, -(-after // _UNIT) * _UNIT))
        first += count
    return found


def workspace_bytes(node: Extern, graph: Graph) -> int:
    """What a call allocates beside its result: a part, and the last columns."""
    result = graph.buffers[node.outputs[0]]
    rows, columns = result.shape
    return (min(_LEAST_ROWS, rows) * columns + rows) * result.dtype.bytes


def _suits(node: Extern, graph: Graph) -> bool:
    a, b = node.args
    result = graph.buffers[node.outputs[0]]
    sizes = (*a.shape, *a.strides, *b.shape, *b.strides, a.offset, b.offset)
    if not all(isinstance(n, int) for n in sizes) or result.dtype.bytes != 2:
        return False
    rows, columns = result.shape
    return (
        columns * result.dtype.bytes % _UNIT != 0
        and columns >= _LEAST_COLUMNS
        and rows * columns * result.dtype.bytes >= _LEAST_BYTES
        and result.strides == (columns, 1)
        and _rows_are_aligned(a, a.strides, result)
        and _rows_are_aligned(b, b.strides[::-1], result)
    )


def _rows_are_aligned(view: View, strides: tuple, result: Buffer) -> bool:
    unit = _UNIT // result.dtype.bytes
    return strides[1] == 1 and strides[0] % unit == 0 and view.offset % unit == 0

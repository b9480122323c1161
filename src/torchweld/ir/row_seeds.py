"""Where regions of rows begin: temporaries that are large because of their columns."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from torchweld.ir.nodes import Extern, Graph, views
from torchweld.ir.row_region import product_operands
from torchweld.ir.size import hint

LARGE = 8  # times as many columns as depth: no hidden layer is so wide, vocabularies are


def next_seeds(graph: Graph, tried: Collection[str]) -> tuple[str, ...]:
    """Large temporaries of one number of rows: results of products if there are any."""
    for found in (large_results(graph), _large_operands(graph)):
        names = [n for n in dict.fromkeys(found) if n not in tried]
        if names:
            rows = _rows(graph, names[0])
            return tuple(n for n in names if _rows(graph, n) == rows)
    return ()


def large_results(graph: Graph) -> list[str]:
    """Temporaries that products with a small depth make."""
    held = _held(graph)
    found = []
    for node in graph.nodes:
        operands = product_operands(node)
        if operands and node.outputs[0] not in held:
            depth, columns = (hint(n, graph.hints) for n in operands[2].shape)
            found += [node.outputs[0]] if columns >= LARGE * depth else []
    return [n for n in found if 0 not in graph.buffers[n].shape]


def _large_operands(graph: Graph) -> list[str]:
    """Temporaries of kernels that products with a small result read."""
    held = _held(graph) | {b for n in graph.nodes if isinstance(n, Extern) for b in n.writes}
    found = []
    for node in graph.nodes:
        operands = product_operands(node)
        shape = graph.buffers[operands[1].buffer].shape if operands else ()
        if len(shape) > 1 and 0 not in shape and operands[1].buffer not in held:
            _, left, right = operands
            wide = hint(shape[-1], graph.hints) >= LARGE * hint(right.shape[1], graph.hints)
            found += [left.buffer] if wide else []
    return found


def _held(graph: Graph) -> set[str]:
    return {v.buffer for v in views(graph.outputs)} | {n for n in graph.inputs if n}


def _rows(graph: Graph, name: str) -> object:
    return prod(graph.buffers[name].shape[:-1])

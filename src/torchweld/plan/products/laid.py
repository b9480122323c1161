"""Factors of float32 products that tensor cores cannot take as they lie: copies that lie along the
depth, in lines that begin at multiples of 16 bytes.

    extern dw = mm(dy.T, x)          ->  comp x_along[k, t] = x[t, k]
                                         extern dw = mm(dy.T, x_along.T)

The parts of a right factor (codegen/triton/wide.py) are taken from shared memory along the depth
alone; where it lies along the columns they are turned number by number, in each of its tiles. One
of two factors is enough: `ir/contraction.py` exchanges the sides. Lines that begin anywhere are
read number by number too. A depth that is no multiple of four is filled up with zeros, in both.

Each product is priced with its factors as they lie and with copies, by the library and by a kernel
of ours. Copies are made where it gains at least twice what they cost, once for all products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.core.tf32 import products_have_tf32
from torchweld.ir.nodes import Buffer, Extern, Graph, Node, View
from torchweld.ir.size import Size
from torchweld.ir.views import contiguous_strides
from torchweld.layout.rows import MARGIN, OPERANDS, copy_s, is_row_product
from torchweld.plan.products.padded import product_s
from torchweld.rewrite.flow import mutated_buffers
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import copied_window, operands_of
from torchweld.templates.template import Choose

_VECTOR = 4  # numbers of float32 in 16 bytes


def lay_factors(graph: Graph, table: Target, options: Options, choose: Choose) -> Graph:
    """`graph` with copies of factors of float32 for the products that gain by them."""
    apart = options.numerics != "contract" or not options.fuse or not table.products.wide
    if apart or products_have_tf32():  # which is the library's
        return graph
    made = _Made(graph, mutated_buffers(graph), list(graph.nodes))
    for node in graph.nodes:
        if is_row_product(node) and graph.buffers[node.outputs[0]].dtype == dtypes.f32:
            made.lay(node, table, choose)
    return replace(made.graph, nodes=tuple(made.nodes))


@dataclass(slots=True)
class _Made:
    """A graph in the making. `copies`: what was copied, and the copies."""

    graph: Graph
    changing: frozenset[str]
    nodes: list[Node]
    copies: dict[tuple[View, Size], str] = field(default_factory=dict)

    def lay(self, node: Extern, table: Target, choose: Choose) -> None:
        """The product with those copies that gain most, if they gain enough."""
        now_s = product_s(replace(self.graph, nodes=(node,)), table, choose)
        best, most_s = None, 0.0
        for laid in self._ways(node):
            cost_s = sum(copy_s(b.name, laid.graph, table) for b in laid.new)
            gain_s = now_s - product_s(laid.graph, table, choose) - MARGIN * cost_s
            if gain_s > most_s:
                best, most_s = laid, gain_s
        if best is not None:
            at = self.nodes.index(node)
            self.nodes[at : at + 1] = best.graph.nodes
            self.graph = replace(self.graph, buffers=best.graph.buffers)
            self.copies |= best.copies

    def _ways(self, node: Extern) -> Iterator[_Laid]:
        views, depth = operands_of(node), operands_of(node)[0].shape[-1]
        if not isinstance(depth, int) or any(v.buffer in self.changing for v in views):
            return
        filled = -(-depth // _VECTOR) * _VECTOR
        for sides in ((0, 1),) if filled != depth else ((0,), (1,), (0, 1)):
            laid = _Laid(replace(self.graph, nodes=(node,)), dict(self.copies))
            if all(laid.copy(side, filled) for side in sides):
                yield laid


@dataclass(slots=True)
class _Laid:
    """A product alone, behind copies of its factors. `new`: those that there were not before."""

    graph: Graph
    copies: dict[tuple[View, Size], str]
    new: list[Buffer] = field(default_factory=list)

    def copy(self, side: int, depth: int) -> bool:
        """Whether a factor can be copied (0: the left one), and its depth filled up; then it is."""
        *before, node = self.graph.nodes
        view = operands_of(node)[side]
        along = view if side == 0 else replace(
            view, shape=_swapped(view.shape), strides=_swapped(view.strides))  # fmt: skip
        shape = (*along.shape[:-1], depth)
        if (along, depth) not in self.copies:
            buffers = self.graph.buffers
            name = _free(f"{view.buffer}_along", buffers)
            source = buffers[view.buffer]
            made = replace(source, name=name, shape=shape, strides=contiguous_strides(shape))
            comp = copied_window(f"copy_{name}", along, source, made, node.origins)
            if comp is None:
                return False
            before.append(comp)
            self.new.append(made)
            self.copies[(along, depth)] = name
            self.graph = replace(self.graph, buffers={**buffers, name: made})
        laid = self.graph.buffers[self.copies[(along, depth)]].view
        if side == 1:
            laid = replace(laid, shape=_swapped(laid.shape), strides=_swapped(laid.strides))
        args, at = list(node.args), OPERANDS[node.target][side]
        args[at] = laid
        self.graph = replace(self.graph, nodes=(*before, replace(node, args=tuple(args))))
        return True


def _swapped(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    *batch, rows, columns = sizes
    return (*batch, columns, rows)


def _free(name: str, taken) -> str:
    """`name`, or with a number behind it."""
    names = (name if n == 0 else f"{name}{n}" for n in range(len(taken) + 1))
    return next(n for n in names if n not in taken)

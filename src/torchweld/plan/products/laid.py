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

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import chain, count

from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.core.tf32 import products_have_tf32
from torchweld.ir.nodes import Buffer, Extern, Graph, Node, View, views
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
    made, changing = _Made(graph, table, choose), mutated_buffers(graph)
    for node in graph.nodes:
        wide = is_row_product(node) and graph.buffers[node.outputs[0]].dtype == dtypes.f32
        if wide and changing.isdisjoint(v.buffer for v in operands_of(node)):
            made.nodes += made.laid(node)
        else:
            made.nodes.append(node)
    return replace(graph, nodes=tuple(made.nodes), buffers=made.buffers)


Factor = tuple[View, int]  # along its depth, which is filled up to so many


@dataclass(slots=True)
class _Made:
    """A graph in the making. `copies`: what was copied, and the copies; `known`: what was decided
    for products that are alike."""

    graph: Graph
    table: Target
    choose: Choose
    nodes: list[Node] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(init=False)
    copies: dict[Factor, str] = field(default_factory=dict)
    known: dict[tuple, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.buffers = dict(self.graph.buffers)

    def laid(self, node: Extern) -> list[Node]:
        """The product, behind those copies that gain most, if they gain enough."""
        factors = _factors(node)
        if factors is None:
            return [node]
        key = self._key(node, factors)
        if key not in self.known:
            self.known[key] = self._best(node, factors)
        made = self._with(node, factors, self.known[key]) if self.known[key] else None
        if made is None:
            return [node]
        graph, new = made
        self.copies |= new
        self.buffers |= graph.buffers
        return list(graph.nodes)

    def _key(self, node: Extern, factors: list[Factor]) -> tuple:
        """What is decided depends on nothing else."""
        given = [(replace(v, buffer=""), self.buffers[v.buffer]) for v in views(node.args)]
        layouts = tuple((v, b.shape, b.strides) for v, b in given)
        there = tuple(f in self.copies for f in factors)
        return node.target, node.kwargs, layouts, self.buffers[node.outputs[0]].strides, there

    def _best(self, node: Extern, factors: list[Factor]) -> tuple[int, ...]:
        """The sides to copy (0: left), none of them if none gains enough."""
        (_, depth), _ = factors
        odd = depth != operands_of(node)[0].shape[-1]
        now_s = product_s(self._alone(node), self.table, self.choose)
        best, most_s = (), 0.0
        for sides in ((0, 1),) if odd else ((0,), (1,), (0, 1)):
            made = self._with(node, factors, sides)
            if made is not None:
                graph, new = made
                cost_s = MARGIN * sum(copy_s(n, graph, self.table) for n in new.values())
                gain_s = now_s - product_s(graph, self.table, self.choose) - cost_s
                best, most_s = (sides, gain_s) if gain_s > most_s else (best, most_s)
        return best

    def _alone(self, node: Extern) -> Graph:
        buffers = {n: self.buffers[n] for n in (*node.reads, *node.writes)}
        return replace(self.graph, nodes=(node,), buffers=buffers)

    def _with(
        self, node: Extern, factors: list[Factor], sides: tuple[int, ...]
    ) -> tuple[Graph, dict[Factor, str]] | None:
        """The product alone with copies of these sides, and those that there are not yet; None
        where one cannot be copied."""
        graph, before, new = self._alone(node), [], {}
        buffers, args = dict(graph.buffers), list(node.args)
        for side in sides:
            view, depth = factors[side]
            name = self.copies.get(factors[side]) or new.get(factors[side])
            if name is None:
                source = buffers[view.buffer]
                name = _free(f"{view.buffer}_along", self.buffers, buffers)
                made = _along(name, view, depth, source)
                comp = copied_window(f"copy_{made.name}", view, source, made, node.origins)
                if comp is None:
                    return None
                before.append(comp)
                buffers[name], new[factors[side]] = made, name
            buffers[name] = buffers.get(name) or self.buffers[name]
            at = OPERANDS[node.target][side]
            args[at] = buffers[name].view if side == 0 else _turned(buffers[name].view)
        nodes = (*before, replace(node, args=tuple(args)))
        return replace(graph, nodes=nodes, buffers=buffers), new


def _factors(node: Extern) -> list[Factor] | None:
    """Both factors of a product, along its depth; None where that is not known."""
    left, right = operands_of(node)
    if not isinstance(left.shape[-1], int):
        return None
    filled = -(-left.shape[-1] // _VECTOR) * _VECTOR
    return [(left, filled), (_turned(right), filled)]


def _along(name: str, view: View, depth: int, source: Buffer) -> Buffer:
    """A buffer for a copy of `view`, in lines of so many elements."""
    shape = (*view.shape[:-1], depth)
    strides = contiguous_strides(shape)
    return replace(source, name=name, shape=shape, strides=strides, frozen=False, slack=0)


def _turned(view: View) -> View:
    """The last two dimensions the other way round."""
    return replace(view, shape=_swapped(view.shape), strides=_swapped(view.strides))


def _swapped(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    *batch, rows, columns = sizes
    return (*batch, columns, rows)


def _free(name: str, *taken: Collection[str]) -> str:
    """`name`, or with a number behind it."""
    names = chain([name], (f"{name}{k}" for k in count(1)))
    return next(n for n in names if not any(n in some for some in taken))

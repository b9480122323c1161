"""A part of a graph that works row by row on results that are larger than all around them: the
logits of a vocabulary, what a loss makes of them, and the products that reduce them again.

    mm L[n, v] = x w;   comp s[n] = sum over v of exp L;   comp g[n, v] = exp L / s - hit
    mm dx = g w';       mm dw = g' x                       (rows n: all but dw, which adds them up)

L and g need never be in memory whole: the nodes can be done for some rows, then for others. Found
from the structure alone: the rows that each access touches (`row_map.py`). What reduces over all
rows and is needed for each (a loss whose factor is a sum over a sequence) is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Union

from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Node, View, views
from torchweld.ir.row_map import (
    NotByRows,
    Steps,
    leading_steps,
    reads_rows,
    row_axes,
)
from torchweld.ir.row_parts import Parts, in_parts

_PRODUCTS = {"aten.mm.default": 0, "aten.addmm.default": 1}  # target -> arguments before operands


@dataclass(frozen=True, slots=True)
class RowComp:
    node: Comp
    parts: Parts

    @property
    def steps(self) -> Mapping[str, Steps | None]:
        return self.parts.steps


@dataclass(frozen=True, slots=True)
class RowProduct:
    """Rows of the result are made of rows of the left operand, `left`."""

    node: Extern
    left: View
    result: str

    @property
    def steps(self) -> Mapping[str, Steps | None]:
        return {self.result: (1, 0)}


@dataclass(frozen=True, slots=True)
class RowSum:
    """left [m, rows] times right [rows, n]: every row is added to the same result."""

    node: Extern
    left: View
    right: View
    result: str

    @property
    def steps(self) -> Mapping[str, Steps | None]:
        return {}


Member = Union[RowComp, RowProduct, RowSum]


@dataclass(frozen=True, slots=True)
class Region:
    """`members` in the graph's order. `steps`: how the buffers that they make row by row count
    rows. `wide`: those of them that are large, which nobody else reads."""

    rows: int
    members: tuple[Member, ...]
    steps: Mapping[str, Steps | None]
    wide: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(m.node.name for m in self.members)


@dataclass(slots=True)
class _Search:
    """What is found out about one graph and one number of rows."""

    graph: Graph
    rows: int
    chunks: int
    steps: dict[str, Steps]
    members: dict[str, Member] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def look(self, node: Node) -> None:
        touched = {*node.reads, *node.writes}
        if not touched.intersection(self.steps):
            return
        try:
            member = self._member(node)
        except NotByRows as why:
            self.failed[node.name] = str(why)
            return
        self.members[node.name] = member
        if isinstance(member, RowComp):
            self.steps.update((n, s) for n, s in member.steps.items() if s is not None)

    def _member(self, node: Node) -> Member:
        if isinstance(node, Extern):
            return self._product(node)
        found = reads_rows(node, self.steps)
        if len(found) != 1:
            raise NotByRows(f"{node.name} reads several rows at a point")
        device = self.graph.buffers[node.writes[0]].device
        axes = row_axes(node, found.pop())
        return RowComp(node, in_parts(node, axes, self.steps, device, self.chunks))

    def _product(self, node: Extern) -> Member:
        operands = product_operands(node)
        if operands is None or node.mutates:
            raise NotByRows(f"{node.target} is no product of two matrices")
        bias, left, right = operands
        if bias is not None and (bias.buffer in self.steps or len(bias.shape) > 1):
            raise NotByRows(f"{node.name} adds a matrix")
        (result,) = node.outputs
        places = self._rows_of(left), self._rows_of(right)
        if places == (0, None) or (places == (None, None) and result in self.steps):
            return RowProduct(node, left, result)
        if places in ((1, 0), (1, None), (None, 0)) and bias is None:
            return RowSum(node, left, right, result)
        raise NotByRows(f"{node.name} turns rows to columns")

    def _rows_of(self, view: View) -> int | None:
        """The dimension of a matrix along which the rows are; None if it does not hold them."""
        if view.buffer not in self.steps:
            return None
        row, column = matrix_strides(self.graph.buffers[view.buffer], self.steps[view.buffer])
        given = list(zip(view.shape, view.strides))
        place = next((d for d in (0, 1) if given[d] == (self.rows, row)), None)
        if view.offset != 0 or place is None or given[1 - place][1] not in (column, 0):
            raise NotByRows(f"a part of {view.buffer} is read")
        return place


def matrix_strides(buffer: Buffer, steps: Steps) -> tuple[int, int]:
    """(elements from row to row, from column to column) of a buffer that is a matrix of rows.
    Raises NotByRows if it is none."""
    dims = [d for d in zip(steps, buffer.shape, buffer.strides) if d[1] != 1]
    rates = {stride // step for step, _, stride in dims if step and stride % step == 0}
    columns = [stride for step, _, stride in dims if not step]
    uneven = any(step and stride % step for step, _, stride in dims)
    if uneven or len(rates) != 1 or len(columns) > 1:
        raise NotByRows(f"{buffer.name} is no matrix of rows")
    return rates.pop(), columns[0] if columns else 0


def product_operands(node: Node) -> tuple[View | None, View, View] | None:
    """(bias, left, right) of a product of two matrices that is a library's call."""
    if not isinstance(node, Extern) or node.target not in _PRODUCTS or node.kwargs:
        return None
    before = _PRODUCTS[node.target]
    given = node.args[before : before + 2]
    if node.outputs[0] is None or len(node.args) != before + 2:
        return None
    return (node.args[0] if before else None), *given


def elements(buffer: Buffer) -> int:
    return prod(buffer.shape)


def find_region(graph: Graph, seeds: Iterable[str], chunks: int = 1) -> Region:
    """The region around temporaries with one number of rows. Raises NotByRows, with the reason, if
    something that touches one of its large buffers cannot be done row by row, or there are none."""
    seeds = tuple(seeds)
    if not seeds:
        raise NotByRows("nothing is large")
    shapes = [graph.buffers[s].shape for s in seeds]
    search = _Search(graph, prod(shapes[0][:-1]), chunks,
                     {s: leading_steps(shape) for s, shape in zip(seeds, shapes)})  # fmt: skip
    for node in graph.nodes:
        search.look(node)
    least = min(elements(graph.buffers[s]) for s in seeds) // 2
    made = {s for s in search.steps if s in seeds or _elements_of(s, search) >= least}
    return _closed(search, frozenset(made))


def _elements_of(name: str, search: _Search) -> int:
    buffer = search.graph.buffers.get(name)
    return elements(buffer) if buffer else 0


def _closed(search: _Search, wide: frozenset[str]) -> Region:
    """All that touches the wide buffers, and what of their rows that needs."""
    graph, wanted = search.graph, set()
    held = {v.buffer for v in views(graph.outputs)}
    if wide & held:
        raise NotByRows(f"{', '.join(sorted(wide & held))} is returned")
    for node in graph.nodes:
        if wide.intersection((*node.reads, *node.writes)):
            if node.name not in search.members:
                raise NotByRows(search.failed.get(node.name, f"{node.name} needs all rows"))
            wanted.add(node.name)
    writer = {b: n for n in graph.nodes for b in n.writes}
    late = _late(search, wanted)
    for node in reversed(graph.nodes):
        if node.name in wanted:
            for read in _row_reads(search.members[node.name]):
                if read in late:
                    wanted.add(_row_writer(search, read, writer[read]))
                elif read in writer and late.intersection(writer[read].reads):
                    wanted.add(writer[read].name)  # its early part is needed before the others
    members = tuple(search.members[n.name] for n in graph.nodes if n.name in wanted)
    for member in members:
        early = member.parts.early if isinstance(member, RowComp) else None
        if early and late.intersection(early.reads):
            raise NotByRows(f"{early.name} needs all rows before the next step")
    steps = {b: s for m in members for b, s in m.steps.items()}
    return Region(search.rows, _small_first(members, wide), steps, wide)


def _small_first(members: tuple[Member, ...], wide: frozenset[str]) -> tuple[Member, ...]:
    """In an order in which no large buffer is begun before it must be: then what reads others has
    been done, and their memory is free."""
    made, left, found = set(), list(members), []
    awaited = {b for m in members for b in m.steps}
    while left:
        ready = [m for m in left if not awaited.intersection(_row_reads(m)) - made]
        calm = [m for m in ready if not wide.intersection(m.node.writes)]
        found.append((calm or ready)[0])
        left.remove(found[-1])
        made.update(found[-1].steps)
    return tuple(found)


def _late(search: _Search, core: set[str]) -> set[str]:
    """Buffers that depend on what the nodes `core` do row by row."""
    late: set[str] = set()
    for node in search.graph.nodes:
        member = search.members.get(node.name)
        early = member.parts.early if isinstance(member, RowComp) else None
        if node.name in core or late.intersection(node.reads):
            late.update(set(node.writes) - set(early.writes if early else ()))
    return late


def _row_reads(member: Member) -> tuple[str, ...]:
    return member.parts.rows.reads if isinstance(member, RowComp) else member.node.reads


def _row_writer(search: _Search, buffer: str, node: Node) -> str:
    """The name of the node that makes `buffer` row by row."""
    member = search.members.get(node.name)
    if member is None:
        raise NotByRows(search.failed.get(node.name, f"{node.name} is between"))
    if buffer in search.steps and member.steps.get(buffer) is not None:
        return node.name
    raise NotByRows(f"{buffer} of {node.name} needs all rows before the next step")

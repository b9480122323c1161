"""Reductions over everything, where statistics of rows go into them: of each row first.

    before: comp kl [i, j] { store kl[] sum over i, j of f(x[i, j], m[i]) }    m: of the rows of x
    after:  comp kl_rows [i, j] { store kl_rows[i] sum over j of f(x[i, j], m[i]) }
            comp kl [i] { store kl[] sum over i of kl_rows[i] }

A reduction over both axes has no rows: it reads again what the statistics were made of. That of a
row shares their kernel, and only a number for each row is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchweld.ir.affine import Affine, axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.expand import with_values
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Graph,
    IndexMap,
    Load,
    Node,
    Reduce,
    Scan,
    Store,
    Value,
    needed,
    store_operands,
    value_axes,
)
from torchweld.ir.size import hint, product
from torchweld.ir.views import contiguous_strides
from torchweld.plan.unify import covered, solve
from torchweld.targets.target import Target

_MONOIDS = ("sum", "max", "min")
# By kind of device. Fewer rows leave multiprocessors idle. On one thread, us by rows and at once: a
# mean of log_softmax over [1024, 256] 149, 134, over [1024, 1000] 395, 397; an entropy 447, 520.
_FEWEST_ROWS_A_UNIT = {"cuda": 4, "cpu": 1}
_FEWEST_COLUMNS = {"cuda": 32, "cpu": 512}


def totals_by_rows(graph: Graph, target: Target) -> Graph:
    """`graph` with such reductions in two Comps."""
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    makers: dict[str, Comp] = {}
    for node in graph.nodes:
        columns = _columns(node, makers, graph, target)
        nodes += _in_two(node, columns, buffers) if columns else [node]
        makers |= dict.fromkeys(node.writes, node) if isinstance(node, Comp) else {}
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


# -- which --


def _columns(
    node: Node, makers: Mapping[str, Comp], graph: Graph, target: Target
) -> tuple[str, ...]:
    """The axes to reduce first: those that statistics were made along; none if there are none."""
    total = _total(node) if isinstance(node, Comp) else ()
    for columns in _Walk(node, makers).columns() if len(total) > 1 else ():
        if set(columns) < set(total) and _is_worth(node, columns, graph, target):
            return columns
    return ()


def _is_worth(comp: Comp, columns: Sequence[str], graph: Graph, target: Target) -> bool:
    """Whether rows fill the device, and each is long enough."""
    rows = (a.extent for a in comp.axes if a.name not in columns)
    count, length = product(rows), product(map(comp.extent, columns))
    fewest = target.units * _FEWEST_ROWS_A_UNIT[target.kind]
    enough = hint(count, graph.hints) >= fewest
    return enough and hint(length, graph.hints) >= _FEWEST_COLUMNS[target.kind]


def _total(comp: Comp) -> tuple[str, ...]:
    """The axes that all is reduced along, if every result is made of such reductions alone and none
    of these needs another; else none."""
    reductions = [i for i in comp.body if isinstance(i, (Reduce, Scan))]
    if not reductions or not all(_is_simple(i) for i in reductions):
        return ()
    over = set(reductions[0].axes)
    before = needed(comp.body, (v for i in reductions for v in i.args))
    nested = any(isinstance(comp.body[v], Reduce) for v in before)
    if nested or any(set(i.axes) != over for i in reductions):
        return ()
    return () if any(_varies(comp, s, over) for s in comp.stores) else reductions[0].axes


def _is_simple(instr: Reduce | Scan) -> bool:
    return isinstance(instr, Reduce) and instr.monoid in _MONOIDS


def _varies(comp: Comp, store: Store, over: set[str]) -> bool:
    """Whether a store is of something else than what follows from reductions, or of a special
    kind."""
    axes, wanted = value_axes(comp.body), store_operands(store)
    plain = wanted == (store.value,) and store.combine is None and store.init is None
    made = needed(comp.body, wanted, stop=_reductions(comp))
    reduced = any(isinstance(comp.body[v], Reduce) for v in made)
    return not plain or not reduced or any(axes[v] & over for v in made)


def _reductions(comp: Comp) -> set[Value]:
    return {v for v, i in enumerate(comp.body) if isinstance(i, Reduce)}


@dataclass(slots=True)
class _Walk:
    """From what `comp` reads back through what is pointwise, to statistics. Steps aside (x[i-1])
    are left out: they grow in number with each stencil before, and rows are rows with them."""

    comp: Comp
    makers: Mapping[str, Comp]
    seen: set[tuple[str, IndexMap]] = field(default_factory=set)

    def columns(self) -> Iterator[tuple[str, ...]]:
        """The axes of `comp` that each statistic was made along."""
        todo = list(_read(self.comp, {a.name: axis(a.name) for a in self.comp.axes}))
        while todo:
            place = todo.pop()
            maker = self.makers.get(place[0])
            if maker is None or place in self.seen:
                continue
            self.seen.add(place)
            images = self._images(maker, *place)
            if images is None:
                continue
            along = _reduced(maker)
            if along:
                yield from self._along(maker, along, images)
            else:
                todo += _read(maker, images)

    def _images(self, maker: Comp, buffer: str, index: IndexMap) -> dict[str, Affine] | None:
        """Of the maker's axes over those of `comp`, where it is read at `index`."""
        store = next(s for s in maker.stores if s.buffer == buffer)
        images = solve(store.index, index, maker.extents, self.comp.extents)
        known = isinstance(images, dict) and all(isinstance(i, Affine) for i in images.values())
        return images if known else None

    def _along(
        self, maker: Comp, along: frozenset[str], images: Mapping[str, Affine]
    ) -> Iterator[tuple[str, ...]]:
        rows = {n: i for n, i in images.items() if n not in along}
        taken = covered(rows, maker.extents, self.comp.extents)
        if taken is None or len(rows) + len(along) < len(maker.axes):
            return
        columns = tuple(a for a in self.comp.extents if a not in taken)
        if product(map(maker.extent, along)) == product(map(self.comp.extent, columns)):
            yield columns


def _reduced(comp: Comp) -> frozenset[str]:
    """The axes of the first reduction of `comp`."""
    return next((frozenset(i.axes) for i in comp.body if isinstance(i, Reduce)), frozenset())


def _read(comp: Comp, images: Mapping[str, Affine]) -> Iterator[tuple[str, IndexMap]]:
    """What `comp` reads, and where, at `images` of its axes, without steps aside."""
    for instr in comp.body:
        if isinstance(instr, Load) and all(isinstance(i, Affine) for i in instr.index):
            places = (i.substitute(images) for i in instr.index)
            yield instr.buffer, tuple(replace(place, const=0) for place in places)


# -- the two --


def _in_two(comp: Comp, columns: Sequence[str], buffers: dict[str, Buffer]) -> list[Comp]:
    """`comp` along `columns`, then along the rest; adds what is between to `buffers`."""
    rows = tuple(a for a in comp.axes if a.name not in columns)
    place, device = tuple(axis(a.name) for a in rows), buffers[comp.writes[0]].device
    shape = tuple(a.extent for a in rows)
    parts = {v: f"{comp.name}_rows{k}" for k, v in enumerate(sorted(_reductions(comp)))}
    for v, name in parts.items():
        dtype = comp.body[v].dtype
        buffers[name] = Buffer(name, shape, dtype, contiguous_strides(shape), device)
    return [_of_rows(comp, columns, parts, place), _of_all(comp, rows, parts, place)]


def _of_rows(comp: Comp, columns: Sequence[str], parts: Mapping[Value, str], place) -> Comp:
    b, images = BodyBuilder(), {}
    for v in sorted(needed(comp.body, parts)):
        instr = comp.body[v]
        instr = replace(instr, axes=tuple(columns)) if v in parts else instr
        images[v] = b.emit(with_values(instr, images))
    stores = tuple(Store(name, place, images[v]) for v, name in parts.items())
    return replace(comp, name=f"{comp.name}_rows", body=b.body, stores=stores)


def _of_all(comp: Comp, rows: Sequence[Axis], parts: Mapping[Value, str], place) -> Comp:
    b, images = BodyBuilder(), {}
    names = {a.name for a in rows}
    for v in sorted(needed(comp.body, (s.value for s in comp.stores), stop=parts)):
        instr = comp.body[v]
        if v in parts:
            part = b.load(parts[v], place, instr.dtype, exact=True)
            over = tuple(a for a in instr.axes if a in names)
            images[v] = b.emit(replace(instr, args=(part,), axes=over))
        else:
            images[v] = b.emit(with_values(instr, images))
    stores = tuple(replace(s, value=images[s.value]) for s in comp.stores)
    return replace(comp, axes=tuple(rows), body=b.body, stores=stores)

"""Scans along an axis that is long for its number of rows, in stretches.

    before: comp y [i, j:4000000] { store y[i, j] scan of f(x[i, j]) over j }
    after:  comp y_totals [i, s:977, k:4096] { store t[i, s] reduction of f(x[i, 4096*s+k]) over k }
            comp y_before [i, s:977] { store b[i, s] scan of t[i, s-1] over s }
            comp y [i, s:977, k:4096] { store y[i, 4096*s+k] b[i, s] + scan of f(...) over k }

One program goes along a whole row otherwise: of a lone row, on one multiprocessor of many. This is
the scan in three phases (reduce, then scan; Merrill and Garland, 2016): what is scanned is read
twice. Results are sums of sums, in another order than one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.monoid import identity_of
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Load,
    Reduce,
    Scan,
    Store,
    Value,
    needed,
    value_axes,
)
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, substitute_axes, with_operands
from torchweld.ir.views import contiguous_strides

_OPERATION = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
_LENGTHS = (256, 1024, 4096)  # of stretches: tiles that a program holds
_FEWEST = 4  # stretches


@dataclass(frozen=True, slots=True)
class Stretches:
    """What stands for a scan, in order, and the buffers between."""

    comps: tuple[Comp, ...]
    buffers: Mapping[str, Buffer]


# -- which --


def _may_be(comp: Comp) -> bool:
    """Whether all it does beside pointwise work are scans along one axis of known length, none of
    the result of another, and it overwrites nothing that it reads, which is read twice then."""
    scans = _scans(comp)
    if not scans or any(isinstance(i, Reduce) for i in comp.body):
        return False
    plain = all(s.combine is None and s.init is None for s in comp.stores)
    plain &= set(comp.reads).isdisjoint(comp.writes)
    alike = len({s.axis for s in scans.values()}) == 1
    nested = needed(comp.body, (s.arg for s in scans.values())) & scans.keys()
    known = all(s.monoid in _OPERATION for s in scans.values())
    static = all(isinstance(a.extent, int) for a in comp.axes)
    return plain and alike and known and static and not nested


def _scans(comp: Comp) -> dict[Value, Scan]:
    return {v: i for v, i in enumerate(comp.body) if isinstance(i, Scan)}


def ways(comp: Comp, buffers: Mapping[str, Buffer]) -> Iterator[Stretches]:
    """`comp` in stretches of several lengths; none if it is no such scan, or too short for them."""
    if not _may_be(comp):
        return
    (along,) = {s.axis for s in _scans(comp).values()}
    for length in _LENGTHS:
        if comp.extent(along) >= _FEWEST * length:
            yield _in_stretches(comp, along, length, buffers)


# -- the three --


def _in_stretches(
    comp: Comp, along: str, length: int, buffers: Mapping[str, Buffer]
) -> Stretches:
    count = -(-comp.extent(along) // length)
    axes = {a.name for a in comp.axes}
    outer, inner = (_free(name, axes) for name in (f"{along}_s", f"{along}_k"))
    walk = _Walk(comp, along, Axis(outer, count), Axis(inner, length))
    scans = _scans(comp)
    totals = {v: f"{comp.name}_totals{v}" for v in scans}
    before = {v: f"{comp.name}_before{v}" for v in scans}
    kinds = {name: scans[v].dtype for names in (totals, before) for v, name in names.items()}
    shape = (*(a.extent for a in walk.rows), count)
    device, strides = buffers[comp.writes[0]].device, contiguous_strides(shape)
    made = {name: Buffer(name, shape, kind, strides, device) for name, kind in kinds.items()}
    comps = walk.totals(totals), walk.before(totals, before), walk.whole(before)
    return Stretches(comps, made)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


@dataclass(frozen=True, slots=True)
class _Walk:
    """Along `along` of `comp`, as `inner` points of each `outer` stretch."""

    comp: Comp
    along: str
    outer: Axis
    inner: Axis

    @property
    def rows(self) -> list[Axis]:
        return [a for a in self.comp.axes if a.name != self.along]

    @property
    def place(self) -> Affine:
        return axis(self.outer.name) * self.inner.extent + axis(self.inner.name)

    @property
    def stretch(self) -> tuple[Affine, ...]:
        """Where the number of a stretch stands."""
        return (*(axis(a.name) for a in self.rows), axis(self.outer.name))

    def totals(self, names: Mapping[Value, str]) -> Comp:
        """Of each stretch. That of the last is nobody's."""
        body, stores = BodyBuilder(), []
        values = self._moved(body, {})
        for v, scan in _scans(self.comp).items():
            total = body.reduce(scan.monoid, (values[scan.arg],), (self.inner.name,))
            stores.append(Store(names[v], self.stretch, total))
        axes = (*self.rows, self.outer, self.inner)
        name = f"{self.comp.name}_totals"
        return drop_dead(Comp(name, axes, body.body, tuple(stores), self.comp.origins))

    def before(self, totals: Mapping[Value, str], names: Mapping[Value, str]) -> Comp:
        """What comes before each stretch."""
        body, stores = BodyBuilder(), []
        first = body.index(axis(self.outer.name))
        later = body.op("gt", first, body.index(constant(0)))
        place = (*self.stretch[:-1], axis(self.outer.name) + constant(-1))
        for v, scan in _scans(self.comp).items():
            fill = identity_of(scan.monoid, scan.dtype)
            value = body.load(totals[v], place, scan.dtype, later, fill)
            scanned = body.scan(scan.monoid, value, self.outer.name)
            stores.append(Store(names[v], self.stretch, scanned))
        axes = (*self.rows, self.outer)
        name = f"{self.comp.name}_before"
        return Comp(name, axes, body.body, tuple(stores), self.comp.origins)

    def whole(self, before: Mapping[Value, str]) -> Comp:
        """The Comp, whose scans begin with what is before their stretch."""
        body = BodyBuilder()
        values = self._moved(body, before)
        inside = self._inside(body)
        stores = []
        for store in self.comp.stores:
            moved = move_store(store, values.__getitem__, {self.along: self.place})
            stores.append(replace(moved, guard=body.both(moved.guard, inside)))
        axes = tuple(
            one for a in self.comp.axes
            for one in ((self.outer, self.inner) if a.name == self.along else (a,))
        )  # fmt: skip
        return replace(self.comp, axes=axes, body=body.body, stores=tuple(stores))

    def _moved(self, body: BodyBuilder, before: Mapping[Value, str]) -> list[Value]:
        """The values of the Comp; of scans of which no `before` is told, what is scanned. Nothing
        is read behind the last element."""
        values: list[Value] = []
        for v, (instr, axes) in enumerate(zip(self.comp.body, value_axes(self.comp.body))):
            if isinstance(instr, Scan):
                values.append(self._scanned(body, values[instr.arg], instr, before.get(v)))
                continue
            made = substitute_axes(instr, {self.along: self.place})
            made = with_operands(made, values.__getitem__)
            if isinstance(made, Load) and self.along in axes:  # at a computed place, too
                made = replace(made, guard=body.both(made.guard, self._inside(body)))
            values.append(body.emit(made))
        return values

    def _scanned(self, body: BodyBuilder, arg: Value, scan: Scan, before: str | None) -> Value:
        if before is None:
            return arg
        own = body.scan(scan.monoid, arg, self.inner.name)
        return body.op(_OPERATION[scan.monoid], body.load(before, self.stretch, scan.dtype), own)

    def _inside(self, body: BodyBuilder) -> Value | None:
        """Whether there is such an element; None: always."""
        extent = self.comp.extent(self.along)
        if extent == self.outer.extent * self.inner.extent:
            return None
        return body.op("lt", body.index(self.place), body.index(constant(extent)))

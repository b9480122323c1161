"""Memory accesses of a kernel as flat offsets, over as few axes as possible.

A `Comp` indexes buffers per dimension. A kernel wants element offsets: each buffer's strides are
folded into one affine map over axes (plus computed indices times their strides). Then, within rows
and within columns apart,

    axes of extent one are dropped      (one row and one column axis stay where there are any)
    i, j -> one axis of extent I*J      where in every map  coefficient(i) == coefficient(j) * J
    axes are ordered outermost first    by stride; innermost where most bytes are contiguous

so that a contiguous pointwise kernel of any rank is one flat loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from torchweld.core.errors import InvalidIR
from torchweld.ir import affine, size
from torchweld.ir.affine import Affine
from torchweld.ir.frame import Frame, frame_of
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Const,
    Index,
    IndexMap,
    Instr,
    Load,
    Op,
    Reduce,
    Ref,
    Scan,
    Value,
    value_axes,
)
from torchweld.ir.size import Size


@dataclass(frozen=True, slots=True)
class Access:
    """Element `offset + sum(value * stride for value, stride in refs)` of `buffer`, of `bytes`.
    `slack`: as the buffer's."""

    buffer: str
    offset: Affine
    refs: tuple[tuple[Value, Size], ...]
    bytes: int
    slack: int = 0


@dataclass(frozen=True, slots=True)
class Accesses:
    """`comp` over merged, ordered axes: its `Index` maps and the axes of its reductions are
    rewritten, and the index of a load or store is (offset, *Refs), so that `value_axes` holds.
    `loads`: by value; `stores`: parallel to `comp.stores`."""

    comp: Comp
    frame: Frame
    loads: Mapping[Value, Access]
    stores: tuple[Access, ...]

    @property
    def all(self) -> tuple[Access, ...]:
        return (*self.loads.values(), *self.stores)

    def contiguous_bytes(self, axis: str, hints: Mapping[str, int] | None = None) -> int:
        """Bytes that the kernel's loads and stores with stride one along `axis` touch."""
        return sum(self.touched(a, hints) for a in self.all if a.offset.coefficient(axis) == 1)

    def strided_bytes(self, axis: str, hints: Mapping[str, int] | None = None) -> int:
        """Bytes that those with a stride beyond one along `axis` touch."""
        far = [a for a in self.all if a.offset.coefficient(axis) not in (0, 1)]
        return sum(self.touched(a, hints) for a in far)

    def touched(self, access: Access, hints: Mapping[str, int] | None = None) -> int:
        """Bytes of one access over all its points, those of computed indices among them: a
        broadcast vector weighs little."""
        known = value_axes(self.comp.body) if access.refs else ()
        along = access.offset.axes.union(*(known[v] for v, _ in access.refs))
        extents = [a.extent for a in self.comp.axes if a.name in along]
        return size.hint(size.product(extents), hints or {}) * access.bytes


def addressed(
    comp: Comp, buffers: Mapping[str, Buffer], hints: Mapping[str, int] | None = None
) -> Accesses:
    """The accesses of a planned Comp. `hints`: typical values of symbols.

    Raises InvalidIR if `comp` has no frame.
    """
    frame = frame_of(comp)
    if frame is None:
        raise InvalidIR(f"{comp.name} is not one kernel", do="cut it: reductions need common rows")
    accesses = _flat(comp, frame, buffers)
    for axis in (*frame.rows, *frame.columns):
        accesses = _drop_unit(accesses, axis)
    while (pair := next(_mergeable(accesses), None)) is not None:
        accesses = _merge(accesses, *pair)
    return _ordered(accesses, hints or {})


def unmerged(comp: Comp, buffers: Mapping[str, Buffer]) -> Accesses:
    """The accesses of a Comp of a form of its own, all its axes as they are."""
    return _flat(comp, Frame(tuple(a.name for a in comp.axes), ()), buffers)


def linear(accesses: Accesses, index: Affine, axes: tuple[str, ...]) -> Size | None:
    """f where, along `axes` (outermost first), `index` is f times their linear index."""
    if not axes:
        return 0
    factor = step = index.coefficient(axes[-1])
    for axis in reversed(axes):
        if index.coefficient(axis) != step:
            return None
        step = step * accesses.comp.extent(axis)
    return factor


def sorts(comp: Comp) -> bool:
    """Whether rows are put in order, which needs all of them at once."""
    return any(isinstance(i, Scan) and i.monoid == "sort" for i in comp.body)


def turned(accesses: Accesses) -> Accesses | None:
    """The columns counted from the last one, if memory is read and written backwards along them:
    loads are wide forwards only. Scans then run from the end. None for others."""
    scanned = {i.axis for i in accesses.comp.body if isinstance(i, Scan)}
    if len(scanned) != 1 or scanned != set(accesses.frame.columns) or sorts(accesses.comp):
        return None
    (axis,) = scanned
    steps = [c for a in accesses.all if (c := a.offset.coefficient(axis)) != 0]
    if not steps or not all(isinstance(c, int) and c < 0 for c in steps):
        return None
    image = {axis: affine.axis(axis) * -1 + (accesses.comp.extent(axis) - 1)}
    columns = accesses.frame.columns
    return _renamed(accesses, accesses.comp.axes, image, columns, columns)


def _flat(comp: Comp, frame: Frame, buffers: Mapping[str, Buffer]) -> Accesses:
    loads = {
        v: _access(i.buffer, i.index, buffers, comp.body)
        for v, i in enumerate(comp.body)
        if isinstance(i, Load)
    }
    stores = tuple(_access(s.buffer, s.index, buffers, comp.body) for s in comp.stores)
    return _rewritten(Accesses(comp, frame, loads, stores))


def _access(
    name: str, index: IndexMap, buffers: Mapping[str, Buffer], body: Sequence[Instr]
) -> Access:
    buffer, offset, refs = buffers[name], affine.constant(0), []
    for entry, stride in zip(index, buffer.strides, strict=True):
        if isinstance(entry, Ref):
            refs.append((entry.value, stride))
        else:
            offset = offset + entry * stride
    refs = tuple(_undivided(refs, body))
    return Access(name, offset, refs, buffer.dtype.bytes, buffer.slack)


def _undivided(refs: list[tuple[Value, Size]], body: Sequence[Instr]) -> list[tuple[Value, Size]]:
    """p / n with a stride of n times that of p modulo n is p: a flat index of dimensions that are
    contiguous."""
    for quotient, rest in permutations(refs, 2):
        above, below = body[quotient[0]], body[rest[0]]
        count = _divisor(above, below, body)
        if count is not None and quotient[1] == rest[1] * count:
            others = [r for r in refs if r not in (quotient, rest)]
            return _undivided([*others, (above.args[0], rest[1])], body)
    return refs


def _divisor(above: Instr, below: Instr, body: Sequence[Instr]) -> int | None:
    """The number by which one is the quotient and the other the remainder of the same."""
    if not (isinstance(above, Op) and isinstance(below, Op)) or above.args != below.args:
        return None
    by = body[above.args[-1]]
    return by.value if (above.name, below.name) in _DIGITS and isinstance(by, Const) else None


_DIGITS = {("floor_div", "remainder"), ("trunc_div", "fmod")}


def _rewritten(accesses: Accesses) -> Accesses:
    """The Comp's indices replaced by (offset, *Refs)."""
    body = list(accesses.comp.body)
    for value, access in accesses.loads.items():
        body[value] = replace(body[value], index=_index(access))
    stores = tuple(
        replace(s, index=_index(a)) for s, a in zip(accesses.comp.stores, accesses.stores)
    )
    return replace(accesses, comp=replace(accesses.comp, body=tuple(body), stores=stores))


def _index(access: Access) -> IndexMap:
    return (access.offset, *(Ref(value) for value, _ in access.refs))


def _maps(accesses: Accesses) -> Iterator[Affine]:
    yield from (a.offset for a in accesses.all)
    yield from (i.map for i in accesses.comp.body if isinstance(i, Index))


def _drop_unit(accesses: Accesses, axis: str) -> Accesses:
    group = accesses.frame.rows if axis in accesses.frame.rows else accesses.frame.columns
    if accesses.comp.extent(axis) != 1 or len(group) == 1:
        return accesses
    axes = tuple(a for a in accesses.comp.axes if a.name != axis)
    return _renamed(
        accesses, axes, {axis: affine.constant(0)}, tuple(n for n in group if n != axis), group
    )


def _mergeable(accesses: Accesses) -> Iterator[tuple[str, str]]:
    maps = tuple(_maps(accesses))
    for group in (accesses.frame.rows, accesses.frame.columns):
        for outer in group:
            for inner in group:
                extent = accesses.comp.extent(inner)
                if outer != inner and all(
                    m.coefficient(outer) == m.coefficient(inner) * extent for m in maps
                ):
                    yield outer, inner


def _merge(accesses: Accesses, outer: str, inner: str) -> Accesses:
    """outer, inner -> the axis `inner`, of extent outer * inner."""
    comp = accesses.comp
    merged = Axis(inner, comp.extent(outer) * comp.extent(inner))
    axes = tuple(merged if a.name == inner else a for a in comp.axes if a.name != outer)
    group = accesses.frame.rows if outer in accesses.frame.rows else accesses.frame.columns
    images = {outer: affine.constant(0)}
    return _renamed(accesses, axes, images, tuple(n for n in group if n != outer), group)


def _renamed(
    accesses: Accesses,
    axes: tuple[Axis, ...],
    images: Mapping[str, Affine],
    kept: tuple[str, ...],
    group: tuple[str, ...],
) -> Accesses:
    """Axes replaced by their images in every map; `group` (rows or columns) becomes `kept`."""
    comp, frame = accesses.comp, accesses.frame
    rows = kept if group == frame.rows else frame.rows
    columns = kept if group == frame.columns else frame.columns

    def image(instr):
        if isinstance(instr, Index):
            return replace(instr, map=instr.map.substitute(images))
        if isinstance(instr, Reduce) and set(instr.axes) == set(group):
            return replace(instr, axes=kept)
        return instr

    def moved(access: Access) -> Access:
        return replace(access, offset=access.offset.substitute(images))

    body = tuple(image(i) for i in comp.body)
    return _rewritten(
        Accesses(
            replace(comp, axes=axes, body=body),
            Frame(rows, columns, frame.column_reductions),
            {v: moved(a) for v, a in accesses.loads.items()},
            tuple(moved(a) for a in accesses.stores),
        )
    )


def _ordered(accesses: Accesses, hints: Mapping[str, int]) -> Accesses:
    rows = _by_stride(accesses, accesses.frame.rows, hints)
    columns = _by_stride(accesses, accesses.frame.columns, hints)
    axes = tuple(next(a for a in accesses.comp.axes if a.name == n) for n in (*rows, *columns))
    frame = Frame(rows, columns, accesses.frame.column_reductions)
    return replace(accesses, comp=replace(accesses.comp, axes=axes), frame=frame)


def _by_stride(
    accesses: Accesses, group: tuple[str, ...], hints: Mapping[str, int]
) -> tuple[str, ...]:
    """Outermost first. Stable: equal axes keep the Comp's order."""

    known = value_axes(accesses.comp.body)

    def span(axis: str) -> int:
        """Bytes from one point to the next; of a computed index, those of a step."""
        moved = 0
        for a in accesses.all:
            steps = [a.offset.coefficient(axis), *(s for v, s in a.refs if axis in known[v])]
            moved += sum(abs(size.hint(s, hints)) for s in steps) * a.bytes
        return moved

    def contiguity(axis: str) -> tuple[int, int]:
        """What is contiguous along none is nearest together along the innermost."""
        contiguous = accesses.contiguous_bytes(axis, hints)
        return contiguous, -accesses.strided_bytes(axis, hints) if contiguous else -span(axis)

    if len(group) < 2:
        return group
    innermost = max(reversed(group), key=contiguity)
    return (*sorted((a for a in group if a != innermost), key=span, reverse=True), innermost)

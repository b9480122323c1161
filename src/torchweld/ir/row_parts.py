"""A Comp that works on rows, in three parts, so that its rows can be done a few at a time.

    early   what does not depend on the rows that are made a few at a time
    rows    what each row gives, for some of the rows
    final   what follows a reduction over all rows: per-row values are kept, and reduced once

    before: comp c [i, j] { m = max over j of x[i, j]; store y[i] m; store z[] sum over i of m }
    rows:   comp c [i, j] { m = max over j of x[i, j]; store y[i] m; store r[i] m }
    final:  comp c [i] { store z[] sum over i of r[i] }

A reduction over rows that leaves columns (a bias's gradient) is done within some rows first; the
final part reduces what those gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from torchweld.ir.affine import Affine, axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.monoid import TABLE
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Index,
    Load,
    Reduce,
    Store,
    Value,
    map_axes,
    needed,
    store_operands,
    value_axes,
)
from torchweld.ir.row_map import (
    NotByRows,
    RowAxis,
    Steps,
    depends,
    row_reductions,
    written_steps,
)
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, with_operands
from torchweld.ir.views import contiguous_strides

CHUNK = "chunk"  # the axis along which the final part finds one value of each chunk


@dataclass(frozen=True, slots=True)
class Parts:
    """`steps`: of the buffers that `rows` writes; None for those with one value a chunk. `buffers`:
    new ones, between `rows` and `final`, whole."""

    early: Comp | None
    rows: Comp
    final: Comp | None
    axes: tuple[RowAxis, ...]
    steps: Mapping[str, Steps | None]
    buffers: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the chunks keep of a reduction over rows: `value` of the row part, stored to `store`;
    the final part reads it at `read` and reduces over `axes`."""

    store: Store
    buffer: Buffer
    steps: Steps | None
    axes: tuple[str, ...]


class _Splitter:
    def __init__(self, comp: Comp, axes: tuple[RowAxis, ...], late: Sequence[bool], chunks: int):
        self.comp, self.axes, self.late, self.chunks = comp, axes, late, chunks
        self.names = frozenset(a.name for a in axes)
        self.spread = value_axes(comp.body)
        self.cuts = row_reductions(comp, axes, late)
        self.to = BodyBuilder()  # the row part: the whole body, and what is kept
        self.at = [self.to.emit(i) for i in comp.body]

    def final_values(self, store: Store) -> set[Value]:
        """What the final part computes for a store; the reductions over rows that it begins with
        are among them. Empty for a store of rows."""
        behind = needed(self.comp.body, store_operands(store), stop=self.cuts)
        if not behind.intersection(self.cuts):
            return set()
        loads = (v for v in behind - set(self.cuts) if isinstance(self.comp.body[v], Load))
        if any(self.late[v] for v in loads):
            raise NotByRows(f"{self.comp.name}: a row is needed beside a reduction over all rows")
        return behind

    def check_rows(self, values: Iterable[Value]) -> None:
        """No reduction over all rows is needed for one row."""
        for value in needed(self.comp.body, values):
            instr = self.comp.body[value]
            if isinstance(instr, Reduce) and self.names.intersection(instr.axes):
                raise NotByRows(f"{self.comp.name}: a reduction over all rows is needed for each")

    def kept(self, cut: Value, device: str) -> _Kept:
        instr = self.comp.body[cut]
        if TABLE[instr.monoid].results != 1:
            raise NotByRows(f"{self.comp.name}: {instr.monoid} over rows")
        self.check_rows(instr.args)
        spread = self.spread[instr.args[0]]
        if not spread >= self.names:
            raise NotByRows(f"{self.comp.name}: a reduction over rows that are alike")
        name = f"{self.comp.name}_{cut}"
        if spread - self.names <= set(instr.axes):
            return self._row_values(instr, name, device)
        return self._chunk_values(instr, cut, name, device)

    def _row_values(self, instr: Reduce, name: str, device: str) -> _Kept:
        """One value a row."""
        inner = tuple(a for a in instr.axes if a not in self.names)
        value = self.at[instr.args[0]]
        value = self.to.reduce(instr.monoid, (value,), inner) if inner else value
        shape = tuple(a.extent for a in self.axes)
        store = Store(name, tuple(axis(a.name) for a in self.axes), value)
        outer = tuple(a for a in instr.axes if a in self.names)
        steps = tuple(a.step for a in self.axes)
        return _Kept(store, _dense(name, shape, instr.dtype, device), steps, outer)

    def _chunk_values(self, instr: Reduce, cut: Value, name: str, device: str) -> _Kept:
        """One value a chunk, for each column that is left."""
        if not self.names <= set(instr.axes):
            raise NotByRows(f"{self.comp.name}: a reduction over some of the rows")
        left = [a for a in self.comp.axes if a.name in self.spread[cut]]
        shape = (self.chunks, *(a.extent for a in left))
        store = Store(name, (Affine(), *(axis(a.name) for a in left)), self.at[cut])
        return _Kept(store, _dense(name, shape, instr.dtype, device), None, (CHUNK,))


def in_parts(
    comp: Comp, axes: tuple[RowAxis, ...], known: Mapping[str, Steps], device: str, chunks: int = 1
) -> Parts:
    """The parts of a Comp whose rows are along `axes`; `known`: the buffers that are made a few
    rows at a time. Raises NotByRows where it has none."""
    late = depends(comp, known)
    split = _Splitter(comp, axes, late, chunks)
    early, rows, final = [], [], []
    for store in comp.stores:
        is_late = store.buffer in known or any(late[v] for v in store_operands(store))
        behind = split.final_values(store) if is_late else set()
        kind = final if behind else rows if is_late else early
        kind.append(store)
    steps = {s.buffer: _steps_of(s, split) for s in rows}
    cuts = sorted(set(chain.from_iterable(map(split.final_values, final))).intersection(split.cuts))
    kept = {cut: split.kept(cut, device) for cut in cuts}
    steps |= {k.buffer.name: k.steps for k in kept.values()}
    stores = (*(move_store(s, split.at.__getitem__, {}) for s in rows),
              *(k.store for k in kept.values()))  # fmt: skip
    if not stores:
        raise NotByRows(f"{comp.name}: nothing of it is done by rows")
    return Parts(
        _pruned(replace(comp, stores=tuple(early), name=f"{comp.name}_early")) if early else None,
        _pruned(replace(comp, body=split.to.body, stores=stores)),
        _final(comp, final, kept, chunks) if final else None,
        axes, steps, tuple(k.buffer for k in kept.values()),
    )  # fmt: skip


def _steps_of(store: Store, split: _Splitter) -> Steps:
    if store.combine is not None or store.guard is not None:
        raise NotByRows(f"{split.comp.name}: {store.buffer} is written in parts")
    split.check_rows(store_operands(store))
    return written_steps(store, split.axes)


def _final(comp: Comp, stores: Iterable[Store], kept: Mapping[Value, _Kept], chunks: int) -> Comp:
    to, at = BodyBuilder(), {}
    wanted = needed(comp.body, chain.from_iterable(map(store_operands, stores)), stop=kept)
    for value in sorted(wanted):
        if value in kept:
            at[value] = _reduced(to, comp.body[value], kept[value])
        else:
            at[value] = to.emit(with_operands(comp.body[value], at.__getitem__))
    axes = comp.axes
    if any(CHUNK in k.axes for k in kept.values()):
        axes = (*axes, Axis(CHUNK, chunks))
    moved = tuple(move_store(s, at.__getitem__, {}) for s in stores)
    name = f"{comp.name}_final"
    return _pruned(replace(comp, name=name, axes=axes, body=to.body, stores=moved))


def _reduced(to: BodyBuilder, instr: Reduce, kept: _Kept) -> Value:
    index = (axis(CHUNK), *kept.store.index[1:]) if kept.steps is None else kept.store.index
    value = to.load(kept.buffer.name, index, instr.dtype)
    return to.reduce(instr.monoid, (value,), kept.axes)


def _dense(name: str, shape: tuple[int, ...], dtype, device: str) -> Buffer:
    return Buffer(name, shape, dtype, contiguous_strides(shape), device)


def _pruned(comp: Comp) -> Comp:
    """Without values that nothing uses, and axes that nothing runs along."""
    comp = drop_dead(comp)
    used = {a for s in comp.stores for a in map_axes(s.index)}
    for instr in comp.body:
        if isinstance(instr, Load):
            used |= map_axes(instr.index)
        elif isinstance(instr, Index):
            used |= instr.map.axes
        used.update(getattr(instr, "axes", ()))
        used.add(getattr(instr, "axis", None))
    return replace(comp, axes=tuple(a for a in comp.axes if a.name in used))

"""Rows of which a lane across them takes most elements, turned in registers.

    for i: y[20*i] = a(x[20*i]);  y[20*i + 1] = b(x[20*i], x[20*i + 1]);  ...
    ->  for blocks of i: { t = turned x[..];  for i: o[0][i] = a(t[0][i]); ...;  y[..] = o turned }

Such are the steps of a recurrence that lie beside each other. gcc would load and store the elements
of each vector one by one. Rows of two to four it turns itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir.access import Access
from torchweld.ir.affine import Affine
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.phases import phases
from torchweld.templates.pointwise_reduce.cpu.segments import segments
from torchweld.templates.pointwise_reduce.cpu.values import Texts

_SHORTEST, _LONGEST = 5, 64  # elements from a row to the next
_MOST_BYTES = 1 << 14  # of all tiles: half of a first-level cache
_BLOCKS = (64, 32, 16)
FROM, TO = "from", "to"


@dataclass(frozen=True, slots=True)
class Rows:
    """Elements of `length` that follow each other from `start` on, of a buffer's rows that are
    `pitch` apart. `columns`: the loads, or positions of stores, and which of them each is."""

    name: str
    buffer: str
    start: Affine
    pitch: int
    length: int
    columns: dict[int, int] = field(default_factory=dict)
    stored: bool = False

    def element(self, number: int, name: str) -> str:
        return f"{self.name}[{self.columns[number]}][{name} - {FROM}]"


def turned_rows(k: Kernel) -> tuple[Rows, ...]:
    """Those of a pointwise kernel's lane; none where a row is too long for tiles."""
    comp, lane = k.comp, k.schedule.nest[-1:]
    other = k.row_lane or k.schedule.abreast or k.staged or k.tiles or k.frame.columns
    if not lane or other or set(comp.reads) & set(comp.writes) or phases(k) or segments(k):
        return ()
    loads = ((v, a) for v, a in k.accesses.loads.items() if k.body[v].guard is None)
    plain = (s.guard is None and s.combine is None for s in comp.stores)
    stores = ((n, a) for (n, a), good in zip(enumerate(k.accesses.stores), plain) if good)
    found = (*_rows(k, loads, stored=False), *_rows(k, stores, stored=True))
    return found if found and rows_of_block(found) else ()


def rows_of_block(found: tuple[Rows, ...]) -> int:
    """How many are turned together; 0 if too few would be."""
    each = sum(4 * r.length for r in found)
    return next((n for n in _BLOCKS if n * each <= _MOST_BYTES), 0)


def _rows(k: Kernel, accesses: Iterator[tuple[int, Access]], stored: bool) -> Iterator[Rows]:
    lane, groups = k.schedule.nest[-1], defaultdict(dict)
    for number, access in accesses:
        pitch, const = access.offset.coefficient(lane), access.offset.const
        known = isinstance(pitch, int) and isinstance(const, int) and not access.refs
        if known and k.kinds[access.buffer] == dtypes.f32 and _SHORTEST <= pitch <= _LONGEST:
            groups[access.buffer, access.offset + (-const), pitch][number] = const
    for (buffer, start, pitch), found in groups.items():
        low, length = min(found.values()), max(found.values()) - min(found.values()) + 1
        count = len(set(found.values()))
        whole = count == len(found) == length if stored else 2 * count >= length
        if _SHORTEST <= length <= pitch and whole:
            columns = {number: const - low for number, const in found.items()}
            name = f"{'w' if stored else 'r'}{min(found)}"
            yield Rows(name, buffer, start + low, pitch, length, columns, stored)


def declare_rows(e: Emitter, found: tuple[Rows, ...]) -> None:
    block = rows_of_block(found)
    e.lines(f"alignas(64) float {r.name}[{r.length}][{block}];" for r in found)


def read_rows(k: Kernel, e: Emitter, found: tuple[Rows, ...]) -> Texts:
    """The elements of a block's rows, turned."""
    block, name = rows_of_block(found), k.names[k.schedule.nest[-1]]
    for r in (r for r in found if not r.stored):
        sizes = f"{block}, {TO} - {FROM}, {r.length}"
        e.line(f"tw_turn_tile({_start(k, r)}, {r.pitch}, {r.name}[0], {sizes});")
    return {v: r.element(v, name) for r in found if not r.stored for v in r.columns}


def write_rows(k: Kernel, e: Emitter, found: tuple[Rows, ...]) -> None:
    block = rows_of_block(found)
    for r in (r for r in found if r.stored):
        sizes = f"{r.pitch}, {r.length}, {TO} - {FROM}"
        e.line(f"tw_turn_tile((const float*){r.name}[0], {block}, {_start(k, r)}, {sizes});")


def _start(k: Kernel, r: Rows) -> str:
    names = {**k.names, k.schedule.nest[-1]: FROM}
    return f"&{k.pointers[r.buffer]}[{x.affine_text(r.start, names)}]"


def targets(k: Kernel, found: tuple[Rows, ...]) -> dict[int, str]:
    """Where stores go, by their positions."""
    name = k.names[k.schedule.nest[-1]]
    return {s: r.element(s, name) for r in found if r.stored for s in r.columns}

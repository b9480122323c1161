"""What every part of the C++ generator asks about the kernel at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from torchweld.codegen.cpp import expr as x
from torchweld.core.dtypes import DType
from torchweld.ir import size
from torchweld.ir.access import Access, Accesses
from torchweld.ir.frame import Frame
from torchweld.ir.nodes import (
    Buffer,
    Comp,
    Instr,
    Reduce,
    Scan,
    Value,
    operands,
    store_axes,
    store_operands,
)
from torchweld.ir.size import Size
from torchweld.templates.pointwise_reduce.cpu.schedule import (
    INNER_BLOCK,
    CpuSchedule,
    jumps,
    may_overlap,
    overlaps_sooner,
    stores_again,
    turns,
)
from torchweld.templates.pointwise_reduce.cpu.stages import Stages, own_cost, stages
from torchweld.templates.pointwise_reduce.cpu.tiles import Tiles, tiles

LINE_BYTES = 64
VECTOR_BYTES, LANES = 64, 16
SHORT_VECTORS = (4, 8, 16)
# Of the vector, for a lane of fewer points than a whole one has. Quotients of rows of 15, 11 and 9
# numbers, ns each on a Xeon (AVX-512), with what is left one by one and so: 1.3 and 0.6, 1.5 and
# 0.9, 1.1 and 1.1; with parts of 4, rows of 5 to 7 took as long.
PART = 8
LONG_ROW = 256
LONG_LANE = 4096  # the rest of a longer lane does not matter
CHEAP_ROW = 6.0  # nor that of pointwise rows with less work (multiply-adds) per element
# More passes over a block of rows take up what they need from where the one before left it. Each
# would do again what all before it did: 30 steps of a state of 48 x 48, for 12 heads, 1.9 ms, so
# 0.1 (one thread of a Xeon with AVX-512).
_FEW_PASSES = 4
_FIRST_CACHE = 1 << 15  # bytes of any processor's


@dataclass(frozen=True)
class Kernel:
    """`names`: the C++ variable of each axis; `pointers`: of each buffer; `kinds`: their dtypes.
    `alone`: loads that read through pointers of their own (values.py). `row_mask`: whether an
    element of a vector is one of the row, where that is shorter. `turned`: where stores go, by
    their positions, if that is a tile (turned_rows.py) or a band (blocks.py)."""

    accesses: Accesses
    schedule: CpuSchedule
    stages: Stages
    names: Mapping[str, str]
    pointers: Mapping[str, str]
    kinds: Mapping[str, DType]
    alone: frozenset[Value] = frozenset()
    row_mask: str = ""
    turned: Mapping[int, str] = field(default_factory=dict)

    @property
    def comp(self) -> Comp:
        return self.accesses.comp

    @property
    def frame(self) -> Frame:
        return self.accesses.frame

    @property
    def body(self) -> tuple[Instr, ...]:
        return self.accesses.comp.body

    @property
    def row_lane(self) -> str | None:
        """The axis of adjacent rows that the innermost loop runs along, if it does."""
        return self.schedule.nest[-1] if self.schedule.lane == "row" else None

    @property
    def inner_axes(self) -> frozenset[str]:
        """Those that loops of one outer point run along, but for a lane of rows."""
        return _inner_axes(self.schedule)

    @property
    def shares_rows(self) -> bool:
        return self.schedule.distribute == "columns"

    @property
    def split_axis(self) -> str | None:
        """The inner axis whose range is divided among threads."""
        if self.schedule.distribute == "inner":
            return self.schedule.nest[-1]
        if self.shares_rows:
            return max(self.frame.columns, key=lambda a: size.hint(self.comp.extent(a), {}))
        return None

    @property
    def row_reductions(self) -> tuple[Value, ...]:
        over_rows = self.frame.column_reductions
        return tuple(
            v for v, i in enumerate(self.body) if isinstance(i, Reduce) and v not in over_rows
        )

    @property
    def lane_block(self) -> int:
        """Rows that a row lane runs abreast; one without a row lane."""
        return dict(self.schedule.outer)[self.row_lane] if self.row_lane else 1

    @property
    def lanes(self) -> int:
        """Elements that gcc works on together: a vector of the narrowest type in memory, or two, so
        that sums along rows of some length do not wait for each other. Short rows (windows of a
        pooling) are one vector each. Not more than a row has: sums would be one by one.
        Of a short lane of float32 that nothing is reduced along, half of a vector, which what is
        left then overlaps; bools beside it are widened first (nest.py)."""
        if self.has_short_rows:
            extent = self.comp.extent(self.schedule.nest[-1])
            return next(n for n in SHORT_VECTORS if n >= extent)
        narrowest = min((d.bytes for d in self.kinds.values()), default=4)
        extent = self.comp.extent(self.schedule.nest[-1]) if self.schedule.nest else 0
        long = isinstance(extent, int) and extent >= LONG_ROW
        vector = VECTOR_BYTES // narrowest
        short = isinstance(extent, int) and extent < vector
        if short and vector == LANES and not self.frame.columns:
            return PART if extent > PART else vector
        few = bool(self.row_reductions) and short
        return max(2 * LANES if long else LANES, LANES if few else vector)

    @property
    def has_short_rows(self) -> bool:
        """Whether columns are rows of a part of a vector. One by one, as gcc makes a loop of 9 to
        15 terms, a maximum of 12 took 4 times as long on a Zen 4, a sum 1.5 times."""
        if not self.schedule.nest or self.schedule.lane != "column":
            return False
        extent = self.comp.extent(self.schedule.nest[-1])
        short = isinstance(extent, int) and 2 < extent <= SHORT_VECTORS[-1]
        return short and bool(self.row_reductions)

    @cached_property
    def uses(self) -> Counter[Value]:
        """How many instructions and stores read each value."""
        found = Counter(v for instr in self.body for v in set(operands(instr)))
        found.update(v for store in self.comp.stores for v in set(store_operands(store)))
        return found

    @cached_property
    def tiles(self) -> Tiles | None:
        """What is read and written a block of rows at a time, turned."""
        return _tiles(self.accesses, self.schedule)

    @property
    def lane_position(self) -> str:
        """Where in its block of rows the lane is."""
        name = self.names[self.row_lane]
        return f"{name} - low_{name}"

    @property
    def slot_bytes(self) -> int:
        """Of one accumulator that threads share: what keeps them off each other's cache lines."""
        return max(LINE_BYTES, 8 * self.lane_block)

    @property
    def shared_bytes(self) -> Size:
        """Memory per thread that threads exchange partial results in."""
        columns = sum((8 * self.column_count(v) for v in self.frame.column_reductions), 0)
        return columns + (self.slot_bytes * len(self.row_reductions) if self.shares_rows else 0)

    def extent(self, axis: str) -> str:
        return x.size_text(self.comp.extent(axis))

    def bounds(self, axis: str) -> tuple[str, str]:
        """First and last + 1 of an inner axis for this thread and outer point."""
        name, extent = self.names[axis], self.extent(axis)
        if dict(self.schedule.outer).get(axis, 1) > 1:
            return f"low_{name}", f"high_{name}"
        if axis == self.split_axis:
            if self.shares_rows:
                return f"{extent} * tid / parts", f"{extent} * (tid + 1) / parts"
            each = f"{extent} / {INNER_BLOCK} * {{}} / parts * {INNER_BLOCK}"
            end = f"(tid + 1 == parts ? {extent} : {each.format('(tid + 1)')})"
            return each.format("tid"), end
        return "0", extent

    def column_axes(self, value: Value) -> tuple[str, ...]:
        """The columns that a value varies along."""
        return tuple(c for c in self.frame.columns if c in self.stages.axes[value])

    def column_count(self, value: Value) -> Size:
        return size.product(self.comp.extent(a) for a in self.column_axes(value))

    def column_offset(self, value: Value) -> str:
        """Position among `column_count` elements, for the current columns."""
        text = ""
        for axis in self.column_axes(value):
            text = (
                f"({text}) * {self.extent(axis)} + {self.names[axis]}" if text else self.names[axis]
            )
        return text or "0"

    @property
    def staged(self) -> tuple[Value, ...]:
        """Loads of a transposed tile that jump along the lane: they are copied line by line first,
        as lines at power-of-two distances fall into one set of the cache and evict each other. And
        those of 16 bits that a guard lets through in parts of the lane: gcc asks about each."""
        blocked = [a for a in self.schedule.nest if dict(self.schedule.outer).get(a, 1) > 1]
        if len(blocked) != 2:
            return ()
        across, lane = blocked
        return tuple(
            v
            for v, access in self.accesses.loads.items()
            if not access.refs
            and turns(self.body, self.body[v].guard, across, lane)
            and (self._jumps_along(access, across, lane) or self._is_parted(v, across, lane))
        )

    def _jumps_along(self, access: Access, across: str, lane: str) -> bool:
        return access.offset.coefficient(across) == 1 and jumps(access, lane)

    def _is_parted(self, value: Value, across: str, lane: str) -> bool:
        """Whether a load of 16 bits is of neighbours along the lane, and guarded along it alone."""
        load, offset = self.body[value], self.accesses.loads[value].offset
        if load.guard is None or load.dtype.bits != 16 or offset.coefficient(lane) != 1:
            return False
        axes = self.stages.axes
        return lane in axes[load.guard] and across in axes[value]  # else it is made before the tile

    @property
    def overlaps(self) -> bool:
        """Whether lanes end in a vector that overlaps the one before (nest.py): where they are
        short, no multiple of `lanes` and worth it. Not where the kernel reads what it writes."""
        comp, lane = self.comp, self.schedule.nest[-1:]
        if not lane or self.row_lane or dict(self.schedule.outer).get(lane[0], 1) > 1:
            return False
        extent = comp.extent(lane[0])
        even = isinstance(extent, int) and extent % self.lanes == 0
        if even or (isinstance(extent, int) and not self.lanes < extent <= LONG_LANE):
            return False
        if not stores_again(comp):
            return False
        work = sum(own_cost(comp.body[v]) for v in self.stages.varying)
        worth = work > CHEAP_ROW or bool(self.frame.columns)
        return worth and not any(isinstance(i, Scan) for i in comp.body)

    def has_whole_tiles(self, axis: str, block: int) -> bool:
        """Whether the last of the tiles along an axis overlaps the one before: it stores again what
        is there."""
        extent = self.comp.extent(axis)
        if not isinstance(extent, int) or extent < block or not stores_again(self.comp):
            return False
        if self.schedule.lane == "column":
            return len(self.schedule.nest) == 2
        alone = self.schedule.distribute == "rows" and may_overlap(self.accesses, axis)
        return alone and overlaps_sooner(extent, block)

    @cached_property
    def kept_places(self) -> Mapping[Value, Value]:
        """For each kept value, that in whose scratch row it is: its own, or one of the same size
        that no loop reads any more. A recurrence has two rows, not one for each of its steps."""
        spans = {}
        for value in self.stages.kept:
            loops = [s for s, loop in enumerate(self.stages.loops) if value in loop]
            spans[value] = loops[0], loops[-1]
        places, free_from = {}, dict[Value, int]()
        for value in sorted(spans, key=spans.__getitem__):
            first, last = spans[value]
            alike = (v for v in free_from if free_from[v] < first and self._kept_alike(v, value))
            places[value] = next(alike, value)
            free_from[places[value]] = last
        return places

    def _kept_alike(self, one: Value, other: Value) -> bool:
        kinds, axes = self.body, self.stages.axes
        return kinds[one].dtype == kinds[other].dtype and axes[one] == axes[other]

    def kept_count(self, value: Value) -> Size:
        """Elements of the scratch row of a kept value, with room for the overlapping vector."""
        *outer, last = self.column_axes(value)
        extent = self.comp.extent(last)
        columns = size.product(self.comp.extent(a) for a in outer) * (extent + self._room(last))
        return columns * self.lane_block

    def kept_offset(self, value: Value, position: str | None = None) -> str:
        """Where in it the current columns are. The overlapping vector has a place of its own, from
        `position` on: reading what two stores wrote would stall."""
        *outer, last = self.column_axes(value)
        text = "0"
        for axis in outer:
            text = f"({text}) * {self.extent(axis)} + {self.names[axis]}"
        at = position if position and last == self.schedule.nest[-1] else self.names[last]
        pitch = x.size_text(self.comp.extent(last) + self._room(last))
        at = f"({text}) * {pitch} + {at}" if outer else at
        if not self.row_lane:
            return at
        row = self.lane_position if self.row_lane in self.stages.axes[value] else "0"
        return f"({at}) * {self.lane_block} + {row}"

    def _room(self, axis: str) -> int:
        return self.lanes if self.overlaps and axis == self.schedule.nest[-1] else 0

    def store_axes(self, position: int) -> frozenset[str]:
        return store_axes(self.comp, self.comp.stores[position], self.stages.axes)

    def stores_of(self, stage: int) -> list[int]:
        return [s for s, home in enumerate(self.stages.store_homes) if home == stage]

    def accumulator(self, value: Value) -> tuple[str, str]:
        """C++ types: within a block of elements, and over blocks."""
        return x.accumulator_type(self.body[value].monoid, self.body[value].dtype)

    def identity(self, value: Value) -> str:
        return x.identity(self.body[value].monoid, self.body[value].dtype)

    def joining(self, mask: str | None, value: Value, arg: str) -> str:
        """What joins a reduction: `arg`, where `mask` holds if there is one. C++ widens choices
        between small integers to int, which no merge takes."""
        if not mask:
            return arg
        return f"({self.accumulator(value)[0]})({mask} ? {arg} : {self.identity(value)})"

    def merged(self, value: Value, one: str, other: str) -> str:
        return x.merge(self.body[value].monoid, one, other)


def kernel(
    accesses: Accesses,
    schedule: CpuSchedule,
    buffers: Mapping[str, Buffer],
    pointers: Mapping[str, str],
) -> Kernel:
    names = {a.name: f"i{k}" for k, a in enumerate(accesses.comp.axes)}
    passes = partial(
        stages, accesses.comp, accesses.frame, _inner_axes(schedule),
        jumping=_jumping(accesses, schedule),
    )  # fmt: skip
    made = passes(keep=_keeps(accesses, schedule))
    if made.count > _FEW_PASSES and _is_small_block(accesses, schedule):
        made = passes(keep=True)
    kinds = {name: buffers[name].dtype for name in pointers}
    return Kernel(accesses, schedule, made, names, pointers, kinds)


def _keeps(accesses: Accesses, schedule: CpuSchedule) -> bool:
    """Whether a row, or a block of rows of a few elements, is small enough to be kept."""
    if schedule.lane == "row":
        return _tiles(accesses, schedule) is not None
    return schedule.distribute != "columns"


def _is_small_block(accesses: Accesses, schedule: CpuSchedule) -> bool:
    """Whether two values of all columns of a block of rows stay in a core's first cache."""
    if schedule.lane != "row":
        return False
    columns = size.product(accesses.comp.extent(a) for a in accesses.frame.columns)
    points = columns * dict(schedule.outer)[schedule.nest[-1]]
    return isinstance(points, int) and 2 * 4 * points <= _FIRST_CACHE


def _tiles(accesses: Accesses, schedule: CpuSchedule) -> Tiles | None:
    return tiles(accesses, schedule.nest[-1]) if schedule.lane == "row" else None


def _jumping(accesses: Accesses, schedule: CpuSchedule) -> frozenset[Value]:
    """Loads of elements that are neither adjacent nor the same along the lane."""
    lane, loads = schedule.nest[-1:], accesses.loads.items()
    turned = _tiles(accesses, schedule)
    plain = turned.loads if turned else ()
    return frozenset(v for v, a in loads if lane and v not in plain and jumps(a, lane[0]))


def _inner_axes(schedule: CpuSchedule) -> frozenset[str]:
    lane = {schedule.nest[-1]} if schedule.lane == "row" else set()
    return frozenset(schedule.nest) - lane | ({schedule.abreast} - {None})

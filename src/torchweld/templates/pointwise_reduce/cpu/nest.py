"""The loop nest of one stage: over the inner axes, each value at the depth where it first varies.

Lane "column" (the accumulators are scalars):      Lane "row" (they are arrays along the lane):
    for outer columns                                  for outer columns
      for blocks of CHAIN vectors of columns             for blocks of CHAIN columns
        b[] = identity                                     a[] = identity
        for vectors, simd: b[] += v                        for columns, simd lane: a[l] += v
        A += sum of b[]                                    A[] += a[]

A is a double for float sums. Chains are as long as those that eager begins with: in longer ones the
squares of values at a large offset, which have few bits, are rounded down every time.

A lane of columns whose length is no multiple of Kernel.lanes ends in one vector that overlaps the
one before, and adds only its new elements to sums: gcc would run the rest one by one, which takes
four times as long for a softmax over 127 columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir import size
from torchweld.ir.nodes import Load, Scan, Value, needed, store_operands
from torchweld.templates.pointwise_reduce.cpu.blocks import (
    declare_bands,
    stage_tile,
    write_bands,
)
from torchweld.templates.pointwise_reduce.cpu.cases import cases, filled_loads
from torchweld.templates.pointwise_reduce.cpu.columns import (
    accumulate_column,
    declare_block,
    join_block,
)
from torchweld.templates.pointwise_reduce.cpu.halves import (
    HIGH,
    LOW,
    Halves,
    emit_narrowed,
    halves,
    in_blocks,
    is_widened,
)
from torchweld.templates.pointwise_reduce.cpu.kernel import VECTOR_BYTES, Kernel
from torchweld.templates.pointwise_reduce.cpu.partial import (
    advance_lanes,
    advance_partial,
    declare_lane_values,
    declare_partial,
    has_lanes,
    merge_partial,
    reduction_clause,
    set_lane_value,
)
from torchweld.templates.pointwise_reduce.cpu.phases import (
    TURN,
    Phases,
    phases,
    phases_of_vectors,
)
from torchweld.templates.pointwise_reduce.cpu.pieces import copied, copied_most
from torchweld.templates.pointwise_reduce.cpu.scans import levels, made, of_block
from torchweld.templates.pointwise_reduce.cpu.schedule import SHORT_LANE, combines_in_lane
from torchweld.templates.pointwise_reduce.cpu.segments import Segment, segments
from torchweld.templates.pointwise_reduce.cpu.stages import own_cost
from torchweld.templates.pointwise_reduce.cpu.tiles import BAND, turned_stores
from torchweld.templates.pointwise_reduce.cpu.turned_rows import (
    FROM,
    TO,
    Rows,
    declare_rows,
    read_rows,
    rows_of_block,
    targets,
    turned_rows,
    write_rows,
)
from torchweld.templates.pointwise_reduce.cpu.turns import known_in, name_loads, turns_of_block
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, element, store

CHAIN = 16  # terms that are added up in float
SCAN_BLOCK = 64
CHEAP_SCAN = 4.0  # multiply-adds per element that vectors hardly speed up


def emit_nest(k: Kernel, e: Emitter, stage: int, reductions: list[Value], texts: Texts) -> None:
    for value in k.staged:
        stage_tile(k, e, value, texts)
    _Nest(k, e, stage, reductions, dict(texts)).emit()


@dataclass(frozen=True, slots=True)
class _ScanBlock:
    """Of elements from `from` to `to`: the loop over them in vectors, and the place of one in
    arrays, which may be `backwards`."""

    loop: str
    place: str
    backwards: bool


class _Nest:
    def __init__(self, k: Kernel, e: Emitter, stage: int, reductions, texts: Texts) -> None:
        self.k, self.e, self.stage, self.reductions, self.texts = k, e, stage, reductions, texts
        self.axes = k.schedule.nest
        self.values = _unknown(k, stage, texts)
        self.stores = [s for s in k.stores_of(stage) if k.store_axes(s) & k.inner_axes]
        self.over_rows = [
            v
            for v in k.frame.column_reductions
            if k.stages.home[v] == stage and k.body[v].args[0] in k.stages.varying
        ]
        self.block = self._block_length()
        self.block_at = self._block_depth()
        self.block_bounds: tuple[str, str] | None = None
        self.halves = Halves()

    def emit(self) -> None:
        with ExitStack() as stack:
            for depth, axis in enumerate(self.axes):
                self._level(depth, self.texts)
                if depth == self.block_at and self.reductions:
                    self._open_block(stack)
                elif depth == self.block_at and (banded := self._banded()):
                    self._open_bands(stack, banded)
                if depth + 1 < len(self.axes):
                    stack.enter_context(
                        self.e.block(_loop(self.k.names[axis], *self._bounds(depth)))
                    )
            self._lane()

    def _block_length(self) -> int:
        """Columns of a block. Where the last vector overlaps the one before, whole vectors."""
        if self._has_lanes():
            return CHAIN * self.k.lanes
        return max(CHAIN, self.k.lanes) if self.k.overlaps else CHAIN

    def _block_depth(self) -> int:
        """At which loop partial results begin: the lane's own or the last column's, whose blocks
        bound the length of a sum; further out where that needs no bound, or chains stay short."""
        if self.k.row_lane:
            return len(self.axes) - 2
        if not self._widens():
            return 0
        extents = [self.k.comp.extent(a) for a in self.axes]
        for depth in range(len(extents)):
            count = size.product(extents[depth:])
            if isinstance(count, int) and count <= self.block:
                return depth
        return len(self.axes) - 1

    def _widens(self) -> bool:
        """Whether some total is wider than its partial results."""
        return any(partial != total for partial, total in map(self.k.accumulator, self.reductions))

    # -- what is computed where --

    def _depth(self, axes: frozenset[str]) -> int:
        """How many loops must be open for the axes to be bound."""
        if self.k.schedule.abreast in axes:
            return len(self.axes)
        return max((d + 1 for d, a in enumerate(self.axes) if a in axes), default=0)

    def _level(self, depth: int, texts: Texts, mask: str | None = None) -> None:
        """Everything that varies along the first `depth` axes of the nest, and no further."""
        k = self.k
        for value in self.values:
            if self._depth(k.stages.axes[value]) == depth and value not in texts:
                self._value(value, texts, mask)
        for position in self.stores:
            if self._depth(k.store_axes(position)) != depth:
                continue
            if position in self.halves.narrowed:
                emit_narrowed(k, self.e, position, texts)
            else:
                store(k, self.e, position, texts)
        for value in self.over_rows:
            if self._depth(k.stages.axes[k.body[value].args[0]]) == depth:
                accumulate_column(k, self.e, value, texts, mask)

    def _value(self, value: Value, texts: Texts, mask: str | None) -> None:
        """Computes a value, or reads it back where an earlier stage kept it."""
        k, kept = self.k, value in self.k.stages.kept
        at = k.kept_offset(value, "whole + l" if mask else None) if kept else ""
        slot = f"k{k.kept_places[value]}[{at}]" if kept else ""
        if kept and any(value in loop for loop in k.stages.loops[: self.stage]):
            self.e.line(f"const {x.ctype(k.body[value].dtype)} v{value} = {slot};")
            texts[value] = f"v{value}"
            return
        define(k, self.e, value, texts)
        if kept:
            self.e.line(f"{slot} = v{value};")

    # -- loops --

    def _bounds(self, depth: int) -> tuple[str, str]:
        if depth == self.block_at and self.block_bounds:
            return self.block_bounds
        return self.k.bounds(self.axes[depth])

    def _open_block(self, stack: ExitStack) -> None:
        """The partial results, within a loop over blocks if the axis is longer than one."""
        if self._needs_blocks(self.axes[self.block_at]):
            self._in_blocks(stack, self.block)
        for value in self.reductions:
            declare_partial(self.k, self.e, value)
        stack.callback(lambda: [merge_partial(self.k, self.e, v) for v in self.reductions])

    def _in_blocks(self, stack: ExitStack, block: int) -> None:
        """A loop over blocks of the axis at `block_at`, from b_NAME to e_NAME."""
        axis = self.axes[self.block_at]
        name, (low, high) = self.k.names[axis], self.k.bounds(axis)
        stack.enter_context(self.e.block())
        self.e.line(f"const int64_t end_{name} = {high};")
        begin = f"int64_t b_{name} = {low}"
        header = f"for ({begin}; b_{name} < end_{name}; b_{name} += {block})"
        stack.enter_context(self.e.block(header))
        end, last = f"b_{name} + {block}", f"end_{name}"
        self.e.line(f"const int64_t e_{name} = {end} < {last} ? {end} : {last};")
        self.block_bounds = (f"b_{name}", f"e_{name}")

    def _banded(self) -> frozenset[int]:
        """Stores of this stage that are turned band by band (tiles.py)."""
        k = self.k
        if not k.row_lane or self.reductions or self.over_rows:
            return frozenset()
        every = {k.row_lane, k.frame.columns[-1]}
        turned = turned_stores(k.accesses, k.row_lane).intersection(self.stores)
        return frozenset(p for p in turned if every <= k.store_axes(p))

    def _open_bands(self, stack: ExitStack, stores: frozenset[int]) -> None:
        """`block_at` is the last column's depth, as rows are abreast."""
        k = self.k
        self.k = replace(k, turned=declare_bands(k, self.e, stores))
        self._in_blocks(stack, BAND)
        stack.callback(write_bands, k, self.e, stores)

    def _needs_blocks(self, axis: str) -> bool:
        """Long sums whose total is wider than their partial sums."""
        extent = self.k.comp.extent(axis)
        short = self.block if self.k.row_lane else max(self.block, self.k.lanes)
        return self._widens() and not (isinstance(extent, int) and extent <= short)

    def _lane(self) -> None:
        """The innermost loop, once for each answer to what it asks."""
        found, common = () if phases(self.k) else cases(self.k, self.values), self.texts
        # What varies along columns that are walked inside of the lane is not known here.
        if not found or not common.keys() >= set().union(*(case.asked for case in found)):
            return self._loops()
        for number, case in enumerate(found):
            asked = (f"{'' if a else '!'}{common[v]}" for v, a in case.asked.items())
            header = "else" if case is found[-1] else f"if ({' && '.join(asked)})"
            with self.e.block(f"else {header}" if 0 < number < len(found) - 1 else header):
                answers = {v: x.literal(a, dtypes.b1) for v, a in case.known.items()}
                if not case.asked:
                    answers |= filled_loads(self.k, self.e, self.values, common)
                self.texts = common | answers
                self._loops()
        self.texts = common
        return None

    def _loops(self) -> None:
        """The innermost loop."""
        depth = len(self.axes) - 1
        name, bounds = self.k.names[self.axes[depth]], self._bounds(depth)
        if pattern := phases(self.k):
            return self._in_phases(name, *bounds, pattern)
        if rows := turned_rows(self.k):
            return self._in_turned_rows(name, *bounds, rows)
        found = halves(self.k, self.values, self.stores)
        if not found or (self.k.overlaps and self.k.frame.columns):
            return self._loop(name, *bounds)
        common, values = self.texts, self.values
        with in_blocks(self.k, self.e, found, bounds, common) as widened:
            self.halves, self.texts = found, common | widened
            if not self.k.frame.columns:
                self.values = _unknown(self.k, self.stage, self.texts)
            self._loop(name, LOW, HIGH)
        self.halves, self.texts, self.values = Halves(), common, values
        return None

    def _loop(self, name: str, low: str, high: str) -> None:
        if pieces := self._segments(low):
            if ends := copied(self.k, self.values, pieces):
                self._after_copies(name, low, high, pieces, ends)
            else:
                self._in_segments(name, low, high, pieces)
        elif self.k.overlaps and not self.halves:
            with self.e.block():
                self._overlapping(name, low, high)
        elif self.k.has_short_rows and self._has_lanes():
            self._short_row(name)
        elif self._has_lanes():
            self._whole_vectors(name, low, high)
        elif scans := self._scans():
            self._in_scan_blocks(name, low, high, scans)
        elif masks := self._masks_of_short_lane():
            self._beside_masks(name, low, high, masks)
        else:
            self._body(_loop(name, low, high))

    def _after_copies(
        self, name: str, low: str, high: str, pieces: tuple[Segment, ...], ends: tuple[Value, ...]
    ) -> None:
        """The loop over what segments read, copied to arrays first (pieces.py)."""
        k, e, values, common = self.k, self.e, self.values, self.texts
        made = {v: f"m{v}[{name} - {low}]" for v in ends}
        with e.block():
            for value in ends:
                kind = x.array_type(k.body[value].dtype)
                e.line(f"alignas(64) {kind} m{value}[{copied_most(k)}];")
            for piece in pieces:
                texts = common | piece.known
                wanted = needed(k.body, ends, stop=texts)
                e.line("#pragma omp simd")
                with e.block(_loop(name, *_clipped(piece, low, high))):
                    for value in (v for v in values if v in wanted and v not in texts):
                        self._value(value, texts, None)
                    e.lines(f"{made[v]} = {texts[v]};" for v in ends)
            read = {v: x.from_memory(text, k.body[v].dtype) for v, text in made.items()}
            self.texts = common | read
            self.values = _unknown(k, self.stage, self.texts)
            if k.overlaps:
                self._overlapping(name, low, high)
            else:
                self._body(_loop(name, low, high))
        self.values, self.texts = values, common

    def _segments(self, low: str) -> tuple[Segment, ...]:
        """The lane in pieces, where it is a whole row, or of rows, or no row is reduced."""
        if self.k.row_lane:
            return segments(self.k)
        pointwise = not self.k.frame.columns
        if not pointwise and (low != "0" or self.k.overlaps):
            return ()
        return segments(self.k) if low == "0" or len(self.axes) == 1 else ()

    def _in_segments(self, name: str, low: str, high: str, pieces: tuple[Segment, ...]) -> None:
        values, common, k = self.values, self.texts, self.k
        for piece in pieces:
            bounds = _clipped(piece, low, high)
            if not k.frame.columns:
                self.values = _unknown(k, self.stage, common | piece.known)
            if k.overlaps and low == "0" and piece.high - piece.low >= k.lanes:
                self.texts = common | piece.known
                with self.e.block():
                    self._overlapping(name, *bounds)
                self.texts = common
            else:
                self._body(_loop(name, *bounds), known=piece.known)
        self.values = values

    def _in_turned_rows(self, name: str, low: str, high: str, rows: tuple[Rows, ...]) -> None:
        """The loop over blocks whose rows are turned (turned_rows.py)."""
        k, e, common, block = self.k, self.e, self.texts, rows_of_block(rows)
        with e.block():
            declare_rows(e, rows)
            with e.block(f"for (int64_t {FROM} = {low}; {FROM} < {high}; {FROM} += {block})"):
                e.line(f"const int64_t end = {FROM} + {block}, {TO} = end < {high} ? end : {high};")
                self.texts = common | read_rows(k, e, rows)
                self.k = replace(k, turned=targets(k, rows))
                self._body(_loop(name, FROM, TO))
                self.k, self.texts = k, common
                write_rows(k, e, rows)

    def _in_phases(self, name: str, low: str, high: str, pattern: Phases) -> None:
        """Turns of a pattern, with what is before and after them."""
        if low == "0":
            self._turns(name, str(pattern.low), str(pattern.high), pattern)
            before, after = pattern.low * pattern.count, pattern.high * pattern.count
            if before:
                self._body(_loop(name, "0", str(before)))
            if after < self.k.comp.extent(self.axes[-1]):
                self._body(_loop(name, str(after), high))
            return
        with self.e.block():
            first, end = turns_of_block(self.e, pattern, low, high)
            self._turns(name, first, end, pattern)
            before, after = (f"{turn} * {pattern.count}" for turn in (first, end))
            self._body(_loop(name, low, f"({before} < {high} ? {before} : {high})"))
            self._body(_loop(name, after, high))

    def _turns(self, name: str, low: str, high: str, pattern: Phases) -> None:
        values = self.values
        texts = [
            self.texts | known_in(self.k, self.e, pattern, phase, self.texts)
            for phase in range(pattern.count)
        ]
        self.e.line("#pragma omp simd")
        with self.e.block(_loop(TURN, low, high)):
            for phase, local in enumerate(texts):
                self.values = _unknown(self.k, self.stage, local)
                with self.e.block():
                    self.e.line(f"const int64_t {name} = {pattern.count} * {TURN} + {phase};")
                    name_loads(self.k, self.e, local)
                    self._level(len(self.axes), local)
        self.values = values

    def _scans(self) -> tuple[Value, ...]:
        """The scans to make along the lane, where vectors save time on them or around them."""
        found = () if self.k.row_lane else made(self.k, self.stage, self.values)
        work = sum(own_cost(self.k.body[v]) for v in self.values)
        cheap = work <= CHEAP_SCAN * len(found)
        return () if cheap and not all(of_block(self.k, v) for v in found) else found

    def _in_scan_blocks(self, name: str, low: str, high: str, scans: tuple[Value, ...]) -> None:
        """For a block of elements: what is scanned, in vectors; the scans, one by one unless
        there is a function for blocks; the rest, in vectors."""
        e, known, block = self.e, {}, self._scan_block(name)
        with e.block(f"for (int64_t from = {low}; from < {high}; from += {SCAN_BLOCK})"):
            e.line(f"const int64_t end = from + {SCAN_BLOCK}, to = end < {high} ? end : {high};")
            for level in levels(self.k, scans, self.texts):
                self._scan_level(name, level, known, block)
                known |= {v: f"c{v}[{block.place}]" for v in level}
            self._body(block.loop, known=known)

    def _scan_block(self, name: str) -> _ScanBlock:
        """If memory is read and written backwards along the lane, loops in vectors follow memory,
        and so do arrays, where elements are of several sizes: gcc leaves loops that go back in
        memory number by number then."""
        axis = self.axes[-1]
        along = [a for a in self.k.accesses.all if a.offset.coefficient(axis) != 0]
        back = all(a.offset.coefficient(axis) == -1 for a in along)
        if not back or len({a.bytes for a in along}) < 2:
            return _ScanBlock(_loop(name, "from", "to"), f"{name} - from", False)
        header = f"for (int64_t {name} = to - 1; {name} >= from; --{name})"
        return _ScanBlock(header, f"to - 1 - {name}", True)

    def _scan_level(self, name: str, scans: list[Value], known: Texts, block: _ScanBlock) -> None:
        """Scans of a block, into arrays c. What they are made of is in arrays s, or in those of
        scans before (`known`)."""
        k, e = self.k, self.e
        single = [v for v in scans if not of_block(k, v)]
        given = sorted({k.body[v].arg for v in scans} - known.keys())
        for prefix, values in (("s", given), ("c", scans)):
            kinds = (x.ctype(k.body[v].dtype) for v in values)
            e.lines(f"{t} {prefix}{v}[{SCAN_BLOCK}];" for t, v in zip(kinds, values))
        if given:
            e.line("#pragma omp simd")
            with e.block(block.loop):
                texts = self.texts | known
                wanted = needed(k.body, given, stop=texts)
                for value in self.values:
                    if value in wanted and value not in texts:
                        self._value(value, texts, None)
                e.lines(f"s{v}[{block.place}] = {texts[v]};" for v in given)
        for value in (v for v in scans if v not in single):
            arg = k.body[value].arg
            self._scan_array(value, f"c{arg}" if arg in known else f"s{arg}", block)
        if single:
            with e.block(_loop(name, "from", "to")):
                texts = self.texts | known | {v: f"s{v}[{block.place}]" for v in given}
                for value in single:
                    self._value(value, texts, None)
                    e.line(f"c{value}[{block.place}] = {texts[value]};")

    def _scan_array(self, value: Value, array: str, block: _ScanBlock) -> None:
        """A scan of a block by a function of vectors.h, which goes forwards."""
        k, e = self.k, self.e
        if not block.backwards:
            e.line(f"{of_block(k, value)}, {array}, to - from, c{value});")
            return
        with e.block():
            e.line(f"{x.ctype(k.body[value].dtype)} r[{SCAN_BLOCK}], q[{SCAN_BLOCK}];")
            e.line(f"tw_reversed({array}, to - from, r);")
            e.line(f"{of_block(k, value)}, r, to - from, q);")
            e.line(f"tw_reversed(q, to - from, c{value});")

    def _has_lanes(self) -> bool:
        reduces = bool(self.reductions) and self._vectorises()
        if self.k.has_short_rows and (self.stores or self.over_rows or self._keeps()):
            return False
        return reduces and all(has_lanes(self.k, v) for v in self.reductions)

    def _keeps(self) -> bool:
        return not self.k.stages.kept.isdisjoint(self.values)

    def _whole_vectors(self, name: str, low: str, high: str) -> None:
        """Vectors, and what is left one by one."""
        with self.e.block():
            self.e.line(f"const int64_t whole = {high} - ({high} - {low}) % {self.k.lanes};")
            self._vectors(name, low, "whole")
            extent = self.k.comp.extent(self.axes[-1])
            if not (low == "0" and isinstance(extent, int) and extent % self.k.lanes == 0):
                self._body(_loop(name, "whole", high))

    def _short_row(self, name: str) -> None:
        """One vector, of which the row may be a part."""
        extent, k = self.k.comp.extent(self.axes[-1]), self.k
        mask = "" if extent == k.lanes else "fresh"
        self.k = replace(k, row_mask=mask)
        with self.e.block():
            self._abreast(name, "0", mask or None, f"tw_lane[l] < {extent}")
        self.k = k

    def _vectors(self, name: str, low: str, high: str) -> None:
        """A whole number of vectors, reduced abreast if that can be."""
        if not self._has_lanes():
            return self._body(_loop(name, low, high))
        with self.e.block(f"for (int64_t j = {low}; j < {high}; j += {self.k.lanes})"):
            self._abreast(name, "j")
        return None

    def _abreast(self, name: str, start: str, mask: str | None = None, answer: str = "") -> None:
        """One vector, from position `start` on. `mask`: as in _level; `answer`: what it is, where
        it is not whether an element lies behind the vector before."""
        answer = answer or f"tw_lane[l] >= {self.k.lanes} - rest"
        position = f"const int64_t {name} = {start} + l;"
        here = [position, *([f"const bool {mask} = {answer};"] if mask else [])]
        declare_lane_values(self.k, self.e, self.reductions)
        if pattern := phases_of_vectors(self.k):
            self._vector_in_phases(start, here, mask, pattern)
        else:
            widened = self._widened_masks(here) | self._widened_halves(position, mask)
            self.e.line("#pragma omp simd")
            with self.e.block(f"for (int64_t l = 0; l < {self.k.lanes}; ++l)"):
                self._elements(here, self.texts | widened, mask)
        for value in self.reductions:
            advance_lanes(self.k, self.e, value)

    def _elements(self, here: list[str], texts: Texts, mask: str | None) -> None:
        """What a vector computes at each of its elements."""
        self.e.lines(here)
        self._level(len(self.axes), texts, mask)
        for value in self.reductions:
            set_lane_value(self.k, self.e, value, texts, mask)

    def _vector_in_phases(
        self, start: str, here: list[str], mask: str | None, pattern: Phases
    ) -> None:
        """A vector of whole turns of a pattern (phases.py)."""
        count = pattern.count
        self.e.line("#pragma omp simd")
        with self.e.block(f"for (int64_t t = 0; t < {self.k.lanes // count}; ++t)"):
            self.e.line(f"const int64_t {TURN} = ({start}) / {count} + t;")
            for phase in range(count):
                with self.e.block():
                    self.e.line(f"const int64_t l = {count} * t + {phase};")
                    self._elements(here, self.texts | pattern.known[phase], mask)

    def _masks_of_short_lane(self) -> list[Value]:
        """Bools that are read beside numbers of 4 bytes and more, along a lane of fewer points than
        bytes of a vector: gcc has vectors of as many points as fit of the smallest element, and
        takes fewer one by one."""
        k, extent = self.k, self.k.comp.extent(self.axes[-1])
        short = isinstance(extent, int) and SHORT_LANE <= extent < VECTOR_BYTES
        if not short or k.frame.columns or k.schedule.abreast:
            return []
        masks = self._plain_masks()
        read = [a for v, a in k.accesses.loads.items() if v not in masks]
        return masks if all(a.bytes >= 4 for a in (*read, *k.accesses.stores)) else []

    def _beside_masks(self, name: str, low: str, high: str, masks: list[Value]) -> None:
        """The loop over a short lane, with its bools in arrays of integers first."""
        values, common, header = self.values, self.texts, _loop(name, low, high)
        with self.e.block():
            extent = self.k.comp.extent(self.axes[-1])
            self.texts = common | self._as_integers(masks, extent, name, header)
            self.values = _unknown(self.k, self.stage, self.texts)
            self._body(header)
        self.values, self.texts = values, common

    def _plain_masks(self) -> list[Value]:
        unknown = (v for v in self.values if v not in self.texts)
        return [v for v in unknown if _is_plain_mask(self.k, v, self.axes)]

    def _widened_masks(self, here: list[str]) -> Texts:
        """Bools of a vector that is read beside floats, as integers of their width: see
        expr.array_type. `here`: what a loop over the vector begins with."""
        masks, lanes = self._plain_masks(), self.k.lanes
        if not masks or lanes >= VECTOR_BYTES:
            return {}
        return self._as_integers(masks, lanes, "l", _loop("l", "0", str(lanes)), here)

    def _as_integers(
        self, masks: list[Value], length: int, place: str, header: str, here: Sequence[str] = ()
    ) -> Texts:
        """Bools in arrays of `length`, filled by a loop that begins with `here`; the text of each
        at `place`."""
        e = self.e
        for value in masks:
            e.line(f"alignas(64) {x.array_type(dtypes.b1)} w{value}[{length}];")
        e.line("#pragma omp simd")
        with e.block(header):
            e.lines(here)
            for value in masks:
                define(self.k, e, value, dict(self.texts))
                e.line(f"w{value}[{place}] = v{value};")
        return {v: x.from_memory(f"w{v}[{place}]", dtypes.b1) for v in masks}

    def _widened_halves(self, position: str, mask: str | None) -> Texts:
        """Bfloat16 of a short vector, widened by one instruction. gcc widens it to two halves and
        stores each: what then reads both as one vector waits. A group norm over rows of 8 channels
        took 2.6 times as long on a Zen 4."""
        k, e = self.k, self.e
        short = k.lanes * dtypes.f32.bytes <= VECTOR_BYTES and mask is None
        left = (v for v in self.values if short and v not in self.texts)
        found = [v for v in left if is_widened(k, v, (dtypes.bf16,))]
        for value in found:
            e.line(f"alignas(64) float w{value}[{k.lanes}];")
            with e.block():
                e.lines(["const int64_t l = 0;", position])
                start = element(k, k.accesses.loads[k.body[value].arg], self.texts)
                e.line(f"tw_widen_lanes<{k.lanes}>(&{start}, w{value});")
        return {v: f"w{v}[l]" for v in found}

    def _overlapping(self, name: str, low: str, high: str) -> None:
        """Whole vectors, then one that ends where the lane ends; one by one if it is too short. The
        last block of a lane may be shorter than the vector, which then begins in the one before."""
        lanes, axis = self.k.lanes, self.axes[-1]
        first, _ = self.k.bounds(axis)
        self.e.line(f"const int64_t rest = ({high} - {low}) % {lanes}, whole = {high} - rest;")
        self._vectors(name, low, "whole")
        with self.e.block(f"if (rest && {high} - {first} >= {lanes})"):
            start = f"{high} - {lanes}"
            if self._has_lanes():
                self._abreast(name, start, "fresh")
            else:
                position = f"const int64_t {name} = {start} + l;"
                self._body(f"for (int64_t l = 0; l < {lanes}; ++l)", position)
        if not isinstance(self.k.comp.extent(axis), int) or axis == self.k.split_axis:
            with self.e.block("else"):
                self._body(_loop(name, "whole", high))

    def _body(self, header: str, position: str | None = None, known: Texts | None = None) -> None:
        """One vectorised loop. With `position`, it is the overlapping vector. `known`: values that
        are constants in it."""
        mask, texts = "fresh" if position else None, self.texts | (known or {})
        summed = self.over_rows if self.k.row_lane else []
        with self.e.block() if summed else nullcontext():
            clause = declare_block(self.k, self.e, summed)
            if self._vectorises(texts):
                apart = [] if self.k.row_lane else self.reductions
                clauses = [clause, *(reduction_clause(self.k, v) for v in apart)]
                self.e.line(f"#pragma omp simd{''.join(clauses)}")
            self._points(header, position, texts, mask)
            join_block(self.k, self.e, summed)

    def _points(self, header: str, position: str | None, texts: Texts, mask: str | None) -> None:
        """The loop of _body."""
        with self.e.block(header):
            if position:
                self.e.lines([position, f"const bool fresh = tw_lane[l] >= {self.k.lanes} - rest;"])
            if self.k.schedule.abreast:
                return self._points_abreast(texts)
            self._level(len(self.axes), texts, mask)
            for value in self.reductions:
                advance_partial(self.k, self.e, value, texts, mask)

    def _points_abreast(self, texts: Texts) -> None:
        """What a lane computes, once for each point of the axis that it writes out."""
        k, axis = self.k, self.k.schedule.abreast
        for point in range(k.comp.extent(axis)):
            self.k = replace(k, names={**k.names, axis: str(point)})
            with self.e.block():
                self._level(len(self.axes), dict(texts))
        self.k = k

    def _vectorises(self, known: Collection[Value] = ()) -> bool:
        k, unknown = self.k, [v for v in self.values if v not in known]
        scans = any(isinstance(k.body[v], Scan) for v in unknown) and not k.row_lane
        colliding = any(k.comp.stores[s].combine or k.accesses.stores[s].refs for s in self.stores)
        return not scans and not (colliding and combines_in_lane(k.accesses, self.axes[-1]))


def _is_plain_mask(k: Kernel, value: Value, axes: Sequence[str]) -> bool:
    """Whether it is a bool that is read at each point of the lane, at a place that is known, and
    kept for no later stage."""
    instr = k.body[value]
    if not isinstance(instr, Load) or instr.dtype != dtypes.b1 or instr.guard is not None:
        return False
    plain = not k.accesses.loads[value].refs and value not in k.stages.kept
    return plain and axes[-1] in k.stages.axes[value]


def _clipped(piece: Segment, low: str, high: str) -> tuple[str, str]:
    """The part of a segment that is between two bounds."""
    start, end = str(piece.low), str(piece.high)
    if low == "0":
        return start, end
    return f"({low} > {start} ? {low} : {start})", f"({high} < {end} ? {high} : {end})"


def _unknown(k: Kernel, stage: int, texts: Texts) -> tuple[Value, ...]:
    """What the loop of a stage computes, but what is known, and what only that is made of."""
    values = k.stages.loops[stage]
    if texts.keys().isdisjoint(values):
        return values
    stored = {v for s in k.stores_of(stage) for v in store_operands(k.comp.stores[s])}
    wanted = needed(k.body, stored, stop=texts) - texts.keys()
    return tuple(v for v in values if v in wanted)


def _loop(name: str, low: str, high: str) -> str:
    return f"for (int64_t {name} = {low}; {name} < {high}; ++{name})"

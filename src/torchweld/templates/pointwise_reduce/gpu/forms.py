"""The three forms of a kernel (see schedule.py), each a function that fills a Kernel and
returns its grid.

`partials`: where the results of reductions are shared by several programs, the scratch buffers that
take them in place of the stores that need the merged results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from torchweld.codegen.source import GridDim
from torchweld.codegen.triton import scalars
from torchweld.ir.nodes import Load, Reduce, Scan, Value, store_operands
from torchweld.ir.passes import Pass, keeps_infinity, online, passes
from torchweld.templates.pointwise_reduce.gpu import lanes, reduce, scans
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.partials import Partial, dependents
from torchweld.templates.pointwise_reduce.gpu.schedule import columns_first, extent
from torchweld.templates.pointwise_reduce.gpu.walks import (
    align_rows,
    rounded,
    walks,
    whole_blocks_apart,
)

# Loads for each row that a loop keeps. With the 25 weights of a depthwise convolution no others are
# under way: means of 88 channels behind one took an H200 201 us in float32, 102 in bfloat16; 91 and
# 65 where weights are loaded in each step, from L1.
_MOST_HELD = 12


def grid(k: Kernel, partials: Sequence[Partial]) -> list[GridDim]:
    """Pointwise: one tile per program."""
    s = k.schedule
    rows, columns = extent(k.accesses, s.rows), extent(k.accesses, s.columns)
    along = columns_first(s, k.accesses)
    k.define_rows(k.program(int(along)), rounded(rows, s.block_rows))
    positions = range(len(k.comp.stores))
    if s.rows:
        align_rows(k)
    k.line(f"block = {k.program(0 if along or not s.rows else 1)}")
    for header, covered in whole_blocks_apart(k):
        with k.indented(header) if header else nullcontext():
            k.define_columns(f"block * {s.block_columns}", covered)
            k.compute(stored(k, positions))
            for position in positions:
                k.store(position)
    early = k.row_start.lanes - 1 if k.row_start is not None else 0
    across, down = GridDim(columns + early, s.block_columns), GridDim(rows, s.block_rows)
    dimensions = [across, down] if along else [down, across]
    return dimensions if s.rows else [across]


def persistent(k: Kernel, partials: Sequence[Partial]) -> list[GridDim]:
    """Whole rows in registers; with reductions over rows, each program takes every `splits`-th
    block of rows."""
    if k.accesses.frame.column_reductions:
        return _row_reducing(k, partials)
    s = k.schedule
    rows = extent(k.accesses, s.rows)
    apart = k.define_apart(1)
    k.define_rows(k.program(0), rounded(rows, s.block_rows))
    k.define_columns("", s.block_columns)
    positions = range(len(k.comp.stores))
    _compute_block(k, stored(k, positions))
    for position in _beside_scans(k, positions):
        k.store(position)
    return [GridDim(rows, s.block_rows), *apart]


def looped(k: Kernel, partials: Sequence[Partial]) -> list[GridDim]:
    """As many passes over the columns as reductions depend on each other."""
    s = k.schedule
    rows = extent(k.accesses, s.rows)
    split = [GridDim(s.splits)] if s.splits > 1 else []
    apart = k.define_apart(1 + len(split))
    k.define_rows(k.program(0), rounded(rows, s.block_rows))
    if split:
        k.line(f"share = {k.program(1)}")
    align_rows(k)
    sums = {top: total for total, top in online(k.body).items()}
    across: list[int] = []
    backwards = k.scans_from_end
    for here in passes(k.comp, k.accesses.frame):
        _pass(k, here, sums, backwards)
        across += here.stores
        backwards = backwards != _can_turn(k)
    _store_rest(k, partials, [p for p in range(len(k.comp.stores)) if p not in across])
    return [GridDim(rows, s.block_rows), *split, *apart]


FORMS = {"grid": grid, "persistent": persistent, "looped": looped}


def _beside_scans(k: Kernel, positions: Sequence[int]) -> Sequence[int]:
    """`positions` of stores in the order in which they are written: where something is scanned,
    what is made last comes first. Triton 3.6 else takes an operand that it moves to the layout of a
    store for one that is needed before, and fails: "operand #1 does not dominate this use"."""
    stores = k.comp.stores
    if not any(isinstance(i, Scan) for i in k.body) or len(k.comp.writes) < len(stores):
        return positions
    return sorted(positions, key=lambda p: stores[p].value, reverse=True)


def stored(k: Kernel, positions: Sequence[int]) -> list[Value]:
    """Values that stores need: theirs, their computed indices and guards."""
    found = []
    for position in positions:
        store = k.comp.stores[position]
        found += [store.value, *(v for v, _ in k.accesses.stores[position].refs)]
        found += [] if store.guard is None else [store.guard]
    return found


def _compute_block(k: Kernel, targets: list[Value]) -> None:
    """All that `targets` need, with reductions and scans over the one block of columns."""
    for value in k.in_order(targets):
        instr = k.body[value]
        if isinstance(instr, Reduce):
            reduce.know(k, value, reduce.block(k, value))
        elif isinstance(instr, Scan):
            k.assign(value, scans.within(k, value))
        else:
            k.value(value)


# reductions over rows


def _row_reducing(k: Kernel, partials: Sequence[Partial]) -> list[GridDim]:
    s, over_rows = k.schedule, k.accesses.frame.column_reductions
    rows, step = extent(k.accesses, s.rows), s.block_rows * s.splits
    k.define_columns("", s.block_columns)
    k.line(f"share = {k.program(0)}")
    waiting, positions = dependents(k.body, over_rows), range(len(k.comp.stores))
    after = [p for p in positions if not waiting.isdisjoint(store_operands(k.comp.stores[p]))]
    inside = [p for p in positions if p not in after]
    arguments = [k.body[v].args[0] for v in over_rows]
    targets = stored(k, inside) + arguments
    hoist(k, targets, "c")
    for value in over_rows:
        accumulator(k, value, "rc")
    steps = str(-(-rows // step)) if isinstance(rows, int) else f"tl.cdiv({k.size(rows)}, {step})"
    with k.indented(f"for step in {k.range(steps)}:"):
        k.define_rows(f"(share + step * {s.splits})", rounded(rows, step))
        _compute_block(k, targets)
        for value in over_rows:
            accumulate(k, value, "rc", over="r")
        for position in inside:
            k.store(position)
    for value in over_rows:
        finish_accumulator(k, value, 0)
    _store_rest(k, partials, after)
    return [GridDim(s.splits)]


def hoist(k: Kernel, targets: list[Value], along: str, varying: Sequence[str] = ()) -> None:
    """Computes what does not change in the loop to come: scalars and values along one dimension;
    scalars alone where more of it is loaded than registers hold beside what the loop loads.
    `varying`: axes of no dimension that the loop goes along."""
    found = _invariant(k, targets, ("", along), varying)
    held = [v for v in found if isinstance(k.body[v], Load) and k.along(k.axes[v])]
    if len(held) > _MOST_HELD:
        found = _invariant(k, targets, ("",), varying)
    k.compute(sorted(found))


def _invariant(
    k: Kernel, targets: list[Value], along: tuple[str, ...], varying: Sequence[str]
) -> set[Value]:
    invariant: set[Value] = set()
    for value in k.needed(targets):
        instr = k.body[value]
        from_invariant = all(v in invariant or v in k.known for v in k.operands(value))
        if (
            from_invariant
            and not isinstance(instr, (Reduce, Scan))
            and k.along(k.axes[value]) in along
            and k.axes[value].isdisjoint(varying)
        ):
            invariant.add(value)
    return invariant


# passes over columns


def _can_turn(k: Kernel) -> bool:
    """Whether each pass may begin where the one before ended, with what is still in cache: scans
    have a direction, and lanes that look for a position meet columns in their order."""
    ordered = (isinstance(i, Scan) or getattr(i, "monoid", "").startswith("arg") for i in k.body)
    return not any(ordered)


def _pass(k: Kernel, here: Pass, sums: dict[Value, Value], backwards: bool) -> None:
    """One loop over the columns. `sums`: maximum -> the sum of exponentials that runs with it."""
    reductions, stores = here.reductions, here.stores
    targets = stored(k, stores) + [v for r in reductions for v in _arguments(k, r)]
    hoist(k, targets, "r")
    kinds = {v: _lanes(k, v, sums) for v in reductions}
    running = {v: _start(k, v, kinds[v]) for v in reductions}
    for value in (v for v in k.needed(targets) if isinstance(k.body[v], Scan)):
        scans.start(k, value)
    for walk in walks(k, backwards):
        for value in reductions:
            if kinds[value] is not None:
                kinds[value].enter(k, walk, running[value])
        with k.indented(f"for {'step' if backwards else 'block'} in {k.range(walk.steps)}:"):
            if backwards:
                k.line(f"block = {walk.mirrored}")
            k.define_columns(f"({walk.number}) * {k.block_columns}", walk.covered)
            _compute_pass(k, targets)
            for value in reductions:
                _run(k, value, kinds[value], running[value])
            for position in _beside_scans(k, stores):
                k.store(position)
    for value in reductions:
        _end(k, value, kinds[value], running[value], sums)


def _arguments(k: Kernel, reduction: Value) -> tuple[Value, ...]:
    several = k.body[reduction].monoid in lanes.TUPLES
    return lanes.arguments(k, reduction) if several else k.operands(reduction)


def _lanes(k: Kernel, value: Value, sums: dict[Value, Value]) -> lanes.Lanes | None:
    """How lanes run a reduction of several results; None for one of a single result."""
    return lanes.EXP if value in sums else lanes.TUPLES.get(k.body[value].monoid)


def _compute_pass(k: Kernel, targets: list[Value]) -> None:
    for value in k.in_order(targets):
        if isinstance(k.body[value], Scan):
            scans.run(k, value)
        else:
            k.value(value)


def _start(k: Kernel, value: Value, kind: lanes.Lanes | None) -> list[str]:
    if kind is not None:
        return kind.start(k, value)
    return [accumulator(k, value, k.along(k.axes[value]).replace("c", "") + "c")]


def _run(k: Kernel, value: Value, kind: lanes.Lanes | None, running: list[str]) -> None:
    if kind is not None:
        kind.run(k, value, running)
    else:
        accumulate(k, value, k.along(k.axes[value]) + "c", over="c")


def _end(
    k: Kernel, value: Value, kind: lanes.Lanes | None, running: list[str],
    sums: dict[Value, Value],
) -> None:  # fmt: skip
    """What `running` lanes have becomes known."""
    if kind is None:
        finish_accumulator(k, value, 1)
        return
    found = kind.end(k, value, running)
    if value not in sums:
        reduce.know(k, value, found)
        return
    top, total = found
    total_of = sums[value]
    k.partial_results |= {value: [top], total_of: [total]}
    k.assign(value, top)
    # As without the online rule: exp(-inf - -inf) is NaN, exp(inf - 0) is not.
    limit, there = ("inf", "inf") if keeps_infinity(k.body, total_of) else ("-inf", "nan")
    k.assign(total_of, f'tl.where({top} == float("{limit}"), float("{there}"), {total})')


def accumulator(k: Kernel, value: Value, along: str) -> str:
    instr = k.body[value]
    carry = reduce.carry_type(instr.dtype)
    start = reduce.identity(instr.monoid, carry)
    k.line(f"acc{value} = tl.full({k.shape(along)}, {start}, {scalars.TYPES[carry]})")
    return f"acc{value}"


def accumulate(k: Kernel, value: Value, along: str, over: str) -> None:
    instr = k.body[value]
    tile = reduce.masked(k, instr.monoid, instr.args[0], along, over)
    k.line(f"acc{value} = {reduce.combined(k, instr.monoid, instr.dtype, f'acc{value}', tile)}")


def finish_accumulator(k: Kernel, value: Value, dimension: int) -> None:
    instr = k.body[value]
    one = k.block_rows == 1 if dimension == 0 else k.block_columns == 1
    text = f"acc{value}" if one else reduce.reduced(k, instr.monoid, f"acc{value}", dimension)
    reduce.know(k, value, [reduce.narrowed(text, instr.dtype)])
    k.partial_results[value] = [k.known[value]]


def _store_rest(k: Kernel, partials: Sequence[Partial], positions: Sequence[int]) -> None:
    """Partial results to scratch; without such, the stores that wait for the reductions'
    results."""
    if not partials:
        k.compute(stored(k, positions))
        for position in positions:
            k.store(position)
    for partial in partials:
        _store_partial(k, partial)


def _store_partial(k: Kernel, partial: Partial) -> None:
    over_rows = partial.value in k.accesses.frame.column_reductions
    along, kept = ("c", k.schedule.columns) if over_rows else ("r", k.schedule.rows)
    along = along if kept else ""
    points, lane = (extent(k.accesses, kept), along) if over_rows else k.kept_points
    lane = lane or "tl.zeros([1, 1], tl.int32)"
    for buffer, text in zip(partial.scratch, k.partial_results[partial.value], strict=True):
        pointer = k.pointer(buffer.name)
        k.write("store", f"{pointer} + (share * {k.size(points)} + {lane})", text, k.mask(along))

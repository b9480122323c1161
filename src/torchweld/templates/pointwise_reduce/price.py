"""Seconds that a kernel takes, as predicted from what it moves and computes.

    launch + (larger + smaller / 2) / efficiency        of memory and arithmetic

Memory counts each buffer once per kernel at the rate of the level that it lives in, more where a
row does not fit on chip between two passes, or where an access leaves most of a cache line unused.
Efficiency is the share of the device that has work. Absolute values are rough; the planner compares
kernels that do the same work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from torchweld.ir.affine import Affine
from torchweld.ir.frame import Frame, frame_of
from torchweld.ir.live import most_live
from torchweld.ir.monoid import TABLE as MONOIDS
from torchweld.ir.nodes import (
    Buffer,
    Cast,
    Comp,
    Instr,
    Load,
    Op,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
    depends_on_loads,
    map_axes,
    operands,
    store_operands,
    value_axes,
)
from torchweld.ir.parts import parts
from torchweld.ir.passes import can_share_rows, passes
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import Size, hint
from torchweld.targets.target import Target
from torchweld.templates.pointwise_reduce.stretches import Stretches, ways

_MOST_STRIDED_COST = 4.0  # neighbouring iterations find part of a line in cache again
# Of single elements, by the last-level cache's rate of bytes that are read. H100: 35 million of
# float32, along images into channels last, 261 us with 420 MB that are read.
_STORED_LINES = 1.35
_HIDDEN = 0.5  # of the shorter of memory and arithmetic: waits overlap in part only
_PARTIAL_BYTES = 4
# Adjacent rows that one unit takes together. On a GPU it needs four programs of 16 to keep memory
# busy: softmax over 8192 x 4000 along the first takes 219 us on an H200, as two kernels 141.
_LANES = {"cpu": 32, "cuda": 64}
# In a scan, programs have eight warps with 16 elements for each thread on the way: one is enough.
# The running sum of 6400 x 2000 along the first, in 125 programs of 16, takes 40 us on an H100.
_LANES_OF_SCAN = 16
# Columns of rows across memory, many of which a GPU's registers hold at a time, and turn where what
# is written lies along the columns. Layer norms of channels into channels last, 24 million float32,
# us on an H200, by a kernel for statistics and one for the rest, and by one: of 192 88 and 54, of
# 384 96 and 65, of 768 97 and 63.
HELD_ACROSS = 1024
_SCALAR = 8.0  # of arithmetic that gcc does not vectorise
_INDEX_ARITHMETIC = 0.25  # masks and positions: compilers hoist and split most of it
# Multiply-adds of a load whose guard depends on what is loaded: a part of a stack that is read at a
# computed place. All parts are asked for, each with an address. A prior.
_CHOSEN_LOAD = 8.0
# Multiply-adds of a load from a window of so many elements, in a GPU's loop, where few are under
# way. H200, depthwise convolutions alone and with a mean behind them, us: 5 x 5, 88 channels 40 and
# 91, 3 x 3, 96 channels 30 and 47, 240 channels 8.9 and 11.9. The means alone are 8, 10 and 2.
_WINDOW, _WINDOW_LOAD = 9, 7.0
# Atomic additions of a GPU happen in its last-level cache: the share of its bytes a second, and
# the time from one to the next on one element. Priors.
_ATOMIC_SHARE = 0.25
_ATOMIC_S = 1e-9
_MARGIN = 0.1  # of a scan's time as a whole: three kernels have more to go wrong


@dataclass(frozen=True, slots=True)
class Cost:
    """`bytes_moved` to and from memory as it is timed, with second passes and what strided reading
    wastes (what is told counts neither: `templates/traffic.py`); `fma` multiply-add equivalents;
    `live` values at the fullest point."""

    seconds: float
    bytes_moved: int
    fma: float
    live: int


@dataclass(frozen=True, slots=True)
class _Facts:
    """Numbers about one Comp, sizes replaced by their hints."""

    extents: Mapping[str, int]
    frame: Frame
    axes: list[frozenset[str]]
    inner: str | None


def cost(
    comp: Comp, buffers: Mapping[str, Buffer], hints: Mapping[str, int], device: Target
) -> Cost:
    """Of one kernel; `comp`, or each of its parts, has a frame."""
    split = parts(comp)
    if len(split) > 1:
        return _together([cost(p, buffers, hints, device) for p in split], device)
    found = fastest_stretches(comp, buffers, hints, device)
    return found[0] if found else _whole(comp, buffers, hints, device)


def fastest_stretches(
    comp: Comp, buffers: Mapping[str, Buffer], hints: Mapping[str, int], device: Target
) -> tuple[Cost, Stretches] | None:
    """The fastest way to scan in stretches on a GPU; None where a scan as a whole is as fast."""
    made = list(ways(comp, buffers)) if device.kind == "cuda" else []
    if not made:
        return None
    found = [(_cost_of(m, buffers, hints, device), m) for m in made]
    best = min(found, key=lambda one: one[0].seconds)
    least_s = (1 - _MARGIN) * _whole(comp, buffers, hints, device).seconds
    return best if best[0].seconds < least_s else None


def _cost_of(made: Stretches, buffers, hints, device: Target) -> Cost:
    """Of the kernels one after the other."""
    known = {**buffers, **made.buffers}
    costs = [_whole(c, known, hints, device) for c in made.comps]
    moved, fma = sum(c.bytes_moved for c in costs), sum(c.fma for c in costs)
    return Cost(sum(c.seconds for c in costs), moved, fma, max(c.live for c in costs))


def _whole(comp: Comp, buffers, hints, device: Target) -> Cost:
    facts = _facts(comp, buffers, hints, device)
    traffic = _traffic(comp, facts, buffers, hints, device)
    memory_s = sum(memory_seconds(b, buffers[name], hints, device) for name, b in traffic.items())
    memory_s += _partials(facts, device) / device.llc_bytes_per_s
    memory_s += _atomic_seconds(comp, facts, buffers, hints, device)
    plain, special = _arithmetic(comp, facts, _in_looped_windows(comp, facts, device))
    compute_s = max(plain, special) / device.fma_per_s
    if device.kind == "cpu" and _reads_jumping_windows(comp, facts, buffers, hints):
        compute_s *= _SCALAR
    hidden_s = _HIDDEN * min(memory_s, compute_s)
    run = _rows_adjacent(comp, facts, buffers, hints, device)
    busy = (memory_s + compute_s - hidden_s) / _efficiency(comp, facts, run, device)
    moved = int(sum(traffic.values()))
    return Cost(device.launch_s + busy, moved, plain + special, most_live(comp))


def _together(costs: list[Cost], device: Target) -> Cost:
    """Of kernels side by side in one launch."""
    seconds = device.launch_s + sum(c.seconds - device.launch_s for c in costs)
    moved, fma = sum(c.bytes_moved for c in costs), sum(c.fma for c in costs)
    return Cost(seconds, moved, fma, max(c.live for c in costs))


def bytes_of(buffer: Buffer, hints: Mapping[str, int]) -> int:
    return prod(_number(s, hints) for s in buffer.shape) * buffer.dtype.bytes


def _number(size: Size, hints: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else hint(size, hints)


def _facts(comp: Comp, buffers: Mapping[str, Buffer], hints, device: Target) -> _Facts:
    extents = {a.name: _number(a.extent, hints) for a in comp.axes}
    frame = frame_of(comp) or Frame(tuple(extents), ())
    facts = _Facts(extents, frame, value_axes(comp.body), None)
    return replace(facts, inner=_inner_axis(comp, facts, buffers, hints, device))


def _inner_axis(comp: Comp, facts: _Facts, buffers, hints, device: Target) -> str | None:
    """The axis along which neighbouring lanes work: the one along which most bytes are contiguous.
    With sums over rows a GPU's lanes lie along columns, wherever memory does."""
    sums_rows = device.kind == "cuda" and facts.frame.column_reductions
    votes = dict.fromkeys(facts.frame.columns if sums_rows else (a.name for a in comp.axes), 0)
    for access in _accesses(comp):
        buffer = buffers[access.buffer]
        touched = _points(access, facts) * buffer.dtype.bytes
        for name in votes:
            if _stride(access, name, buffer, hints) == 1:
                votes[name] += touched
    return max(reversed(votes), key=votes.get) if votes else None


def _accesses(comp: Comp) -> list[Load | Store]:
    return [i for i in comp.body if isinstance(i, Load)] + list(comp.stores)


def _stride(access: Load | Store, name: str, buffer: Buffer, hints) -> int:
    """Elements between neighbours along axis `name`."""
    return sum(
        _number(index.coefficient(name), hints) * _number(stride, hints)
        for index, stride in zip(access.index, buffer.strides)
        if isinstance(index, Affine)
    )


def _traffic(comp: Comp, facts: _Facts, buffers, hints, device: Target) -> dict[str, float]:
    """Bytes moved per buffer. What is read and written (in place) is moved twice."""
    moved: dict[tuple[str, bool], float] = {}
    most: dict[tuple[str, bool], float] = {}
    again = _passes_over_rows(comp, facts, buffers, hints, device)
    repeated = frozenset(_loads_along_columns(comp, facts) if again > 1 else ())
    for access in _accesses(comp):
        buffer = buffers[access.buffer]
        whole = bytes_of(buffer, hints)
        once = min(_points(access, facts) * buffer.dtype.bytes, whole)
        factor = _line_waste(access, facts, buffer, hints, device)
        if access in repeated:
            factor *= again
        if isinstance(access, Store) and access.combine and device.kind == "cpu":
            factor *= 2
        way = access.buffer, isinstance(access, Store)
        moved[way] = moved.get(way, 0) + once * factor
        most[way] = max(most.get(way, 0), whole * factor)
    total = dict.fromkeys((name for name, _ in moved), 0.0)
    for way, moved_bytes in moved.items():
        total[way[0]] += min(moved_bytes, most[way])
    return total


def _atomic_seconds(comp: Comp, facts: _Facts, buffers, hints, device: Target) -> float:
    """Of a GPU's stores that combine, each of which goes to the last-level cache. As many as there
    are for an element on average wait for each other."""
    points = prod(facts.extents.values())
    atomic = [s for s in comp.stores if s.combine not in (None, "add_runs")]
    combined = [buffers[s.buffer] for s in atomic if device.kind == "cuda"]
    rate = _ATOMIC_SHARE * device.llc_bytes_per_s
    moved_s = sum(points * b.dtype.bytes / rate for b in combined)
    elements = min((bytes_of(b, hints) // b.dtype.bytes for b in combined), default=1)
    return max(moved_s, points / max(1, elements) * _ATOMIC_S) if combined else 0.0


def _points(access: Load | Store, facts: _Facts) -> int:
    indirect = operands(access) if isinstance(access, Load) else store_operands(access)
    names = map_axes(access.index).union(*(facts.axes[v] for v in indirect))
    return prod(facts.extents[n] for n in names)


def _line_waste(access, facts: _Facts, buffer: Buffer, hints, device: Target) -> float:
    if facts.inner is None:
        return 1.0
    stride = abs(_stride(access, facts.inner, buffer, hints))
    if stride <= 1:
        return 1.0
    line = device.line_bytes / buffer.dtype.bytes
    if device.kind == "cuda" and _is_turned(access, facts, buffer, hints, device):
        return 1.0
    if device.kind == "cuda" and isinstance(access, Store) and not _in_tiles(facts):
        # A line for each element on the way to the last-level cache, where they come together.
        slower = bytes_per_s(bytes_of(buffer, hints), device) / device.llc_bytes_per_s
        return max(1.0, min(stride, line) * slower / _STORED_LINES)
    return min(stride, line, _MOST_STRIDED_COST)


def _in_tiles(facts: _Facts) -> bool:
    """Whether a GPU's tile of rows and columns is turned in registers, as pointwise ones are."""
    return prod(facts.extents[n] for n in facts.frame.columns) <= HELD_ACROSS


def _is_turned(access, facts: _Facts, buffer: Buffer, hints, device: Target) -> bool:
    """Whether a kernel reads or writes it in tiles that are turned in registers: it is contiguous
    along another axis, for a line and more. Those run at the rate of a copy."""
    whole = not facts.frame.columns or _in_tiles(facts)
    if not whole or any(isinstance(entry, Ref) for entry in access.index):
        return False
    across = [n for n in facts.extents if n != facts.inner and facts.extents[n] > 1]
    strides = {n: _stride(access, n, buffer, hints) for n in across}
    run = 1
    while axis := next((n for n, stride in strides.items() if stride == run), None):
        run *= facts.extents[axis]
    return run * buffer.dtype.bytes >= device.line_bytes


def _passes_over_rows(comp: Comp, facts: _Facts, buffers, hints, device: Target) -> int:
    """How often what varies along the columns is read: once if a row fits on chip, else once per
    stage."""
    columns, loads = facts.frame.columns, _loads_along_columns(comp, facts)
    length = prod(facts.extents[n] for n in columns)
    fits = length * sum(l.dtype.bytes for l in loads) <= device.row_bytes
    if device.kind == "cuda" and length > HELD_ACROSS:
        strides = (_stride(l, c, buffers[l.buffer], hints) for l in loads for c in columns)
        fits = fits and 1 in strides
    return 1 if not columns or fits else _passes(comp, facts, device)


def _loads_along_columns(comp: Comp, facts: _Facts) -> list[Load]:
    columns = set(facts.frame.columns)
    return [i for v, i in enumerate(comp.body) if isinstance(i, Load) and facts.axes[v] & columns]


def _passes(comp: Comp, facts: _Facts, device: Target) -> int:
    """Over a row that does not fit on chip."""
    return len(passes(comp, facts.frame)) if device.kind == "cuda" else _stages(comp, facts)


def _stages(comp: Comp, facts: _Facts) -> int:
    """Passes of a CPU: what varies along the columns waits for so many reductions, plus one."""
    columns = set(facts.frame.columns)
    depth, deepest = [0] * len(comp.body), 0
    for value, instr in enumerate(comp.body):
        depth[value] = max((depth[v] for v in operands(instr)), default=0)
        if facts.axes[value] & columns:
            deepest = max(deepest, depth[value])
        if isinstance(instr, (Reduce, Scan)) and value not in facts.frame.column_reductions:
            depth[value] += 1
    along = (s.value for s in comp.stores if map_axes(s.index) & columns)
    return max(deepest, *(depth[v] for v in along), 0) + 1


def _arithmetic(
    comp: Comp, facts: _Facts, windows: frozenset[str] = frozenset()
) -> tuple[float, float]:
    """Multiply-add equivalents on the ordinary and on the special-function units. `windows`:
    buffers of which loads cost as much as _WINDOW_LOAD."""
    plain = special = 0.0
    loaded = depends_on_loads(comp)
    for value, instr in enumerate(comp.body):
        each, is_special = _instruction_cost(instr)
        if isinstance(instr, Load) and instr.guard is not None and loaded[instr.guard]:
            each = _CHOSEN_LOAD
        elif isinstance(instr, Load) and instr.buffer in windows:
            each = _WINDOW_LOAD
        if each == 0.0:
            continue
        varies = operands(instr)[0] if isinstance(instr, (Reduce, Scan)) else value
        total = each * _times(facts, varies) * (1.0 if loaded[value] else _INDEX_ARITHMETIC)
        if is_special:
            special += total
        else:
            plain += total
    return plain, special


def _in_looped_windows(comp: Comp, facts: _Facts, device: Target) -> frozenset[str]:
    """Buffers of which each point of a GPU's loop reads several elements."""
    if device.kind != "cuda" or not facts.frame.columns:
        return frozenset()
    read = Counter(i.buffer for i in comp.body if isinstance(i, Load))
    return frozenset(b for b, count in read.items() if count >= _WINDOW)


def _reads_jumping_windows(comp: Comp, facts: _Facts, buffers, hints) -> bool:
    """Several elements of one buffer that lie together, and far from the next lane's: a pooling
    with a stride."""
    if facts.inner is None:
        return False
    loads = [i for i in comp.body if isinstance(i, Load)]
    jumping = [
        i.buffer for i in loads if abs(_stride(i, facts.inner, buffers[i.buffer], hints)) > 1
    ]
    return len(set(jumping)) < len(jumping)


def _instruction_cost(instr: Instr) -> tuple[float, bool]:
    """Of one evaluation, and whether it occupies the special-function units."""
    if isinstance(instr, Op):
        return TABLE[instr.name].cost, TABLE[instr.name].sfu
    if isinstance(instr, Cast):
        return 0.5, False
    if not isinstance(instr, (Reduce, Scan)):
        return 0.0, False
    merge = MONOIDS[instr.monoid].cost
    return 1.5 * merge, merge > 1.0  # by exponentials


def _times(facts: _Facts, value: Value) -> int:
    """How often a value is computed: once a row if it is the same along it, else at every point,
    since outer loops do not keep what varies along the inner one."""
    along = facts.frame.columns or ((facts.inner,) if facts.inner else ())
    points = prod(facts.extents.values())
    if facts.axes[value].intersection(along):
        return points
    return points // max(1, prod(facts.extents[n] for n in along))


def memory_seconds(moved: float, buffer: Buffer, hints, device: Target) -> float:
    """To move so many bytes of `buffer`, at the rate of the level of memory that it lives in."""
    return moved / bytes_per_s(bytes_of(buffer, hints), device)


def bytes_per_s(size: int, device: Target) -> float:
    """Of memory, for data of `size` bytes: small ones live in the last-level cache."""
    cached = size <= device.llc_bytes // 4
    return device.llc_bytes_per_s if cached else device.dram_bytes_per_s


def _partials(facts: _Facts, device: Target) -> float:
    """Bytes of the partial sums that each unit writes and a second step reads."""
    columns = prod(facts.extents[n] for n in facts.frame.columns)
    return 2.0 * _PARTIAL_BYTES * columns * device.units * len(facts.frame.column_reductions)


def _rows_adjacent(comp: Comp, facts: _Facts, buffers, hints, device: Target) -> int:
    """Rows that follow each other in memory, where it runs across them: along the innermost of
    their axes, on a GPU also along those around it that continue it (groups of channels)."""
    columns = facts.frame.columns
    if not columns or facts.inner not in facts.frame.rows:
        return 1
    run = facts.extents[facts.inner]
    for access in _accesses(comp) if device.kind == "cuda" else ():
        buffer = buffers[access.buffer]
        step = {n: _stride(access, n, buffer, hints) for n in (*facts.frame.rows, *columns)}
        if step[facts.inner] == 1 and any(step[n] for n in columns):
            run = max(run, _run_of(step, facts))
    return run


def _run_of(step: Mapping[str, int], facts: _Facts) -> int:
    """Elements that rows, which are so many apart, have next to each other."""
    run, rows = 1, [n for n in facts.frame.rows if facts.extents[n] > 1]
    while axis := next((n for n in rows if step[n] == run), None):
        run *= facts.extents[axis]
    return run


def _efficiency(comp: Comp, facts: _Facts, run: int, device: Target) -> float:
    """The share of the device that has work, where so many rows are next to each other."""
    points = prod(facts.extents.values())
    if facts.frame.columns and not _can_split_columns(comp, facts, device):
        tasks = prod(facts.extents[n] for n in facts.frame.rows)
        if facts.inner in facts.frame.rows:
            lanes = _LANES[device.kind]
            if device.kind == "cuda" and any(isinstance(i, Scan) for i in comp.body):
                lanes = _LANES_OF_SCAN
            tasks /= max(1, min(lanes, run))
    else:
        tasks = points / device.grain
    return max(min(1.0, tasks / device.units), 1.0 / device.units)


def _can_split_columns(comp: Comp, facts: _Facts, device: Target) -> bool:
    """Several units may share a row: nothing along it waits for its reductions, or is scattered."""
    if device.kind == "cuda" and not facts.frame.column_reductions:
        return can_share_rows(comp, facts.frame)
    waits = any(isinstance(i, Scan) for i in comp.body) or _stages(comp, facts) > 1
    return not waits and not any(isinstance(i, Ref) for a in _accesses(comp) for i in a.index)

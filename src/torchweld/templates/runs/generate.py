"""Triton source of sums of runs (form.py).

A program walks over stretches of points, one point after the other, and adds up the run that it is
in. A run inside the stretch is stored where it ends. The first and the last may go on in other
stretches: their sums are left in scratch, two of each stretch, in order. They are points of runs
for the kernels that follow, which add them up by scans that start again with each run: one tile a
program, which leaves two sums likewise, where there are many tiles; then one tile after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.codegen.source import GridDim, KernelBundle, KernelSource
from torchweld.codegen.triton import scalars
from torchweld.core import dtypes
from torchweld.ir.nodes import Buffer
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule
from torchweld.templates.pointwise_reduce.gpu.walks import rounded
from torchweld.templates.runs.form import Level, Runs, Walk, levels_of

_SCRATCH = "left"
_FIRST = f"{_SCRATCH}0"
_NOBODY = 2**31 - 1  # behind all keys
_AHEAD = 8  # points whose values are loaded together


def generate(runs: Runs, walk: Walk, buffers: Mapping[str, Buffer], units: int) -> KernelBundle:
    """The kernel that walks, and those that add up what the one before has left."""
    comp = runs.accesses.comp
    (store,) = comp.stores
    levels = levels_of(runs, walk, units)
    scratch = [_left(k, runs, level, buffers[store.buffer]) for k, level in enumerate(levels)]
    known = {**buffers, **{b.name: b for b in scratch}}
    tiles = (_tiles(runs, level, left.name, leaves.name, known)
             for level, left, leaves in zip(levels, scratch, scratch[1:]))  # fmt: skip
    rest = _rest(runs, levels[-1], scratch[-1].name, known)
    sources = _walk(runs, walk, known), *tiles, rest
    return KernelBundle(comp.name, sources, tuple(scratch), prefill=((store.buffer, store.init),))


def _left(number: int, runs: Runs, level: Level, made: Buffer) -> Buffer:
    """What a kernel leaves for a level: sums that are not rounded."""
    size = (level.entries * runs.width,)
    return Buffer(f"{_SCRATCH}{number}", size, dtypes.compute(made.dtype), (1,), made.device)


def _walk(runs: Runs, walk: Walk, buffers: Mapping[str, Buffer]) -> KernelSource:
    steps, stretches, width = walk.steps, walk.stretches, runs.width
    schedule = Schedule("grid", (runs.run,), runs.columns, stretches, walk.columns, walk.num_warps)
    k = _kernel(runs, schedule, buffers, "walk")
    shape = f"[{stretches}, {schedule.block_columns}]"
    lanes = f" * {stretches} + tl.arange(0, {stretches})[:, None]"
    alone = stretches == 1 and runs.columns  # each lane would load a tile of one for itself
    k.line(f"stretch = {k.program(0)}{'' if alone else lanes}")
    k.line(f"first = stretch * {steps}")
    _define_columns(k, runs, 1)
    k.line(f"there = first < {runs.length}")
    k.line(f"opening = {_place(k, runs, 'first', 'there')}")
    end = f"(tl.minimum(first + {steps}, {runs.length}) - 1)"
    k.line(f"closing = {_place(k, runs, end, 'there')}")
    k.line(f"left = {k.pointer(_FIRST)} + (stretch * {2 * width} + c)")
    k.line("held = opening")
    k.line(f"s = tl.zeros({shape}, {_kind(buffers)})")
    with k.indented(f"for start in range(0, {steps}, {_AHEAD}):"):
        for point in range(_AHEAD + 1):
            _read(k, runs, buffers, point, rounded(runs.length, steps * stretches))
        for point in range(_AHEAD):
            k.line(f"s = tl.where(at{point} == held, s, 0) + x{point}")
            k.line(f"held = at{point}")
            k.line(f"ends = held != at{point + 1}")
            k.write("store", "left", "s", k.mask("c", "ends & (held == opening)"))
            _store(k, runs, buffers, "held", "ends & (held != opening) & (held != closing)")
    k.write("store", "left", "s", k.mask("c", "there & (held == opening)"))
    k.write("store", f"left + {width}", "s", k.mask("c", "there & (held != opening)"))
    return k.source([GridDim(-(-runs.length // steps), stretches),
                     GridDim(width, schedule.block_columns)])  # fmt: skip


def _read(
    k: Kernel, runs: Runs, buffers: Mapping[str, Buffer], point: int, covered: int | None
) -> None:
    """The place at{point} and the value x{point}; of the point behind all, the place. Points that
    are not there are of the run before."""
    k.known.clear()
    k.define("r", f"(start + {point})", "first", (runs.run,), None if point == _AHEAD else covered)
    k.compute([runs.keys])
    at = _widened(k, runs, k.value(runs.keys))
    before = f"at{point - 1}" if point else "held"
    k.line(f"at{point} = " + (f"tl.where(rm, {at}, {before})" if k.masked("r") else at))
    if point == _AHEAD:
        return
    value = runs.accesses.comp.stores[0].value
    k.compute([value])
    wide = f"{k.value(value)}.to({_kind(buffers)})"
    k.line(f"x{point} = " + (f"tl.where(rm, {wide}, 0)" if k.masked("r") else wide))


def _rest(runs: Runs, level: Level, left: str, buffers: Mapping[str, Buffer]) -> KernelSource:
    """The sums of the runs that begin or end a stretch, one tile after the other."""
    k, rows = _level_kernel(runs, level, buffers, "rest"), level.rows
    k.line(f"held = tl.full((), -1, {k.index_type})")
    k.line(f"carried = tl.zeros([1, {level.columns}], {_kind(buffers)})")
    with k.indented(f"for start in range(0, {level.entries}, {rows}):"):
        _entries(k, runs, level, left)
        k.line("v = tl.where((lane == 0) & (at == held), v + carried, v)")
        k.line(k.helper("s = _run_sums(at != before, v)"))
        _store(k, runs, buffers, "at", "(at != after)")
        k.line(f"held = tl.max(tl.where(lane == {rows - 1}, at, -1))")
        k.line(f"carried = tl.sum(tl.where(lane == {rows - 1}, s, 0), axis=0)[None, :]")
    return k.source([GridDim(runs.width, level.columns)])


def _tiles(
    runs: Runs, level: Level, left: str, leaves: str, buffers: Mapping[str, Buffer]
) -> KernelSource:
    """The same of one tile, a stretch of the next level: its first run and its last are left."""
    k, rows, width = _level_kernel(runs, level, buffers, "tiles"), level.rows, runs.width
    k.line(f"tile = {k.program(1)}")
    k.line(f"start = tile * {rows}")
    _entries(k, runs, level, left)
    k.line(k.helper("s = _run_sums(at != before, v)"))
    span = rows // 2 * level.steps
    end = f"(tl.minimum((tile + 1) * {span}, {runs.length}) - 1)"
    k.line(f"opening = {_place(k, runs, f'tile * {span}', 'True')}")
    k.line(f"closing = {_place(k, runs, end, 'True')}")
    _store(k, runs, buffers, "at", "(at != after) & (at != opening) & (at != closing)")
    k.line(f"ends = there & ((at != after) | (lane == {rows - 1}))")
    k.line(f"leaves = {k.pointer(leaves)} + (tile * {2 * width} + c)")
    k.write("store", "leaves + 0 * lane", "s", k.mask("c", "ends & (at == opening)"))
    other = "ends & (at == closing) & (at != opening)"
    k.write("store", f"leaves + {width} + 0 * lane", "s", k.mask("c", other))
    return k.source([GridDim(width, level.columns), GridDim(level.entries, rows)])


def _level_kernel(
    runs: Runs, level: Level, buffers: Mapping[str, Buffer], name: str
) -> Kernel:
    schedule = Schedule("grid", (runs.run,), runs.columns, level.rows, level.columns, 4)
    k = _kernel(runs, schedule, buffers, name)
    _define_columns(k, runs, 0)
    k.line(f"lane = tl.arange(0, {level.rows})[:, None]")
    k.helper("_run_joined()")
    return k


def _entries(k: Kernel, runs: Runs, level: Level, left: str) -> None:
    """Of the sums from `start` on: their places `at`, those `before` and `after`, the values `v`.
    Of each stretch the first run, then the last unless they are one."""

    def point_of(entry: str) -> str:
        """The first point of a stretch, or the last."""
        point = f"tl.minimum(({entry} // 2 + {entry} % 2) * {level.steps}, {runs.length})"
        return f"({point} - {entry} % 2)"

    k.line(f"e = (start + lane).to({k.index_type})")
    k.line(f"there = e < {level.entries}")
    for name, entry, mask in (("key", "e", "there"),
                              ("before", "(e - 1)", "(e > 0) & there"),
                              ("after", "(e + 1)", f"e + 1 < {level.entries}")):  # fmt: skip
        k.line(f"{name} = {_place(k, runs, point_of(entry), mask)}")
    k.line(f"first = {_place(k, runs, f'e // 2 * {level.steps}', 'there')}")
    k.line(f"at = tl.where(there, key, {_NOBODY})")
    mask = k.mask("c", "there & ((e % 2 == 0) | (key != first))")
    k.line(f"v = tl.load({k.pointer(left)} + (e * {runs.width} + c), mask={mask}, other=0)")


def _kernel(runs: Runs, schedule: Schedule, buffers: Mapping[str, Buffer], name: str) -> Kernel:
    comp = replace(runs.accesses.comp, name=f"{runs.accesses.comp.name}_{name}")
    return Kernel(replace(runs.accesses, comp=comp), buffers, schedule)


def _define_columns(k: Kernel, runs: Runs, dimension: int) -> None:
    block = k.schedule.block_columns
    k.define_columns(f"{k.program(dimension)} * {block}", rounded(runs.width, block))


def _place(k: Kernel, runs: Runs, point: str, mask: str) -> str:
    """That of a point; -1 where it is not there."""
    keys = k.pointer(runs.accesses.loads[runs.keys].buffer)
    key = f"tl.load({keys} + {point}, mask={mask}, other=0)"
    return f"tl.where({mask}, {_widened(k, runs, key)}, -1)"


def _widened(k: Kernel, runs: Runs, key: str) -> str:
    return f"{key}.to({k.index_type})" + (f" + {runs.offset}" if runs.offset else "")


def _kind(buffers: Mapping[str, Buffer]) -> str:
    return scalars.TYPES[buffers[_FIRST].dtype]


def _store(k: Kernel, runs: Runs, buffers: Mapping[str, Buffer], at: str, mask: str) -> None:
    """The sums `s` of the places `at`, rounded once."""
    (access,) = runs.accesses.stores
    value = k.cast("s", buffers[_FIRST].dtype, buffers[access.buffer].dtype)
    place = f"{k.offset(access.offset)} + {at} * {runs.step}"
    mask = k.mask("c", f"{mask} & ({at} < {runs.rows})")
    k.write("store", f"{k.pointer(access.buffer)} + ({place})", value, mask)

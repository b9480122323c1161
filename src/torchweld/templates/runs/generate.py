"""Triton source of sums of runs (form.py).

A program walks over stretches of points, one point after the other, and adds up the run that it is
in. A run inside the stretch is stored where it ends. The first and the last may go on in other
stretches: their sums are left in scratch, two of each stretch, in order. They are points of runs
for the second kernel, which adds them up by a scan that starts again with each run.
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
from torchweld.templates.runs.form import Runs, Walk, schedules

_SCRATCH = "left"
_NOBODY = 2**31 - 1  # behind all keys
_AHEAD = 8  # points whose values are loaded together


def generate(runs: Runs, walk: Walk, buffers: Mapping[str, Buffer], units: int) -> KernelBundle:
    """Two kernels, and what the first leaves to the second."""
    comp, (first, second) = runs.accesses.comp, schedules(runs, walk, units)
    (store,) = comp.stores
    made, entries = buffers[store.buffer], runs.entries(walk)
    left = Buffer(_SCRATCH, (entries * runs.width,), dtypes.compute(made.dtype), (1,), made.device)
    known = {**buffers, left.name: left}
    sources = (_walk(runs, walk.steps, first, known), _rest(runs, walk.steps, second, known))
    return KernelBundle(comp.name, sources, (left,), prefill=((store.buffer, store.init),))


def _walk(
    runs: Runs, steps: int, schedule: Schedule, buffers: Mapping[str, Buffer]
) -> KernelSource:
    k, width = _kernel(runs, schedule, buffers, "walk"), runs.width
    stretches = schedule.block_rows
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
    k.line(f"left = {k.pointer(_SCRATCH)} + (stretch * {2 * width} + c)")
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


def _rest(
    runs: Runs, steps: int, schedule: Schedule, buffers: Mapping[str, Buffer]
) -> KernelSource:
    """The sums of the runs that begin or end a stretch: of each the first, then the last unless
    they are one."""
    k, entries = _kernel(runs, schedule, buffers, "rest"), 2 * -(-runs.length // steps)
    rows = schedule.block_rows
    _define_columns(k, runs, 0)

    def point_of(entry: str) -> str:
        """The first point of a stretch, or the last."""
        point = f"tl.minimum(({entry} // 2 + {entry} % 2) * {steps}, {runs.length})"
        return f"({point} - {entry} % 2)"

    k.line(f"lane = tl.arange(0, {rows})[:, None]")
    k.line(f"held = tl.full((), -1, {k.index_type})")
    k.line(f"carried = tl.zeros([1, {schedule.block_columns}], {_kind(buffers)})")
    with k.indented(f"for start in range(0, {entries}, {rows}):"):
        k.line(f"e = (start + lane).to({k.index_type})")
        k.line(f"there = e < {entries}")
        for name, entry, mask in (("key", "e", "there"),
                                  ("before", "(e - 1)", "(e > 0) & there"),
                                  ("after", "(e + 1)", f"e + 1 < {entries}")):  # fmt: skip
            k.line(f"{name} = {_place(k, runs, point_of(entry), mask)}")
        k.line(f"first = {_place(k, runs, f'e // 2 * {steps}', 'there')}")
        k.line(f"at = tl.where(there, key, {_NOBODY})")
        mask = k.mask("c", "there & ((e % 2 == 0) | (key != first))")
        k.line(f"v = tl.load({k.pointer(_SCRATCH)} + (e * {runs.width} + c), mask={mask}, other=0)")
        k.line("v = tl.where((lane == 0) & (at == held), v + carried, v)")
        k.helper("_run_joined()")
        k.line(k.helper("s = _run_sums(at != before, v)"))
        _store(k, runs, buffers, "at", "(at != after)")
        k.line(f"held = tl.max(tl.where(lane == {rows - 1}, at, -1))")
        k.line(f"carried = tl.sum(tl.where(lane == {rows - 1}, s, 0), axis=0)[None, :]")
    return k.source([GridDim(runs.width, schedule.block_columns)])


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
    return scalars.TYPES[buffers[_SCRATCH].dtype]


def _store(k: Kernel, runs: Runs, buffers: Mapping[str, Buffer], at: str, mask: str) -> None:
    """The sums `s` of the places `at`, rounded once."""
    (access,) = runs.accesses.stores
    value = k.cast("s", buffers[_SCRATCH].dtype, buffers[access.buffer].dtype)
    place = f"{k.offset(access.offset)} + {at} * {runs.step}"
    mask = k.mask("c", f"{mask} & ({at} < {runs.rows})")
    k.write("store", f"{k.pointer(access.buffer)} + ({place})", value, mask)

"""Triton source of sums of runs (form.py).

A program takes a tile of points and columns. A scan down the points starts again with each run, so
that its last point has the run's sum. Runs that lie inside the tile are stored. The first and the
last may go on in other tiles: their sums are left in scratch, two of each tile, in order, and are a
tile of runs for the second kernel, which scans them block by block.
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
from torchweld.templates.runs.form import Runs, second_of

_SCRATCH = "left"
_NOBODY = 2**31 - 1  # behind all keys


def generate(runs: Runs, schedule: Schedule, buffers: Mapping[str, Buffer]) -> KernelBundle:
    """Two kernels, and what the first leaves to the second."""
    comp = runs.accesses.comp
    (store,) = comp.stores
    made = buffers[store.buffer]
    kind = dtypes.compute(made.dtype)
    entries = 2 * runs.tiles(schedule)
    left = Buffer(_SCRATCH, (entries * runs.width,), kind, (1,), made.device)
    known = {**buffers, left.name: left}
    sources = (_tiles(runs, schedule, known), _rest(runs, schedule, entries, known))
    return KernelBundle(comp.name, sources, (left,), prefill=((store.buffer, store.init),))


def _tiles(runs: Runs, schedule: Schedule, buffers: Mapping[str, Buffer]) -> KernelSource:
    """The sums of the runs inside each tile, and what it leaves."""
    k, rows = _kernel(runs, schedule, buffers, "tiles"), schedule.block_rows
    k.define_rows(k.program(0), rounded(runs.length, rows))
    k.line(f"tile = {k.program(0)}")
    _define_columns(k, runs, 1)
    value = runs.accesses.comp.stores[0].value
    k.compute([runs.keys, value])
    keys, shape = _keys_of(k, runs), f"[{rows}, {schedule.block_columns}]"
    known = f"tl.broadcast_to({k.value(value)}, {shape}).to({_kind(buffers)})"
    at = f"{k.value(runs.keys)}.to({k.index_type})"
    k.line(f"v = tl.where(rm, {known}, 0)" if k.masked("r") else f"v = {known}")
    k.line(f"at = tl.where(rm, {at}, {_NOBODY})" if k.masked("r") else f"at = {at}")
    k.line(f"before = tl.load({keys} + (r - 1), mask=(r > 0) & (r <= {runs.length}), other=-1)")
    k.line(f"after = tl.load({keys} + (r + 1), mask=r + 1 < {runs.length}, other=-1)")
    end = f"tl.minimum(tile * {rows} + {rows}, {runs.length})"
    k.line(f"first = tl.load({keys} + tile * {rows}).to({k.index_type})")
    k.line(f"last = tl.load({keys} + ({end} - 1)).to({k.index_type})")
    _scan(k)
    k.line(f"ends = (at != after) | (tl.arange(0, {rows})[:, None] == {rows - 1})")
    _store(k, runs, buffers, "ends & (at != first) & (at != last)")
    for entry, mask in ((0, "at == first"), (1, "(at == last) & (at != first)")):
        place = f"(tile * 2 + {entry}) * {runs.width} + c + tl.zeros({shape}, tl.int32)"
        k.write("store", f"{k.pointer(_SCRATCH)} + ({place})", "s", k.mask("c", f"ends & ({mask})"))
    return k.source([GridDim(runs.length, rows), GridDim(runs.width, schedule.block_columns)])


def _rest(
    runs: Runs, schedule: Schedule, entries: int, buffers: Mapping[str, Buffer]
) -> KernelSource:
    """The sums of the runs that begin or end a tile: of each tile the first, then the last unless
    they are one."""
    second, step, index = second_of(runs, schedule), schedule.block_rows, "tl.minimum({}, {})"
    k = _kernel(runs, second, buffers, "rest")
    keys, rows = _keys_of(k, runs), second.block_rows
    _define_columns(k, runs, 0)

    def key_of(entry: str) -> str:
        """Where the key of an entry lies: at the first point of a tile, or the last."""
        point = index.format(f"({entry} // 2 + {entry} % 2) * {step}", runs.length)
        return f"{keys} + ({point} - {entry} % 2)"

    k.line(f"lane = tl.arange(0, {rows})[:, None]")
    k.line(f"held_at = tl.full((), -1, {k.index_type})")
    k.line(f"held = tl.zeros([1, {second.block_columns}], {_kind(buffers)})")
    with k.indented(f"for start in range(0, {entries}, {rows}):"):
        k.line(f"e = (start + lane).to({k.index_type})")
        k.line(f"there = e < {entries}")
        for name, entry, mask in (("key", "e", "there"),
                                  ("before", "(e - 1)", "(e > 0) & there"),
                                  ("after", "(e + 1)", f"e + 1 < {entries}")):  # fmt: skip
            k.line(f"{name} = tl.load({key_of(entry)}, mask={mask}, other=-1)")
        k.line(f"first = tl.load({keys} + e // 2 * {step}, mask=there, other=-1)")
        k.line(f"at = tl.where(there, key.to({k.index_type}), {_NOBODY})")
        mask = k.mask("c", "there & ((e % 2 == 0) | (key != first))")
        k.line(f"v = tl.load({k.pointer(_SCRATCH)} + (e * {runs.width} + c), mask={mask}, other=0)")
        k.line("v = tl.where((lane == 0) & (at == held_at), v + held, v)")
        _scan(k)
        _store(k, runs, buffers, "(at != after)")
        k.line(f"held_at = tl.max(tl.where(lane == {rows - 1}, at, -1))")
        k.line(f"held = tl.sum(tl.where(lane == {rows - 1}, s, 0), axis=0)[None, :]")
    return k.source([GridDim(runs.width, second.block_columns)])


def _kernel(runs: Runs, schedule: Schedule, buffers: Mapping[str, Buffer], name: str) -> Kernel:
    comp = replace(runs.accesses.comp, name=f"{runs.accesses.comp.name}_{name}")
    return Kernel(replace(runs.accesses, comp=comp), buffers, schedule)


def _define_columns(k: Kernel, runs: Runs, dimension: int) -> None:
    block = k.schedule.block_columns
    k.define_columns(f"{k.program(dimension)} * {block}", rounded(runs.width, block))


def _keys_of(k: Kernel, runs: Runs) -> str:
    return k.pointer(runs.accesses.loads[runs.keys].buffer)


def _kind(buffers: Mapping[str, Buffer]) -> str:
    return scalars.TYPES[buffers[_SCRATCH].dtype]


def _scan(k: Kernel) -> None:
    k.helper("_run_joined()")
    k.line(k.helper("s = _run_sums(at != before, v)"))


def _store(k: Kernel, runs: Runs, buffers: Mapping[str, Buffer], mask: str) -> None:
    """The sums `s` of the places `at`, rounded once."""
    (access,) = runs.accesses.stores
    value = k.cast("s", buffers[_SCRATCH].dtype, buffers[access.buffer].dtype)
    place = f"{k.offset(access.offset)} + at * {runs.step}"
    mask = k.mask("c", f"{mask} & (at < {runs.rows})")
    k.write("store", f"{k.pointer(access.buffer)} + ({place})", value, mask)

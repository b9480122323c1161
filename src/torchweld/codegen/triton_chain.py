"""Rows too long for one program, whose results wait for the whole row: one kernel that reads memory
once.

    program p   takes in chunk p, and leaves what it found of the row;
                then finishes chunk p - lag, whose row has been taken in by then

A chunk is one of the `splits` shares of a row. Between the two, it stays in the last-level cache:
as many chunks lie there as there are programs in flight. No program waits for ever: each draws its
number when it starts, so those with lower numbers, for which alone it waits, are running, and they
wait for nothing before they have left what is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchweld.codegen import triton_lanes as lanes
from torchweld.codegen import triton_reduce as reduce
from torchweld.codegen.source import GridDim
from torchweld.codegen.triton_emit import Kernel
from torchweld.codegen.triton_forms import (
    end,
    lanes_of,
    one_pass,
    store_partial,
    store_rest,
    stored,
)
from torchweld.ir.nodes import Buffer, Value
from torchweld.ir.passes import online, stages
from torchweld.schedule.cuda import extent, next_pow2
from torchweld.schedule.partials import Partial


def chain(k: Kernel, partials: Sequence[Partial], done: Buffer) -> list[GridDim]:
    """`done`: for each row a counter, of the programs that have left their part and of those that
    have read all parts; then one of the programs that have started. All are zero before and
    after."""
    s, found = k.schedule, {p.value: p.scratch for p in partials}
    sums = {top: total for total, top in online(k.body).items()}
    own = [v for v in found if v not in sums.values()]
    stage, positions = stages(k.body), range(len(k.comp.stores))
    first = [p for p in positions if max(stage[v] for v in stored(k, [p])) == 0]
    across = [p for p in positions if "c" in k.along(k.store_axes(p)) and p not in first]
    rows, counter = extent(k.accesses, s.rows), k.pointer(done.name)
    chunks = rows * s.splits
    _draw(k, f"{counter} + {rows}", chunks + s.lag)
    with k.indented(f"if chunk < {chunks}:"):
        _place(k, "chunk")
        one_pass(k, own, first, sums, backwards=False)
        for partial in partials:
            store_partial(k, partial)
        k.line("tl.debug_barrier()")
        k.line(f"tl.atomic_add({counter} + row, 1)")
    with k.indented(f"if chunk >= {s.lag}:"):
        _place(k, f"(chunk - {s.lag})")
        _wait(k, f"tl.atomic_add({counter} + row, 0)")
        merging = k.facing(replace(s, block_columns=max(16, next_pow2(s.splits))))
        for value in own:
            parts = found[value] + found.get(sums.get(value), ())
            lanes_left = _recalled(merging, value, parts, sums)
            end(merging, value, lanes_of(k, value, sums), lanes_left, sums)
        for name in dict.fromkeys(merging.known.values()):
            k.line(f"{name} = tl.sum({name})")  # a scalar: tiles of one point have one layout
        k.known |= merging.known
        _leave(k, counter)
        one_pass(k, [], across, sums, backwards=True)
        store_rest(k, (), [p for p in positions if p not in (*first, *across)])
    return [GridDim(chunks + s.lag)]


def _draw(k: Kernel, started: str, programs: int) -> None:
    k.line(f"chunk = tl.atomic_add({started}, 1)")
    with k.indented(f"if chunk == {programs - 1}:"):
        k.line(f"tl.store({started}, 0)")
    if k.index_type == "tl.int64":
        k.line("chunk = chunk.to(tl.int64)")


def _place(k: Kernel, chunk: str) -> None:
    k.line(f"row = {chunk} // {k.schedule.splits}")
    k.line(f"share = {chunk} % {k.schedule.splits}")
    k.define_rows("row", extent(k.accesses, k.schedule.rows))


def _wait(k: Kernel, look: str) -> None:
    """Until all of the row's parts are there."""
    k.line(f"arrived = {look}")
    with k.indented(f"while arrived < {k.schedule.splits}:"):
        k.line(f"arrived = {look}")
    k.line("tl.debug_barrier()")


def _leave(k: Kernel, counter: str) -> None:
    """The last to have read the parts leaves the counter as it was found."""
    k.line("tl.debug_barrier()")
    k.line(f"arrived = tl.atomic_add({counter} + row, 1)")
    with k.indented(f"if arrived == {2 * k.schedule.splits - 1}:"):
        k.line(f"tl.store({counter} + row, 0)")


def _recalled(
    k: Kernel, value: Value, parts: Sequence[Buffer], sums: dict[Value, Value]
) -> list[str]:
    """The parts of a row as lanes of the reduction `value`."""
    kind, instr = lanes_of(k, value, sums), k.body[value]
    single = (reduce.identity(instr.monoid, reduce.carry_type(instr.dtype)),)
    rows, names = k.size(extent(k.accesses, k.schedule.rows)), lanes.names(value, len(parts), kind)
    k.line(f"part = tl.arange(0, {k.block_columns})[None, :]")
    for name, part, nothing in zip(names, parts, kind.nothing if kind else single):
        place = f"{k.pointer(part.name)} + (part * {rows} + row)"
        mask = f"mask=part < {k.schedule.splits}, other={nothing}"
        k.line(f'{name} = tl.load({place}, {mask}, cache_modifier=".cg")')
    return names

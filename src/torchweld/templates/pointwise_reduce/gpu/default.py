"""The schedule of a kernel on a GPU unless another is asked for, and neighbours for a tuner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchweld.core.errors import InvalidIR
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.nodes import (
    Buffer,
    Comp,
)
from torchweld.targets.target import Target
from torchweld.templates.pointwise_reduce.gpu.branches import thinned
from torchweld.templates.pointwise_reduce.gpu.pointwise import (
    pointwise,
)
from torchweld.templates.pointwise_reduce.gpu.reads import most_points
from torchweld.templates.pointwise_reduce.gpu.reducing import reducing
from torchweld.templates.pointwise_reduce.gpu.schedule import (
    Schedule,
    supports,
    valid,
)
from torchweld.templates.pointwise_reduce.gpu.sums_over_rows import column_reducing


def schedule(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    table: Target,
    hints: Mapping[str, int] | None = None,
) -> Schedule:
    """The default schedule for a device. `hints`: typical values of symbols.

    Raises InvalidIR where `supports` gives a reason.
    """
    reason = supports(comp, buffers)
    if reason is not None:
        raise InvalidIR(f"{comp.name} cannot be a CUDA kernel: {reason}")
    return default(addressed(comp, buffers, hints), hints or {}, table.units)


def candidates(accesses: Accesses, hints: Mapping[str, int], sm_count: int) -> Iterator[Schedule]:
    """The default first, then at most five neighbours: what a tuner may time."""
    first = default(accesses, hints, sm_count)
    seen = set()
    for change in _neighbours(first):
        near = replace(first, **change)
        if near not in seen and valid(near, accesses):
            seen.add(near)
            yield near


def _neighbours(s: Schedule) -> Iterator[dict[str, int]]:
    """Other warps and tiles; for sums over rows, other numbers of steps that loads run ahead in
    place of some."""
    dimension = "block_rows" if s.rows else "block_columns"
    sums_over_rows = s.form == "persistent" and s.splits > 1
    tiles = ((1, 1), (1, 2), (1, 0.5), (2, 2)) + (((2, 1), (0.5, 1)) if not sums_over_rows else ())
    for points, warps in tiles:
        tile = int(getattr(s, dimension) * points)
        yield {dimension: tile, "num_warps": int(s.num_warps * warps)}
    if sums_over_rows:
        yield from ({"stages": n} for n in (1, 2, 3) if n != s.stages)


def default(
    accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool = True
) -> Schedule:
    """The first guess. `split`: whether a second kernel may merge partial results."""
    found = _default(accesses, hints, sm_count, split)
    thin = thinned(found, accesses)
    return thin if valid(thin, accesses) else found


def _default(
    accesses: Accesses, hints: Mapping[str, int], sm_count: int, split: bool
) -> Schedule:
    """For any operations."""
    frame = accesses.frame
    if frame.column_reductions:
        return column_reducing(accesses, hints, sm_count)
    if frame.columns:
        return reducing(accesses, hints, sm_count, split)
    return _in_registers(pointwise(accesses, hints, sm_count), accesses, hints)


def _in_registers(found: Schedule, accesses: Accesses, hints: Mapping[str, int]) -> Schedule:
    """With fewer points a thread, where so many tiles are read and written that they wait for each
    other in registers (windows)."""
    most = most_points(accesses, hints)
    while found.points_per_thread > most:
        wide = found.block_columns > 32 * found.num_warps or found.block_rows == 1
        halved = "block_columns" if wide else "block_rows"
        found = replace(found, **{halved: getattr(found, halved) // 2})
    return found

"""Launching compiled Triton kernels: the grid and arguments are worked out once for known sizes, so
that a launch is one call into the driver's launcher, past Triton's own dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchweld.codegen.source import BufferArg, GridDim, KernelSource
from torchweld.ir.size import evaluate
from torchweld.runtime.dispatch import Pointer


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """`launch(grid, stream, values)` starts the kernel; `values` holds sizes and constants already,
    pointers go into `moving`: (position, where)."""

    launch: object
    grid: tuple[int, int, int]
    values: tuple[int, ...]
    moving: tuple[tuple[int, Pointer], ...]

    def __call__(self, bases, stream: int) -> None:
        values = list(self.values)
        for position, pointer in self.moving:
            values[position] = bases[pointer.base] + pointer.offset
        self.launch(self.grid, stream, values)


def grid_of(dims: tuple[GridDim, ...], sizes: Mapping[str, int]) -> tuple[int, int, int]:
    counts = [_programs(d, sizes) for d in dims]
    return (*counts, 1, 1, 1)[:3]


def launch_plan(source: KernelSource, launch, where, sizes: Mapping[str, int]) -> LaunchPlan | None:
    """None if there is nothing to compute. `where(buffer name)` gives a Pointer."""
    grid = grid_of(source.grid, sizes)
    if 0 in grid:
        return None
    values = [0 if isinstance(a, BufferArg) else evaluate(a.size, sizes) for a in source.args]
    values += [value for _, value in source.constants]  # Triton's launcher parses them, unused
    moving = tuple(
        (i, where(a.buffer)) for i, a in enumerate(source.args) if isinstance(a, BufferArg)
    )
    return LaunchPlan(launch, grid, tuple(values), moving)


def _programs(dim: GridDim, sizes: Mapping[str, int]) -> int:
    count = -(-evaluate(dim.size, sizes) // dim.block)
    return count if dim.limit is None else min(count, dim.limit)

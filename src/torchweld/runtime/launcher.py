"""Launching compiled Triton kernels: the grid and arguments are worked out once for known sizes, so
that a launch is one call into the driver's launcher, past Triton's own dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchweld.codegen.source import BufferArg, GridDim, KernelSource
from torchweld.ir.size import evaluate


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """`launch(grid, stream, values, device, aligned)` starts the kernel; `values` holds sizes and
    constants already, pointers go into `moving`: (position, base, offset)."""

    launch: object
    grid: tuple[int, int, int]
    values: tuple[int, ...]
    moving: tuple[tuple[int, int, int], ...]

    def __call__(self, bases, device: int, stream: int) -> None:
        values, bits = list(self.values), 0
        for position, base, offset in self.moving:
            values[position] = address = bases[base] + offset
            bits |= address
        self.launch(self.grid, stream, values, device, not bits & 15)


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
    pointers = [(i, where(a.buffer)) for i, a in enumerate(source.args) if isinstance(a, BufferArg)]
    moving = tuple((i, pointer.base, pointer.offset) for i, pointer in pointers)
    return LaunchPlan(launch, grid, tuple(values), moving)


def _programs(dim: GridDim, sizes: Mapping[str, int]) -> int:
    count = -(-evaluate(dim.size, sizes) // dim.block)
    return count if dim.limit is None else min(count, dim.limit)

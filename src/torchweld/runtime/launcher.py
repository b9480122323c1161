"""Launching one compiled Triton kernel: the grid and arguments are worked out once for known sizes,
so that a launch is one call into Triton's compiled launcher, past its dispatcher. Many in one call:
`launch_table.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchweld.codegen.source import BufferArg, DescriptorArg, GridDim, KernelSource, SizeArg
from torchweld.ir.size import evaluate


@dataclass(frozen=True, slots=True)
class Window:
    """What Triton's launcher asks of a TMA descriptor's tensor: `shape` and `strides` in
    elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str = "zero"

    @property
    def base(self) -> Window:
        return self

    def data_ptr(self) -> int:
        return self.address


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """`launch(grid, stream, values, device, aligned)` starts the kernel; `values` holds sizes and
    constants already, pointers go into `moving`: (position, base, offset). `windows`: the positions
    of TMA descriptors, their shapes and strides; where one's address is no multiple of 16 bytes,
    `otherwise` is run."""

    launch: object
    grid: tuple[int, int, int]
    values: tuple[int, ...]
    moving: tuple[tuple[int, int, int], ...]
    windows: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] = ()
    otherwise: LaunchPlan | None = None

    def __call__(self, bases, device: int, stream: int) -> None:
        values, bits = list(self.values), 0
        for position, base, offset in self.moving:
            values[position] = address = bases[base] + offset
            bits |= address
        for position, shape, strides in self.windows:
            if values[position] & 15:
                self.otherwise(bases, device, stream)
                return
            values[position] = Window(values[position], shape, strides)
        self.launch(self.grid, stream, values, device, not bits & 15)


def grid_of(dims: tuple[GridDim, ...], sizes: Mapping[str, int]) -> tuple[int, int, int]:
    counts = [_programs(d, sizes) for d in dims]
    return (*counts, 1, 1, 1)[:3]


def launch_plan(source: KernelSource, launch, where, sizes: Mapping[str, int]) -> LaunchPlan | None:
    """None if there is nothing to compute. `where(buffer name)` gives a Pointer."""
    grid = grid_of(source.grid, sizes)
    if 0 in grid:
        return None
    values = [evaluate(a.size, sizes) if isinstance(a, SizeArg) else 0 for a in source.args]
    values += [value for _, value in source.constants]  # Triton's launcher parses them, unused
    moving = tuple(_moving(i, a, where, sizes) for i, a in enumerate(source.args)
                   if not isinstance(a, SizeArg))  # fmt: skip
    windows = tuple(_window(i, a, sizes) for i, a in enumerate(source.args)
                    if isinstance(a, DescriptorArg))  # fmt: skip
    other = source.otherwise and launch_plan(source.otherwise, launch.otherwise(), where, sizes)
    return LaunchPlan(launch, grid, tuple(values), moving, windows, other)


def _moving(
    position: int, argument: BufferArg | DescriptorArg, where, sizes: Mapping[str, int]
) -> tuple[int, int, int]:
    pointer = where(argument.buffer)
    if isinstance(argument, DescriptorArg):
        offset = evaluate(argument.offset, sizes) * argument.item_bytes
    else:
        offset = argument.offset_bytes
    return position, pointer.base, pointer.offset + offset


def _window(position: int, argument: DescriptorArg, sizes: Mapping[str, int]):
    shape, strides = (tuple(evaluate(s, sizes) for s in part)
                      for part in (argument.shape, argument.strides))  # fmt: skip
    return position, shape, strides


def _programs(dim: GridDim, sizes: Mapping[str, int]) -> int:
    count = -(-evaluate(dim.size, sizes) // dim.block)
    return count if dim.limit is None else min(count, dim.limit)

"""Launches of consecutive kernels as a table, which the runtime's C++ (`native/launches.h`) walks:
one call for all of them.

What it cannot launch goes through Triton's launcher: a kernel whose addresses are not aligned, or
one that does not take what we would give it.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from types import ModuleType

from torchweld.runtime.launcher import LaunchPlan

_NUMBER, _POINTER = 0, 1  # kinds of parameters; above: the address of a TMA descriptor
_EARLY, _TOGETHER = 1, 2
_MOST_PARAMETERS, _MOST_MAPS = 256, 8
_MAP_BYTES = 128
_NO_FILL = 0  # what is out of bounds is zero
_LEFT_TO_PYTHON = (0,) * 8
_SCRATCH = ((_NUMBER, 0, 0),) * 2  # Triton's kernels end in two addresses for memory of their own
_BYTES = {"i32": 4, "i64": 8}  # of numbers; all others are addresses

Parameter = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TileMap:
    """How tiles of `block` elements lie in memory. `element`, `swizzle`: the driver's numbers."""

    element: int
    swizzle: int
    item_bytes: int
    block: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Handle:
    """A loaded kernel: `function` as the driver knows it, the threads of a block, bytes of shared
    memory, whether it may begin `early` and whether all blocks must run `together`. `maps`: of its
    TMA descriptors, in order."""

    function: int
    threads: int
    shared_bytes: int
    early: bool
    together: bool
    maps: tuple[TileMap, ...] = ()


@dataclass(frozen=True)
class LaunchTable:
    """`rows`: of all `plans`. `maps`: memory that rows refer to."""

    plans: tuple[LaunchPlan, ...]
    rows: array
    maps: tuple[ctypes.Array, ...]

    @property
    def address(self) -> int:
        """Of the first row, for as long as this lives."""
        return self.rows.buffer_info()[0]


def launch_table(plans: Sequence[LaunchPlan], device: int, native: ModuleType) -> LaunchTable:
    """For the current device, number `device`."""
    rows, kept = array("q"), []
    for plan in plans:
        handle = plan.launch.handle(device)
        row = None if handle is None else _row(plan, handle, native, kept)
        rows.extend(row or _LEFT_TO_PYTHON)
    return LaunchTable(tuple(plans), rows, tuple(kept))


def _row(plan: LaunchPlan, handle: Handle, native: ModuleType, kept: list) -> list[int] | None:
    maps = _encoded(plan, handle, native)
    if maps is None:
        return None
    kept += maps
    given = [*_parameters(plan, [_aligned(m) for m in maps]), *((p, 8) for p in _SCRATCH)]
    if native.parameter_bytes(handle.function) != [size for _, size in given]:
        return None
    if len(given) > _MOST_PARAMETERS or len(maps) > _MOST_MAPS:
        return None
    flags = _EARLY * bool(handle.early) + _TOGETHER * bool(handle.together)
    head = handle.function, *plan.grid, handle.threads, handle.shared_bytes, flags, len(given)
    return [*head, *chain.from_iterable(parameter for parameter, _ in given)]


def _parameters(plan: LaunchPlan, maps: list[int]) -> list[tuple[Parameter, int]]:
    """Each with its bytes, in the kernel's order. A descriptor is followed by its shape and
    strides."""
    moving = {position: (base, offset) for position, base, offset in plan.moving}
    windows = {position: rest for position, *rest in plan.windows}
    found, maps = [], iter(maps)
    for position, kind in enumerate(plan.launch.source.signature):
        if position in windows:
            shape, strides = windows[position]
            found.append(((next(maps), *moving[position]), _MAP_BYTES))
            found += [((_NUMBER, n, 0), 4) for n in shape] + [((_NUMBER, n, 0), 8) for n in strides]
        elif position in moving:
            found.append(((_POINTER, *moving[position]), 8))
        else:
            found.append(((_NUMBER, plan.values[position], 0), _BYTES[kind]))
    return found


def _encoded(plan: LaunchPlan, handle: Handle, native: ModuleType) -> list[ctypes.Array] | None:
    """A descriptor of each window, at no address yet."""
    made = []
    for (_, shape, strides), tiles in zip(plan.windows, handle.maps):
        memory = (ctypes.c_char * (2 * _MAP_BYTES))()
        steps = tuple(n * tiles.item_bytes for n in strides[:-1])
        if not native.encode(
            _aligned(memory), tiles.element, tiles.swizzle, _NO_FILL,
            shape[::-1], steps[::-1], tiles.block[::-1],
        ):  # fmt: skip
            return None
        made.append(memory)
    return made


def _aligned(memory: ctypes.Array) -> int:
    """The first address in it that a descriptor may have."""
    return -(-ctypes.addressof(memory) // _MAP_BYTES) * _MAP_BYTES

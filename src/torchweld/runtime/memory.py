"""Where temporaries live: offsets in one arena by lifetime, and the arenas themselves.

Buffers whose lifetimes overlap get disjoint ranges. Largest first, each into the tightest gap left
between those already placed that live at the same time (Pisarchyk and Lee, "Efficient memory
management for deep neural net inference", 2020).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from torchweld.runtime.huge_pages import FRESH_BYTES, with_huge_pages
from torchweld.runtime.torch_private import bare_window

ALIGNMENT = 256  # bytes: vector loads and TMA on a GPU, whole cache lines on a CPU
# An arena of so many bytes does not matter to the peak of a device. A new one with its views costs
# a program 27 us, where a small training step has two and takes 270 (EPYC).
SMALL_BYTES = {"cpu": 1 << 18, "cuda": 1 << 22}


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `bytes`, needed from step `first` to step `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets by buffer name and the arena's size, all multiples of ALIGNMENT."""

    offsets: dict[str, int]
    total: int


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def assign(lifetimes: Iterable[Lifetime]) -> Layout:
    """Offsets for all; deterministic. Empty buffers share offset 0."""
    placed, offsets, total = _Placed(), {}, 0
    for life in sorted(lifetimes, key=lambda v: (-v.bytes, v.first, v.name)):
        size = aligned(life.bytes)
        start = _tightest_gap(sorted(placed.beside(life)), size)
        offsets[life.name] = start
        if size:
            placed.add(start, start + size, life)
            total = max(total, start + size)
    return Layout(offsets, total)


class _Placed:
    """Ranges taken so far, found by when they live: lives of up to 2^k steps are kept together, by
    the 2^k steps in which they begin. So there is little to look at beside a short one, however
    long the graph is."""

    def __init__(self) -> None:
        self._taken: dict[int, dict[int, list[tuple[int, int, Lifetime]]]] = {}

    def add(self, start: int, end: int, life: Lifetime) -> None:
        k = (life.last - life.first).bit_length()
        self._taken.setdefault(k, {}).setdefault(life.first >> k, []).append((start, end, life))

    def beside(self, life: Lifetime) -> list[tuple[int, int]]:
        """(start, end) of those that live at the same time."""
        found = []
        for k, taken in self._taken.items():
            places = range((life.first >> k) - 1, (life.last >> k) + 1)
            few = places if len(places) < len(taken) else taken
            for place in few:
                found += [(s, e) for s, e, v in taken.get(place, ()) if _overlap(life, v)]
        return found


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def _tightest_gap(busy: list[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap that holds `size`, else the end of what is busy."""
    best, best_gap, cursor = None, None, 0
    for start, end in busy:
        gap = start - cursor
        if gap >= size and (best_gap is None or gap < best_gap):
            best, best_gap = cursor, gap
        cursor = max(cursor, end)
    return cursor if best is None else best


class Arena:
    """One block of memory on one device, used by one call at a time. `bindings`: what programs
    prepared for this very block (addresses, tensor views), so that they need not do so again."""

    def __init__(self, device: torch.device, size: int) -> None:
        with for_any_mode():
            memory = torch.empty(aligned(size) + ALIGNMENT, dtype=torch.uint8, device=device)
        self.memory = with_huge_pages(memory) if size > FRESH_BYTES else memory
        address = memory.data_ptr()
        self.start = -address % ALIGNMENT
        self.address = address + self.start
        self.size, self.is_small = size, size <= SMALL_BYTES[device.type]
        self.bindings: WeakKeyDictionary = WeakKeyDictionary()
        self._flat: dict[torch.dtype, torch.Tensor] = {}

    def view(self, offset: int, dtype: torch.dtype, shape, strides) -> torch.Tensor:
        """A tensor at byte `offset`, which is aligned to its dtype. Within `for_any_mode`."""
        flat = self._flat.get(dtype)
        if flat is None:
            flat = self._flat[dtype] = self.memory.view(dtype)
        return bare_window(flat, shape, strides, (self.start + offset) // dtype.itemsize)


def for_any_mode() -> AbstractContextManager:
    """Tensors made inside may be written to by calls in inference mode and by others."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def is_out_of_memory(error: BaseException) -> bool:
    """Torch's allocator on CUDA has a type for it; the driver and the CPU's have messages."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in ("out of memory", "DefaultCPUAllocator"))


class ArenaPool:
    """Idle arenas, at most one per place (a device, or a stream of one): programs that run one
    after another share it, so that idle memory is the largest of their needs, not the sum. Threads
    need no lock: an arena is in the dict or with one caller, and of two that come back at once one
    is freed."""

    def __init__(self) -> None:
        self._idle: dict[Hashable, Arena] = {}

    def take(self, place: Hashable, device: torch.device, size: int) -> Arena:
        """An arena of at least `size` bytes. An idle one that is too small, or so large that it
        would add to the call's peak, is freed first: the two never exist together."""
        arena = self._idle.pop(place, None)
        if arena is not None and size <= arena.size <= 2 * size + SMALL_BYTES[device.type]:
            return arena
        del arena
        return Arena(device, size)

    def give(self, place: Hashable, arena: Arena) -> None:
        """Keeps the larger of this one and the idle one."""
        idle = self._idle.setdefault(place, arena)
        if idle.size < arena.size:
            self._idle[place] = arena

    def release(self, device: torch.device | None = None) -> None:
        """Frees what is idle, everywhere or on one device."""
        for place, arena in list(self._idle.items()):
            if device in (None, arena.memory.device):
                self._idle.pop(place, None)

    @property
    def idle_bytes(self) -> dict[Hashable, int]:
        return {place: arena.size for place, arena in list(self._idle.items())}


POOL = ArenaPool()

"""What a step of decoding reads and writes of a cache.

A growing cache makes all of its keys and values anew for each token, of other sizes each time. Here
they are in tensors of a capacity: a step writes its own positions, and its sizes stay the same
until the room is used up. A cache of fixed size keeps its tensors, which are written in place.

A layer with a window is a ring of as many slots as the window has positions: position p is in slot
p modulo that number, so that a step writes one slot and moves none.

Nobody else sees this: who looks at the cache's own tensors gets them as they would be
(`layers.py`), and the store is no longer used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

_LEAST_ROOM = 64  # positions; a step of decoding reads them all
_SHARE_OF_LENGTH = 4  # beyond that, up to a quarter of the positions is room


def capacity_for(length: int) -> int:
    """Positions to make room for, of which `length` are to be used at once."""
    unit = max(_LEAST_ROOM, (1 << (max(length, 1).bit_length() - 1)) // _SHARE_OF_LENGTH)
    return -(-length // unit) * unit


@dataclass(frozen=True)
class Layout:
    """Of a layer that grows: keys [batch, heads, positions, key size], values likewise, of which
    only the last `window` positions are read (None: all)."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    device: torch.device
    window: int | None = None

    @classmethod
    def of(cls, keys: torch.Tensor, values: torch.Tensor, window: int | None = None) -> Layout:
        heads, size = keys.shape[1], keys.shape[-1]
        return cls(heads, size, values.shape[-1], keys.dtype, keys.device, window)

    def part(self, batch: int, capacity: int) -> Part:
        slots = capacity if self.window is None else min(self.window, capacity)
        keys, values = (
            torch.zeros((batch, self.heads, slots, size), dtype=self.dtype, device=self.device)
            for size in (self.key_size, self.value_size)
        )
        return Part("full" if self.window is None else "ring", (keys, values), self.window)


@dataclass(frozen=True)
class Part:
    """What a graph has of one layer. `kind`, of `traced_layers.TRACED`: "full" and "ring" are keys
    and values [batch, heads, slots, size], "read" are keys and values that stay as they are,
    "states" are tensors [batch, ...] of any number. `window`: of a ring."""

    kind: str
    tensors: tuple[torch.Tensor, ...]
    window: int | None = None


@dataclass(frozen=True)
class Memory:
    """What a Store has for itself. `parts`: of the layers that grow. `length`: how many positions
    are filled, on the device. `mask`: [batch, capacity], for the padding mask that the caller may
    give."""

    parts: tuple[Part, ...]
    length: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def make(
        cls, layouts: Sequence[Layout], batch: int, capacity: int, device: torch.device
    ) -> Memory:
        with torch.inference_mode(False):  # others write to it later
            return cls(
                tuple(layout.part(batch, capacity) for layout in layouts),
                torch.zeros((), dtype=torch.int64, device=device),
                torch.zeros((batch, capacity), dtype=torch.int64, device=device),
            )

    @property
    def capacity(self) -> int:
        return self.mask.shape[1]

    def clear(self) -> Memory:
        """Zeros: what is masked is multiplied by zero, which must not meet NaN."""
        for part in self.parts:
            for tensor in part.tensors:
                tensor.zero_()
        return self


@dataclass(frozen=True)
class Room:
    """All that a graph reads and writes of a cache. `parts`: for each layer, of each cache if there
    are two (of a decoder itself, and of what it reads of its encoder)."""

    parts: tuple[tuple[Part, ...], ...]
    length: torch.Tensor
    mask: torch.Tensor

    def kinds(self) -> tuple:
        """Equal for rooms that a graph may serve alike, whatever their sizes."""
        return tuple(
            tuple((part.kind, part.window, len(part.tensors)) for part in parts)
            for parts in self.parts
        )

    def held(self, masked: bool) -> list[torch.Tensor]:
        """All tensors, the mask last, if it counts; the same list each time."""
        return self._all if masked else self._unmasked

    @cached_property
    def _unmasked(self) -> list[torch.Tensor]:
        tensors = [t for parts in self.parts for part in parts for t in part.tensors]
        return [*tensors, self.length]

    @cached_property
    def _all(self) -> list[torch.Tensor]:
        return [*self._unmasked, self.mask]

    def set_mask(self, given: torch.Tensor) -> None:
        """Of the first positions; no token looks at the others."""
        self.mask[:, : given.shape[1]].copy_(given)


class Pool:
    """The memory that was used last. The next cache of its sizes takes it, so that a recording
    which reads it stays valid. On a GPU only for the same stream, where what reads it still goes
    first."""

    def __init__(self) -> None:
        self._free: deque[tuple[tuple, Memory]] = deque(maxlen=1)  # threads may ask at a time

    def take(self, key: tuple, least: int) -> Memory | None:
        """Memory for at least `least` positions. `key`: of `key_of`."""
        try:
            known, memory = self._free.pop()
        except IndexError:
            return None
        fits = known == key and least <= memory.capacity <= 2 * least
        return memory.clear() if fits else None

    def give(self, key: tuple, memory: Memory) -> None:
        self._free.append((key, memory))


def key_of(layouts: tuple[Layout, ...], batch: int, device: torch.device) -> tuple:
    """Memories of equal keys may follow each other."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return layouts, batch, device, stream


class Store:
    """Of one cache, while it is used here: `length` positions, in `room`. `sources`: for each layer
    what a graph is given of it, and a Layout for what is in memory of the store's own."""

    def __init__(
        self, sources: tuple[tuple[Part | Layout, ...], ...], batch: int, device: torch.device,
        pool: Pool,
    ) -> None:  # fmt: skip
        self.length = 0
        self.layers: list = []  # weak references to those of the decoder's own cache
        self.shared: list[tuple] = []  # layers whose tensors others may change, and their parts
        self._sources, self._pool, self._batch, self._device = sources, pool, batch, device
        each = [source for sources_of in sources for source in sources_of]
        self._layouts = tuple(source for source in each if isinstance(source, Layout))
        fixed = [s.tensors[0].shape[2] for s in each if isinstance(s, Part) and s.kind == "full"]
        self._fixed = max(fixed, default=None)  # the capacity, if it cannot grow
        self._key = key_of(self._layouts, batch, device)
        self._memory: Memory | None = None
        self.room: Room | None = None

    @property
    def capacity(self) -> int:
        return self.room.mask.shape[1]

    def fill(self, states: Sequence, length: int, more: int) -> None:
        """Takes over the last positions of `length`, as many as there are in `states`, the keys and
        values of each layer that grows, with room for `more`."""
        self._use(self._made(length + more))
        for part, theirs in zip(self._memory.parts, states):
            for ours, given in zip(part.tensors, theirs):
                put(ours, given, length)
        self.length = length
        self._memory.length.fill_(length)

    def _made(self, least: int) -> Memory:
        memory = self._pool.take(self._key, least) if self._layouts else None
        capacity = self._fixed or capacity_for(least)
        return memory or Memory.make(self._layouts, self._batch, capacity, self._device)

    def _use(self, memory: Memory) -> None:
        self._memory, own = memory, iter(memory.parts)
        parts = tuple(
            tuple(next(own) if isinstance(source, Layout) else source for source in sources)
            for sources in self._sources
        )
        self.room = Room(parts, memory.length, memory.mask)

    def reserve(self, more: int) -> None:
        """Room for `more` positions."""
        if self.length + more > self.capacity and self._fixed is None:
            old, length = self._memory, self.length
            self._use(self._made(length + more))
            for before, now in zip(old.parts, self._memory.parts):
                for used, ours in zip(before.tensors, now.tensors):
                    used = used[:, :, :length]  # all slots of a ring that is full
                    ours[:, :, : used.shape[2]].copy_(used)
            self._memory.length.fill_(length)

    def part(self, layer: int) -> Part:
        """Of a layer of the decoder's own cache."""
        return self.room.parts[0][layer]

    def give_away(self) -> None:
        """The room is somebody else's from now on."""
        self.room = self._memory = None

    def __del__(self) -> None:
        if self._memory is not None and self._layouts:
            self._pool.give(self._key, self._memory)


def put(ours: torch.Tensor, given: torch.Tensor, length: int) -> None:
    """The last of `length` positions, as many as `given` has, into their slots."""
    count, slots = given.shape[2], ours.shape[2]
    start = (length - count) % slots
    first = min(count, slots - start)
    ours[:, :, start : start + first].copy_(given[:, :, :first])
    ours[:, :, : count - first].copy_(given[:, :, first:])


def last(ours: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """The last `count` of `length` positions, in order: a view where they lie in order."""
    start = (length - count) % ours.shape[2]
    end = start + count
    if end <= ours.shape[2]:
        return ours[:, :, start:end]
    return torch.cat([ours[:, :, start:], ours[:, :, : end - ours.shape[2]]], 2)

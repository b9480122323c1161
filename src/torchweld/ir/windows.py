"""A Comp that reads a part of a buffer, as one that reads the whole of a smaller buffer elsewhere.

    comp c [i:8] { load x[i+64] }, x of 128   ->   comp c [i:8] { load x[i] }, x of 8, 64 further

So kernels for some rows of a tensor and for others are one kernel, called with other addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Load

_ALIGNED_BYTES = 16  # kernels of a GPU take addresses for multiples of that


@dataclass(frozen=True, slots=True)
class Windowed:
    """`offsets`: elements from the start of a buffer to its window. `buffers`: the windows."""

    comp: Comp
    offsets: Mapping[str, int]
    buffers: Mapping[str, Buffer]

    @property
    def offset_bytes(self) -> dict[str, int]:
        return {n: k * self.buffers[n].dtype.bytes for n, k in self.offsets.items()}


def windowed(comp: Comp, buffers: Mapping[str, Buffer]) -> Windowed:
    """`comp` on windows of what it only reads a part of, where those begin at a multiple of 16
    bytes."""
    starts = {n: s for n in comp.reads for s in [_start(comp, buffers[n])] if s is not None}
    whole = [n for n, s in starts.items() if not any(s) and _is_whole(comp, buffers[n])]
    starts = {n: s for n, s in starts.items() if n not in whole}
    if not starts:
        return Windowed(comp, {}, {})
    body = tuple(_moved(i, starts[i.buffer]) if isinstance(i, Load) and i.buffer in starts else i
                 for i in comp.body)  # fmt: skip
    offsets = {n: _offset(buffers[n], start) for n, start in starts.items()}
    moved = replace(comp, body=body)
    windows = {n: _window(moved, buffers[n]) for n in starts}
    return Windowed(moved, offsets, windows)


def _start(comp: Comp, buffer: Buffer) -> tuple[int, ...] | None:
    """The lowest index read along each dimension; None if there is nothing to gain, or not all is
    known."""
    loads = [i for i in comp.body if isinstance(i, Load) and i.buffer == buffer.name]
    apart = buffer.name in comp.writes or any(s.init == buffer.name for s in comp.stores)
    sizes = [a.extent for a in comp.axes]
    known = all(isinstance(n, int) for n in (*buffer.shape, *buffer.strides, *sizes))
    if apart or not known or any(i.guard is not None for i in loads):
        return None
    start = tuple(
        min((e.const if _rises(e) else 0 for e in entries), default=0)
        for entries in zip(*(i.index for i in loads))
    )
    offset = _offset(buffer, start)
    return start if offset * buffer.dtype.bytes % _ALIGNED_BYTES == 0 else None


def _rises(entry) -> bool:
    """Whether an index is lowest at the origin of the axes."""
    return isinstance(entry, Affine) and all(isinstance(c, int) and c > 0 for _, c in entry.terms)


def _offset(buffer: Buffer, start: tuple[int, ...]) -> int:
    return sum(first * stride for first, stride in zip(start, buffer.strides))


def _moved(load: Load, start: tuple[int, ...]) -> Load:
    index = tuple(e + -first if first else e for e, first in zip(load.index, start))
    return replace(load, index=index)


def _window(comp: Comp, buffer: Buffer) -> Buffer:
    """`buffer` as far as it is read."""
    extents = comp.extents
    loads = [i for i in comp.body if isinstance(i, Load) and i.buffer == buffer.name]
    shape = tuple(
        max(_reach(e, extents, whole) for e in entries)
        for whole, *entries in zip(buffer.shape, *(i.index for i in loads))
    )
    return replace(buffer, shape=shape)


def _is_whole(comp: Comp, buffer: Buffer) -> bool:
    return _window(comp, buffer).shape == buffer.shape


def _reach(entry, extents: Mapping[str, int], whole: int) -> int:
    if not _rises(entry):
        return whole
    return 1 + entry.const + sum(c * (extents[n] - 1) for n, c in entry.terms)

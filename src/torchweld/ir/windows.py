"""A Comp that reads a part of a buffer, as one that reads the whole of a smaller buffer elsewhere.

    comp c [i:8] { load x[i+64] }, x of 128   ->   comp c [i:8] { load x[i] }, x of 8, 64 further

So kernels for some rows of a tensor and for others are one kernel, called with other addresses.
A window is cut along the first dimension only: rows of a dense buffer are dense, and templates ask
for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    loads, written = _loads(comp), {*comp.writes, *(s.init for s in comp.stores)}
    found = {n: _start(comp, buffers[n], loads[n]) for n in loads if n not in written}
    starts = {
        n: s for n, s in found.items()
        if s or (s == 0 and _window(comp, buffers[n], loads[n]) != buffers[n])
    }  # fmt: skip
    if not starts:
        return Windowed(comp, {}, {})
    body = tuple(_moved(i, starts[i.buffer]) if isinstance(i, Load) and i.buffer in starts else i
                 for i in comp.body)  # fmt: skip
    offsets = {n: start * buffers[n].strides[0] for n, start in starts.items()}
    moved = replace(comp, body=body)
    loads = _loads(moved)
    windows = {n: _window(moved, buffers[n], loads[n]) for n in starts}
    return Windowed(moved, offsets, windows)


def _start(comp: Comp, buffer: Buffer, loads: Sequence[Load]) -> int | None:
    """The first row that is read; None if there is nothing to gain, or not all is known."""
    sizes = [a.extent for a in comp.axes]
    known = all(isinstance(n, int) for n in (*buffer.shape, *buffer.strides, *sizes))
    if not known or not buffer.shape or any(i.guard is not None for i in loads):
        return None
    rows = [i.index[0] for i in loads]
    start = min((e.const if _rises(e) else 0 for e in rows), default=0)
    offset_bytes = start * buffer.strides[0] * buffer.dtype.bytes
    return start if offset_bytes % _ALIGNED_BYTES == 0 else None


def _loads(comp: Comp) -> dict[str, list[Load]]:
    """By what is read."""
    found: dict[str, list[Load]] = {}
    for instr in comp.body:
        if isinstance(instr, Load):
            found.setdefault(instr.buffer, []).append(instr)
    return found


def _rises(entry) -> bool:
    """Whether an index is lowest at the origin of the axes."""
    return isinstance(entry, Affine) and all(isinstance(c, int) and c > 0 for _, c in entry.terms)


def _moved(load: Load, start: int) -> Load:
    first, *rest = load.index
    return replace(load, index=(first + -start, *rest)) if start else load


def _window(comp: Comp, buffer: Buffer, loads: Sequence[Load]) -> Buffer:
    """`buffer` as far as it is read."""
    rows = [i.index[0] for i in loads]
    extents = comp.extents
    reach = max((_reach(e, extents, buffer.shape[0]) for e in rows), default=buffer.shape[0])
    return replace(buffer, shape=(reach, *buffer.shape[1:]))


def _reach(entry, extents: Mapping[str, int], whole: int) -> int:
    if not _rises(entry):
        return whole
    return 1 + entry.const + sum(c * (extents[n] - 1) for n, c in entry.terms)

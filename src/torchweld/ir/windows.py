"""A Comp that reads a part of a buffer, as one that reads the whole of a smaller buffer elsewhere.

    comp c [i:8] { load x[i+64] }, x of 128   ->   comp c [i:8] { load x[i] }, x of 8, 64 further

So kernels for some rows of a tensor and for others are one kernel, called with other addresses.
A window is cut along the first dimension only: rows of a dense buffer are dense, and templates ask
for that. Pointwise kernels on a CPU may have others, too, of which they read one element, such as
`x[:, t]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul

from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Load, Reduce, Scan

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
    """`comp` on windows of what it only reads a part of, which on a GPU begin at a multiple of 16
    bytes."""
    loads, written = _loads(comp), {*comp.writes, *(s.init for s in comp.stores)}
    starts = {n: _start(comp, buffers[n], loads[n]) for n in loads if n not in written}
    starts = {n: s for n, s in starts.items() if s is not None}
    body = tuple(_moved(i, starts[i.buffer]) if isinstance(i, Load) and i.buffer in starts else i
                 for i in comp.body)  # fmt: skip
    moved = replace(comp, body=body)
    loads = _loads(moved)
    windows = {n: _window(moved, buffers[n], loads[n]) for n in starts}
    windows = {n: w for n, w in windows.items() if any(starts[n]) or w != buffers[n]}
    if not windows:
        return Windowed(comp, {}, {})
    offsets = {n: sum(map(mul, starts[n], buffers[n].strides)) for n in windows}
    return Windowed(moved, offsets, windows)


def _start(comp: Comp, buffer: Buffer, loads: Sequence[Load]) -> tuple[int, ...] | None:
    """The first element that is read along each dimension; None if there is nothing to gain, or not
    all is known."""
    sizes = [a.extent for a in comp.axes]
    known = all(isinstance(n, int) for n in (*buffer.shape, *buffer.strides, *sizes))
    if not known or not buffer.shape or any(i.guard is not None for i in loads):
        return None
    dims, entries = _dims(comp, buffer, loads), zip(*(i.index for i in loads))
    start = tuple(_lowest(e) if d in dims else 0 for d, e in enumerate(entries))
    offset_bytes = sum(map(mul, start, buffer.strides)) * buffer.dtype.bytes
    anywhere = buffer.device == "cpu"
    return start if anywhere or offset_bytes % _ALIGNED_BYTES == 0 else None


def _dims(comp: Comp, buffer: Buffer, loads: Sequence[Load]) -> list[int]:
    """The dimensions along which `comp` may read windows of a buffer."""
    if buffer.device != "cpu" or any(isinstance(i, (Reduce, Scan)) for i in comp.body):
        return [0]
    entries = enumerate(zip(*(i.index for i in loads)))
    return [d for d, e in entries if d == 0 or all(_rises(x) and not x.terms for x in e)]


def _lowest(entries: Sequence) -> int:
    return min(e.const if _rises(e) else 0 for e in entries)


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


def _moved(load: Load, start: Sequence[int]) -> Load:
    index = tuple(e + -s if s else e for e, s in zip(load.index, start))
    return replace(load, index=index) if any(start) else load


def _window(comp: Comp, buffer: Buffer, loads: Sequence[Load]) -> Buffer:
    """`buffer` as far as it is read."""
    extents, shape = comp.extents, list(buffer.shape)
    for d in _dims(comp, buffer, loads):
        shape[d] = max(_reach(i.index[d], extents, buffer.shape[d]) for i in loads)
    return replace(buffer, shape=tuple(shape))


def _reach(entry, extents: Mapping[str, int], whole: int) -> int:
    if not _rises(entry):
        return whole
    return 1 + entry.const + sum(c * (extents[n] - 1) for n, c in entry.terms)

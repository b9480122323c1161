"""Max pooling of float32 images on a CPU (pooling.h), with what follows it: the maximum of the
elements of a window, written out.

    comp max_pool2d [c, h, w] {
      ...
      %k = load x[c, 2*h-1, 2*w-1] if <both are in the image> else -inf : f32
      %l = load x[c, 2*h-1, 2*w] if ... else -inf : f32
      %m = maximum %k %l : f32
      ...
      store y[c, h, w] %z
    }
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torchweld.core import dtypes
from torchweld.ir.access import Accesses, unmerged
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Load, Op, Value
from torchweld.ir.size import Size, product
from torchweld.ir.views import contiguous_strides
from torchweld.templates.conv.cpu.schedule import MOST_SIDE, SUMS, Window, finish_of, is_inside

# Along a row. For longer steps than two, maxima are taken at every element, and most are dropped.
_LONGEST_STEP = 16
_LARGE = 8  # maxima: a window of 3 x 3


@dataclass(frozen=True, slots=True)
class CpuPooling:
    """`image`: the buffer, of `count` dense planes, which the axes `planes` run over. `windows`:
    along the last two or three dimensions. `finish`: what follows the maxima, as a Comp that loads
    them from the buffer SUMS; `total`: that load."""

    image: str
    planes: tuple[str, ...]
    count: Size
    windows: tuple[Window, ...]
    finish: Accesses
    total: Value


def has_large_windows(comp: Comp) -> bool:
    """Whether `comp` may be a max pooling that is worth more than a kernel like any other: it has
    as many maxima. Quickly told."""
    joins = sum(isinstance(i, Op) and _joins(i) for i in comp.body)
    return joins >= _LARGE


def cpu_pooling(comp: Comp, buffers: Mapping[str, Buffer]) -> CpuPooling | None:
    """How `comp` runs as a max pooling, None if it is anything else."""
    root, leaves = _largest_tree(comp)
    loads = [comp.body[v] for v in leaves]
    if root is None or not all(map(_is_tap, loads)):
        return None
    tried = (_pooling(comp, buffers, root, loads, rank) for rank in (2, 3))
    return next((p for p in tried if p is not None), None)


def _pooling(comp: Comp, buffers, root: Value, loads: Sequence[Load], rank: int):
    image = buffers[loads[0].buffer]
    if len(image.shape) < rank or not _is_dense(image):
        return None
    every = {_planes(comp, index, image) for index in {i.index[:-rank] for i in loads}}
    windows = tuple(_window(loads, image, d) for d in range(-rank, 0))
    if len(every) != 1 or None in every or None in windows:
        return None
    if windows[-1].stride > _LONGEST_STEP:
        return None
    (planes,) = every
    rows = (*planes, *(w.out for w in windows))
    if len(set(rows)) < len(rows) or not _is_complete(comp, loads, windows):
        return None
    finish = finish_of(comp, root, set(), rows)
    if finish is None:
        return None
    extents = tuple(comp.extent(a) for a in rows)
    maxima = Buffer(SUMS, extents, dtypes.f32, contiguous_strides(extents))
    accesses = unmerged(finish, {**buffers, SUMS: maxima})
    total = next(v for v, i in enumerate(accesses.comp.body) if getattr(i, "buffer", "") == SUMS)
    count = product(image.shape[:-rank])
    return CpuPooling(image.name, planes, count, windows, accesses, total)


def _largest_tree(comp: Comp) -> tuple[Value | None, tuple[Value, ...]]:
    """The maximum of most loads of one buffer, each joined once, and these loads."""
    trees: dict[Value, tuple[Value, ...]] = {}
    for value, instr in enumerate(comp.body):
        if isinstance(instr, Load):
            trees[value] = (value,)
        elif isinstance(instr, Op) and _joins(instr) and all(v in trees for v in instr.args):
            joined = tuple(leaf for v in instr.args for leaf in trees[v])
            alike = len({comp.body[v].buffer for v in joined}) == 1
            if alike and len(set(joined)) == len(joined):
                trees[value] = joined
    root = max(trees, key=lambda v: len(trees[v]), default=None)
    return (root, trees[root]) if root is not None and len(trees[root]) > 1 else (None, ())


def _is_tap(load: Load) -> bool:
    plain = load.dtype == dtypes.f32 and all(isinstance(e, Affine) for e in load.index)
    return plain and (load.guard is None or load.fill == -math.inf)


def _planes(comp: Comp, index, buffer: Buffer) -> tuple[str, ...] | None:
    """The axes that run over all planes of a buffer, in order."""
    names = tuple(e.as_axis for e in index if e.terms)
    extents = [e.as_axis and comp.extent(e.as_axis) if e.terms else 1 for e in index]
    whole = list(buffer.shape[: len(index)]) == extents
    return names if whole and all(e.terms or e.const == 0 for e in index) else None


def _joins(op: Op) -> bool:
    return op.name == "maximum" and op.dtype == dtypes.f32


def _is_dense(buffer: Buffer) -> bool:
    step: Size = 1
    for extent, stride in zip(reversed(buffer.shape), reversed(buffer.strides)):
        if stride != step:
            return False
        step = step * extent
    return buffer.dtype == dtypes.f32


def _window(loads: Sequence[Load], image: Buffer, d: int) -> Window | None:
    """Along one dimension: offsets at equal distances."""
    first = loads[0].index[d]
    out = next(iter(first.axes), None)
    if out is None or first.axes != {out} or any(i.index[d].terms != first.terms for i in loads):
        return None
    stride = first.coefficient(out)
    offsets = sorted({i.index[d].const for i in loads if isinstance(i.index[d].const, int)})
    if not isinstance(stride, int) or stride < 1 or not offsets or offsets[0] > 0:
        return None
    if len(offsets) > MOST_SIDE:
        return None
    dilation = offsets[1] - offsets[0] if len(offsets) > 1 else 1
    if any(b - a != dilation for a, b in pairwise(offsets)):
        return None
    return Window(out, None, stride, dilation, -offsets[0], len(offsets), image.shape[d])


def _is_complete(comp: Comp, loads, windows: tuple[Window, ...]) -> bool:
    """Each point of the window is read once, where it is inside and nowhere else."""
    rank, sizes = len(windows), [w.size for w in windows]
    points = {tuple(e.const for e in i.index[-rank:]) for i in loads}
    if len(points) != len(loads) or len(loads) != math.prod(w.taps for w in windows):
        return False
    return all(is_inside(comp, i.guard, list(zip(i.index[-rank:], sizes))) for i in loads)

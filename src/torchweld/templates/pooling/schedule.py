"""Max pooling of float32 images on a CPU (pooling.h): the maximum of the elements of a
window, written out.

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
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Const, Index, Load, Op
from torchweld.ir.size import Size
from torchweld.templates.conv.cpu.schedule import MOST_SIDE, Window, is_inside

_OF_GUARDS = frozenset(("ge", "gt", "le", "lt", "bit_and"))


@dataclass(frozen=True, slots=True)
class CpuPooling:
    """Names of buffers, the sizes of the image and of the result (planes, height, width), and the
    windows along height and width."""

    image: str
    result: str
    sides: tuple[Size, ...]
    outputs: tuple[Size, ...]
    windows: tuple[Window, Window]


def cpu_pooling(comp: Comp, buffers: Mapping[str, Buffer]) -> CpuPooling | None:
    """How `comp` runs as a max pooling, None if it is anything else."""
    loads = [i for i in comp.body if isinstance(i, Load)]
    if not _is_maximum(comp, loads) or not _is_plain_store(comp):
        return None
    image, result = buffers[loads[0].buffer], buffers[comp.stores[0].buffer]
    if not _is_dense(image) or not _is_dense(result):
        return None
    written = comp.stores[0].index
    planes = [_planes(comp, index, image) for index in {i.index[:-2] for i in loads}]
    if planes != [_planes(comp, written[:-2], result)] or None in planes:
        return None
    if any(comp.extent(e.as_axis) != n for e, n in zip(written[-2:], result.shape[-2:])):
        return None
    windows = tuple(_window(comp, loads, image, written, d) for d in (-2, -1))
    if None in windows or not _is_complete(comp, loads, windows):
        return None
    count: Size = 1
    for extent in image.shape[:-2]:
        count = count * extent
    sides, outputs = (count, *image.shape[-2:]), (count, *result.shape[-2:])
    return CpuPooling(image.name, result.name, sides, outputs, windows)


def _planes(comp: Comp, index, buffer: Buffer) -> tuple[str, ...] | None:
    """The axes that run over all planes of a buffer, in order."""
    names = tuple(e.as_axis for e in index if e.terms)
    extents = [e.as_axis and comp.extent(e.as_axis) if e.terms else 1 for e in index]
    whole = list(buffer.shape[: len(index)]) == extents
    return names if whole and all(e.terms or e.const == 0 for e in index) else None


def _is_maximum(comp: Comp, loads: Sequence[Load]) -> bool:
    """One buffer is read, and of what is read the maximum is made."""
    if len(loads) < 2 or len({i.buffer for i in loads}) != 1:
        return False
    plain = all(
        i.dtype == dtypes.f32
        and len(i.index) >= 2
        and all(isinstance(e, Affine) for e in i.index)
        and (i.guard is None or i.fill == -math.inf)
        for i in loads
    )
    rest = [i for i in comp.body if not isinstance(i, (Load, Index, Const))]
    named = all(isinstance(i, Op) and (i.name in _OF_GUARDS or _joins(i)) for i in rest)
    joins = [i for i in rest if isinstance(i, Op) and _joins(i)]
    return plain and named and len(joins) == len(loads) - 1 and _is_tree(comp, len(loads))


def _joins(op: Op) -> bool:
    return op.name == "maximum" and op.dtype == dtypes.f32


def _is_tree(comp: Comp, loads: int) -> bool:
    """Whether what is stored joins every load, once."""
    todo, leaves = [comp.stores[0].value], []
    while todo:
        value = todo.pop()
        instr = comp.body[value]
        if isinstance(instr, Load):
            leaves.append(value)
        elif isinstance(instr, Op) and _joins(instr):
            todo.extend(instr.args)
        else:
            return False
    return len(leaves) == len(set(leaves)) == loads


def _is_plain_store(comp: Comp) -> bool:
    """Every axis has a dimension of the result."""
    store = comp.stores[0]
    affine = len(store.index) >= 2 and all(isinstance(e, Affine) for e in store.index)
    if len(comp.stores) != 1 or store.combine or store.guard is not None or not affine:
        return False
    names = [e.as_axis for e in store.index if e.terms]
    if None in (e.as_axis for e in store.index[-2:]):
        return False
    return sorted(map(str, names)) == sorted(a.name for a in comp.axes)


def _is_dense(buffer: Buffer) -> bool:
    step: Size = 1
    for extent, stride in zip(reversed(buffer.shape), reversed(buffer.strides)):
        if stride != step:
            return False
        step = step * extent
    return buffer.dtype == dtypes.f32


def _window(comp: Comp, loads, image: Buffer, written, d: int) -> Window | None:
    """Along one dimension: offsets at equal distances."""
    out = written[d].as_axis
    if out is None or any(i.index[d].terms != loads[0].index[d].terms for i in loads):
        return None
    stride = loads[0].index[d].coefficient(out)
    offsets = sorted({i.index[d].const for i in loads if isinstance(i.index[d].const, int)})
    if not isinstance(stride, int) or stride < 1 or not offsets or offsets[0] > 0:
        return None
    if loads[0].index[d].axes != {out} or len(offsets) > MOST_SIDE:
        return None
    dilation = offsets[1] - offsets[0] if len(offsets) > 1 else 1
    if any(b - a != dilation for a, b in pairwise(offsets)):
        return None
    return Window(out, None, stride, dilation, -offsets[0], len(offsets), image.shape[d])


def _is_complete(comp: Comp, loads, windows: tuple[Window, Window]) -> bool:
    """Each pair of offsets is read once, where it is inside and nowhere else."""
    pairs = {(i.index[-2].const, i.index[-1].const) for i in loads}
    if len(pairs) != len(loads) or len(loads) != windows[0].taps * windows[1].taps:
        return False
    sizes = [w.size for w in windows]
    return all(is_inside(comp, i.guard, list(zip(i.index[-2:], sizes))) for i in loads)

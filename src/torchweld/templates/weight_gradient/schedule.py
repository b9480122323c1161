"""How the gradient of a weight of a convolution in groups runs on a CPU (sums.h).

    comp weights [g, o, c, i, j, n, h, w] {
      ...                                         h + i - 1 and w + j - 1 are in the image
      %k = load points[n, R*g + o, h, w] exact : f32
      %l = load x[n, C*g + c, h+i-1, w+j-1] exact guard ... : f32
      ... = mul
      %m = reduce.sum[n, h, w]
      store dw[R*g + o, c, i, j] %m
    }

The marks `exact` tell it from sums that a user wrote out. An axis of extent one, such as a batch of
one, may be absent. Dimensions of buffers may be in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchweld.core import dtypes
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Load, Op, Reduce, Scan
from torchweld.ir.size import Size
from torchweld.templates.conv.cpu.schedule import MOST_TAPS, Window, is_inside


@dataclass(frozen=True, slots=True)
class Layout:
    """Where elements lie in a buffer: the first, and strides of batch, channel and sides."""

    start: Size
    image: Size
    channel: Size
    sides: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class WeightSums:
    """`results`, `channels`: of one group. `points`, `image`, `weight`: buffers; `weight_strides`:
    of results, channels and the window's sides."""

    points: str
    image: str
    weight: str
    images: Size
    groups: int
    results: int
    channels: int
    windows: tuple[Window, ...]
    points_at: Layout
    image_at: Layout
    weight_strides: tuple[int, ...]


def weight_sums(comp: Comp, buffers: Mapping[str, Buffer]) -> WeightSums | None:
    """How `comp` runs as such a gradient, None if it is anything else."""
    loads = _factors(comp)
    if loads is None:
        return None
    (store,), (points, image) = comp.stores, loads
    row, channel, *taps = store.index
    windows = tuple(_window(comp, tap, image, buffers[image.buffer]) for tap in taps)
    if None in windows or math.prod(w.taps for w in windows) > MOST_TAPS:
        return None
    if not is_inside(comp, image.guard, [(w.place, w.end) for w in windows]):
        return None
    found = _row(comp, row)
    if found is None or (channel.terms and channel.as_axis is None) or channel.const:
        return None
    group, result, results = found
    channels = comp.extent(channel.as_axis) if channel.terms else 1
    outs, taps = [w.out for w in windows], [w.kernel for w in windows]
    batch = next((a for a in _summed(comp) if a not in outs), None)
    if len(_summed(comp)) > len(outs) + (batch is not None):
        return None
    points_at = _layout(points, buffers, batch, (group, result, results), outs)
    image_at = _layout(image, buffers, batch, (group, channel.as_axis, channels), taps)
    strides = buffers[store.buffer].strides
    numbers = (comp.extent(group), channels, *strides)
    if points_at is None or image_at is None or not all(isinstance(n, int) for n in numbers):
        return None
    images = comp.extent(batch) if batch is not None else 1
    return WeightSums(
        points.buffer, image.buffer, store.buffer, images, comp.extent(group), results, channels,
        windows, points_at, image_at, strides,
    )  # fmt: skip


def _summed(comp: Comp) -> tuple[str, ...]:
    return next(i.axes for i in comp.body if isinstance(i, Reduce))


def _factors(comp: Comp) -> tuple[Load, Load] | None:
    """The loads of points and image, of a sum that is stored as it is."""
    found = [v for v, i in enumerate(comp.body) if isinstance(i, (Reduce, Scan))]
    if len(found) != 1 or len(comp.stores) != 1 or isinstance(comp.body[found[0]], Scan):
        return None
    (store,), instr = comp.stores, comp.body[found[0]]
    if store.value != found[0] or store.combine or store.guard is not None:
        return None
    if instr.monoid != "sum" or instr.dtype != dtypes.f32 or len(store.index) not in (3, 4, 5):
        return None
    factor = comp.body[instr.args[0]]
    if not isinstance(factor, Op) or factor.name != "mul":
        return None
    loads = [comp.body[a] for a in factor.args]
    if not all(isinstance(i, Load) and i.exact for i in loads):
        return None
    if not all(isinstance(e, Affine) for i in (store, *loads) for e in i.index):
        return None
    taps = {a for e in store.index[2:] for a in e.axes}
    image = [i for i in loads if any(e.axes & taps for e in i.index)]
    points = [i for i in loads if i not in image]
    if len(image) != 1 or len(points) != 1 or points[0].guard is not None:
        return None
    plain = all(len(e.axes) < 2 or not e.axes & set(instr.axes) for e in points[0].index)
    return (points[0], image[0]) if plain and image[0].fill == 0 else None


def _window(
    comp: Comp, tap: Affine, image: Load, buffer: Buffer
) -> Window | None:
    """One side, along which an index into the image is stride * out + dilation * tap - padding."""
    name = tap.as_axis
    found = [(e, size) for e, size in zip(image.index, buffer.shape) if name in e.axes]
    if name is None or len(found) != 1:
        return None
    (index, size), taps = found[0], comp.extent(name)
    outs = [(n, c) for n, c in index.terms if n != name]
    numbers = (taps, index.const, *(c for _, c in index.terms))
    if len(outs) != 1 or not all(isinstance(n, int) for n in numbers):
        return None
    ((out, stride),), dilation = outs, index.coefficient(name)
    if out not in _summed(comp) or stride < 1 or dilation < 1 or index.const > 0:
        return None
    return Window(out, name, stride, dilation, -index.const, taps, size)


def _row(comp: Comp, row: Affine) -> tuple[str, str | None, int] | None:
    """The axes of groups and results, and results of a group, of R*g + o; of g alone, R is 1."""
    *inner, outer = sorted(row.terms, key=lambda term: term[1]) or [(None, 0)]
    if row.const or len(inner) > 1:
        return None
    if not inner:
        return (outer[0], None, 1) if outer[1] == 1 else None
    ((name, step),) = inner
    whole = step == 1 and comp.extent(name) == outer[1]
    return (outer[0], name, outer[1]) if whole else None


def _layout(
    load: Load, buffers: Mapping[str, Buffer], batch: str | None,
    channels: tuple[str, str | None, int], marks: Sequence[str],
) -> Layout | None:  # fmt: skip
    """Of an image that is read along a side by an index with its mark. None where something else is
    read, or channels of a group are not beside each other."""
    group, inner, count = channels
    steps: dict[str, Size] = {}
    sides: dict[str, Size] = {}
    start: Size = 0
    for index, stride in zip(load.index, buffers[load.buffer].strides):
        mark = next((m for m in marks if m in index.axes), None)
        if mark is not None:
            sides[mark] = stride
            continue
        start = start + index.const * stride
        for name, times in index.terms:
            steps[name] = steps.get(name, 0) + times * stride
    if not {batch, group} | {inner} >= set(steps) or set(sides) != set(marks):
        return None
    if inner is not None and steps.get(group, 0) != steps.get(inner, 0) * count:
        return None
    channel = steps.get(group if inner is None else inner, 0)
    return Layout(start, steps.get(batch, 0), channel, tuple(sides[m] for m in marks))

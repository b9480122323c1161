"""How a convolution of float32 images runs on a CPU (convolution.h), with what follows it.

    comp convolution_relu [n, o, h, w, c, i, j] {
      ...                                         h + i - 1 and w + j - 1 are in the image
      %k = load x[n, c, h+i-1, w+j-1] exact guard ... : f32
      ... = load weight[o, c, i, j] exact : f32
      ... = mul
      ... = reduce.sum[c, i, j]
      ...                                         pointwise over n, o, h and w
      store y[n, o, h, w] %m
    }

plan/convolutions.py makes such Comps of library calls; the marks `exact` tell them from sums
that a user wrote out. Images may have one, two or three dimensions. An axis of extent one, such as
a batch of one, may be absent. Of groups, the channel is C*g + c and the output channel R*g + o.

Transposed, with stride s and padding p:

      %a = index h-i+p, %h = floor_div %a s       %a is a multiple of s, and %h in the image
      %k = load x[n, c, %h, %w] exact guard ... : f32
      ... = load weight[c, o, i, j] exact : f32
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.expand import with_values
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Const,
    Index,
    Instr,
    Load,
    Op,
    Reduce,
    Ref,
    Scan,
    Value,
    needed,
    store_operands,
)
from torchweld.ir.size import Size

MOST_TAPS = 192  # of a window; images.h
MOST_SIDE = 16  # of a window's side, in max pooling
MOST_STEPS = 8  # stride of a transposed one along the width; images.h
SUMS = "sums"
_ZERO = constant(0)


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial dimension: which elements of the image meet in an output. `kernel`: the axis that
    runs over the window, None where it is one element wide. Transposed, `place` is `stride` times
    the index into the image."""

    out: str
    kernel: str | None
    stride: int
    dilation: int
    padding: int
    taps: int
    size: Size
    transposed: bool = False

    @property
    def place(self) -> Affine:
        """The index into the image."""
        if self.transposed:
            return place(self.out, 1, self.kernel, -self.dilation, -self.padding)
        return place(self.out, self.stride, self.kernel, self.dilation, self.padding)

    @property
    def end(self) -> Size:
        """What `place` stays below in the image."""
        return self.size * self.stride if self.transposed else self.size


@dataclass(frozen=True, slots=True)
class Channels:
    """Names of the axes of channels, None where the extent is one: `group`, and of one group
    `result` (output channel) and `channel`; and their extents."""

    group: str | None
    result: str | None
    channel: str | None
    groups: Size
    results: Size
    channels: Size

    @property
    def depthwise(self) -> bool:
        return self.groups != 1 and (self.channels, self.results) == (1, 1)


@dataclass(frozen=True, slots=True)
class CpuConvolution:
    """`value`: the sum, `image` and `weight`: its Loads, `images`: their number. `finish`: what
    follows the sums, as a Comp that loads them from the buffer SUMS, over merged axes, of which
    `batch`, `result` (an output channel, of any group) and `pixel`, the innermost of them, are None
    where there is one alone.
    """

    value: Value
    image: Load
    weight: Load
    images: Size
    channels: Channels
    windows: tuple[Window, ...]
    transposed: bool
    finish: Accesses
    batch: str | None
    result: str | None
    pixel: str | None


def place(out: str, stride: int, kernel: str | None, dilation: int, padding: int) -> Affine:
    """stride * out + dilation * kernel - padding."""
    index = axis(out) * stride + (-padding)
    return index if kernel is None else index + axis(kernel) * dilation


def cpu_convolution(
    comp: Comp, buffers: Mapping[str, Buffer], hints: Mapping[str, int] | None = None
) -> CpuConvolution | None:
    """How `comp` runs as a convolution with what follows it, None if it is anything else."""
    reductions = [v for v, i in enumerate(comp.body) if isinstance(i, (Reduce, Scan))]
    if len(reductions) != 1:
        return None
    loads = _factors(comp.body, reductions[0])
    if loads is None:
        return None
    (image, weight), value = loads, reductions[0]
    batch, summed = image.index[0].as_axis, frozenset(comp.body[value].axes)
    transposed = _is_transposed(comp, image, weight, summed)
    channels = _channels(comp, image, weight, summed, transposed, buffers[weight.buffer])
    if channels is None or not (batch or image.index[0] == _ZERO):
        return None
    if not _has_layouts(image, weight, buffers):
        return None
    windows = _windows(comp, image, weight, buffers[image.buffer], transposed)
    if windows is None:
        return None
    divided = {(w.place, w.stride) for w in windows if transposed and w.stride > 1}
    if not is_inside(comp, image.guard, [(w.place, w.end) for w in windows], divided):
        return None
    if summed != {n for n in (channels.channel, *(w.kernel for w in windows)) if n}:
        return None
    outs = tuple(w.out for w in windows)
    rows = tuple(n for n in (batch, channels.group, channels.result, *outs) if n)
    finish = finish_of(comp, value, summed, rows)
    if finish is None:
        return None
    accesses = addressed(finish, {**buffers, SUMS: _sums(finish, outs, channels)}, hints)
    left = accesses.frame.rows
    pixels = [a for a in left if a in outs]
    results = [a for a in left if a in (channels.group, channels.result)]
    if len(pixels) > 1 or len(results) > 1:
        return None
    images, among = (comp.extent(batch), batch in left) if batch else (1, False)
    return CpuConvolution(
        value, image, weight, images, channels, windows, transposed, accesses,
        batch if among else None, *(results or [None]), *(pixels or [None]),
    )  # fmt: skip


# -- the sum --


def _factors(body: tuple[Instr, ...], value: Value) -> tuple[Load, Load] | None:
    """The loads of image and weight."""
    instr = body[value]
    if not isinstance(instr, Reduce) or instr.monoid != "sum" or instr.dtype != dtypes.f32:
        return None
    factor = body[instr.args[0]]
    if not isinstance(factor, Op) or factor.name != "mul":
        return None
    loads = [body[a] for a in factor.args]
    marked = all(isinstance(i, Load) and i.exact for i in loads)
    ranked = marked and len(loads[0].index) == len(loads[1].index) in (3, 4, 5)
    plain = ranked and loads[1].guard is None and loads[0].fill == 0
    affine = plain and all(isinstance(e, Affine) for e in loads[0].index[:2] + loads[1].index)
    return (loads[0], loads[1]) if affine else None


def _is_transposed(comp: Comp, image: Load, weight: Load, summed: frozenset[str]) -> bool:
    """Whether the weight's first dimension is the channel, or windows are walked backwards."""
    places = [_dividend(comp.body, e)[0] for e in image.index[2:]]
    backwards = any(isinstance(c, int) and c < 0 for p in places if p for _, c in p.terms)
    by_channel = weight.index[0] == image.index[1] and bool(image.index[1].axes & summed)
    return backwards or by_channel


def _dividend(body: tuple[Instr, ...], index: Affine | Ref) -> tuple[Affine | None, int]:
    """(a, s) where `index` is floor_div(a, s)."""
    if isinstance(index, Affine):
        return index, 1
    instr = body[index.value]
    if not isinstance(instr, Op) or instr.name != "floor_div":
        return None, 1
    place, stride = (body[a] for a in instr.args)
    known = isinstance(place, Index) and isinstance(stride, Const)
    return (place.map, stride.value) if known else (None, 1)


def _channels(
    comp: Comp, image: Load, weight: Load, summed: frozenset[str], transposed: bool, buffer: Buffer
) -> Channels | None:
    """image[C*g + c], weight[R*g + o, c], or transposed weight[C*g + c, o]; None if they are read
    otherwise."""
    group = _only([n for n, _ in image.index[1].terms if n not in summed])
    channel = _only([n for n, _ in image.index[1].terms if n in summed])
    outer, inner = weight.index[:2]
    result = _only([n for n in (inner if transposed else outer).axes if n != group])
    count, results, channels = (comp.extent(a) if a else 1 for a in (group, result, channel))
    places = _grouped(group, channels, channel), _grouped(group, results, result)
    first = places[0] if transposed else places[1]
    second = _grouped(None, 1, result if transposed else channel)
    if (image.index[1], outer, inner) != (places[0], first, second):
        return None
    sizes = (count * channels, results) if transposed else (count * results, channels)
    if tuple(buffer.shape[:2]) != sizes:
        return None
    return Channels(group, result, channel, count, results, channels)


def _only(names: Sequence[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _grouped(group: str | None, size: Size, inner: str | None) -> Affine:
    """size * group + inner."""
    outer = axis(group) * size if group else _ZERO
    return outer + axis(inner) if inner else outer


def _has_layouts(image: Load, weight: Load, buffers: Mapping[str, Buffer]) -> bool:
    """Rows of the image lie in memory, and weights one after the other."""
    strides, (_, *window) = buffers[image.buffer].strides, buffers[weight.buffer].shape
    if not all(isinstance(s, int) for s in window):
        return False
    return strides[-1] == 1 and buffers[weight.buffer].strides == _packed(window)


def _packed(window: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense buffer whose dimensions but the first are these."""
    strides = [1]
    for extent in reversed(window):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def _windows(
    comp: Comp, image: Load, weight: Load, buffer: Buffer, transposed: bool
) -> tuple[Window, ...] | None:
    sides = zip(image.index[2:], weight.index[2:], buffer.shape[2:])
    found = tuple(_window(comp, *side, transposed) for side in sides)
    if None in found or math.prod(w.taps for w in found) > MOST_TAPS:
        return None
    return None if transposed and found[-1].stride > MOST_STEPS else found


def _window(
    comp: Comp, index: Affine | Ref, weight: Affine, size: Size, transposed: bool
) -> Window | None:
    kernel, (index, divisor) = weight.as_axis, _dividend(comp.body, index)
    if index is None or (kernel is None and weight != _ZERO):
        return None
    outs = [(n, c) for n, c in index.terms if n != kernel]
    numbers = (index.const, *(c for _, c in index.terms))
    if len(outs) != 1 or not all(isinstance(c, int) for c in numbers):
        return None
    ((out, stride),) = outs
    sign = -1 if transposed else 1
    dilation = sign * index.coefficient(kernel) if kernel else 1
    taps = comp.extent(kernel) if kernel else 1
    if not isinstance(taps, int) or stride < 1 or dilation < 1 or sign * index.const > 0:
        return None
    if (stride if transposed else divisor) != 1:
        return None
    padding = -sign * index.const
    return Window(out, kernel, stride * divisor, dilation, padding, taps, size, transposed)


def is_inside(
    comp: Comp,
    guard: Value | None,
    places: Sequence[tuple[Affine, Size]],
    divided: Set[tuple[Affine, int]] = frozenset(),
) -> bool:
    """Whether `guard` holds where each index is in [0, size) and each of `divided` a multiple of
    its number, and nowhere else; it may leave out what holds anyhow."""
    allowed: set[Affine] = set()
    needed: set[Affine] = set()
    for index, extent in places:
        above, below = index, index * -1 + (extent - 1)
        bounds = [(c * (comp.extent(a) - 1), c) for a, c in index.terms]
        lowest = sum((reach for reach, c in bounds if _is_negative(c)), index.const)
        highest = sum((reach for reach, c in bounds if not _is_negative(c)), index.const) - extent
        allowed |= {above, below}
        needed |= {above} if not isinstance(lowest, int) or lowest < 0 else set()
        needed |= {below} if not isinstance(highest, int) or highest >= 0 else set()
    leaves = [] if guard is None else list(_conditions(comp.body, guard))
    whole = {d for leaf in leaves if (d := _divided(comp.body, leaf)) is not None}
    found = {_not_negative(comp.body, leaf) for leaf in leaves if not _divided(comp.body, leaf)}
    return needed <= found <= allowed and whole == divided


def _is_negative(number: Size) -> bool:
    return isinstance(number, int) and number < 0


def _conditions(body: tuple[Instr, ...], value: Value) -> Iterator[Instr]:
    """Conditions that must all hold for a guard to hold."""
    instr = body[value]
    if isinstance(instr, Op) and instr.name in ("bit_and", "mul"):
        for arg in instr.args:
            yield from _conditions(body, arg)
    else:
        yield instr


def _divided(body: tuple[Instr, ...], instr: Instr) -> tuple[Affine, int] | None:
    """(a, s) where the condition is that a is a multiple of s."""
    if not isinstance(instr, Op) or instr.name != "eq":
        return None
    rest, zero = (body[a] for a in instr.args)
    if not isinstance(rest, Op) or rest.name != "remainder" or _map(zero) != _ZERO:
        return None
    place, number = (body[a] for a in rest.args)
    known = isinstance(place, Index) and isinstance(number, Const)
    return (place.map, number.value) if known else None


def _not_negative(body: tuple[Instr, ...], instr: Instr) -> Affine | None:
    """The map that must not be negative for a condition to hold."""
    sides = [_map(body[a]) for a in instr.args] if isinstance(instr, Op) else []
    if len(sides) != 2 or None in sides:
        return None
    if instr.name in ("ge", "gt"):
        return sides[0] + sides[1] * -1 + (-1 if instr.name == "gt" else 0)
    if instr.name in ("le", "lt"):
        return sides[1] + sides[0] * -1 + (-1 if instr.name == "lt" else 0)
    return None


def _map(instr: Instr) -> Affine | None:
    if isinstance(instr, Index):
        return instr.map
    return constant(instr.value) if isinstance(instr, Const) else None


# -- what follows --


def finish_of(comp: Comp, value: Value, reduced: set[str], rows: tuple[str, ...]) -> Comp | None:
    """`comp` with the sum loaded from the buffer SUMS, without what the sum is made of. None unless
    it is pointwise, and stores each point once."""
    if {a.name for a in comp.axes} != {*rows, *reduced}:
        return None
    stored = (v for s in comp.stores for v in store_operands(s))
    b, images = BodyBuilder(), {}
    for v in sorted(needed(comp.body, stored, stop=(value,))):
        instr = comp.body[v]
        if v == value:
            instr = Load(SUMS, tuple(map(axis, rows)), dtypes.f32)
        elif not _is_pointwise(instr, reduced):
            return None
        images[v] = b.emit(with_values(instr, images))
    if any(s.combine or s.guard is not None for s in comp.stores):
        return None
    if any(not isinstance(e, Affine) for s in comp.stores for e in s.index):
        return None
    stores = tuple(replace(s, value=images[s.value]) for s in comp.stores)
    axes = tuple(Axis(n, comp.extent(n)) for n in rows)
    return replace(comp, axes=axes, body=b.body, stores=stores)


def _is_pointwise(instr: Instr, reduced: set[str]) -> bool:
    if isinstance(instr, Load):
        plain = instr.guard is None and all(isinstance(e, Affine) for e in instr.index)
        return plain and not any(e.axes & reduced for e in instr.index)
    return not isinstance(instr, (Reduce, Scan, Index))


def _sums(finish: Comp, pixels: tuple[str, ...], channels: Channels) -> Buffer:
    """Strides for which no axes merge but those of the pixels, and groups with output channels."""
    strides: dict[str, Size] = {channels.group: channels.results * -1, channels.result: -1}
    step: Size = 1
    for name in reversed(pixels):
        strides[name], step = step, step * finish.extent(name)
    extents = tuple(a.extent for a in finish.axes)
    return Buffer(SUMS, extents, dtypes.f32, tuple(strides.get(a.name, 0) for a in finish.axes))

"""Calls of aten.convolution, written out as Comps (cpu/schedule.py has the form)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from torchweld.core import dtypes
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, IndexMap, Ref, Store, Value, View
from torchweld.ir.size import product
from torchweld.templates.conv.cpu.schedule import place

CONVOLUTION = "aten.convolution.default"
# The same with two numbers for each side of the padding, before and after the image, flat.
UNEVEN = "torchweld.uneven_convolution"
_RANKS = (3, 4, 5)  # batch, channels, and one to three sides


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of an aten.convolution over images. `padding`: before the first point of each
    side; behind the last it reaches as far as the result's size says. `uneven`: the two may
    differ."""

    image: View
    weight: View
    bias: View | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    groups: int
    uneven: bool = False

    @property
    def channels(self) -> int:
        """Of one group."""
        return self.weight.shape[0] // self.groups if self.transposed else self.weight.shape[1]

    @property
    def results(self) -> int:
        """Output channels of one group."""
        return self.weight.shape[1] if self.transposed else self.weight.shape[0] // self.groups

    @property
    def window(self) -> tuple[int, ...]:
        return self.weight.shape[2:]


def call_of(node: object) -> Call | None:
    """The arguments of a call of a convolution, None for any other node, and where a number other
    than the image's sizes is not known."""
    if not isinstance(node, Extern) or node.target not in (CONVOLUTION, UNEVEN):
        return None
    if node.kwargs or node.outputs[0] is None:
        return None
    image, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    numbers = (*weight.shape, *stride, *padding, *dilation, groups)
    if len(image.shape) not in _RANKS or not all(isinstance(n, int) for n in numbers):
        return None
    uneven = node.target == UNEVEN
    padding = padding[::2] if uneven else padding
    return Call(image, weight, bias, stride, padding, dilation, transposed, groups, uneven)


def lies_by_pixel(image: View) -> bool:
    """Whether the channels of a pixel lie beside each other in memory."""
    return image.shape[1] != 1 and image.strides[1] == 1 and product(image.shape[2:]) != 1


def convolution_comp(node: Extern, buffers: Mapping[str, Buffer]) -> Comp | None:
    """The Comp of a convolution of images of one dtype, summed in float32; None of another node,
    and where a window on a buffer goes over several of its dimensions at once."""
    call = call_of(node)
    return None if call is None else _as_comp(node, call, buffers)


def _as_comp(node: Extern, call: Call, buffers: Mapping[str, Buffer]) -> Comp | None:
    result, sides = buffers[node.outputs[0]], len(call.window)
    dtype = result.dtype
    outs, points = "dhw"[-sides:], "kij"[-sides:]
    extents = dict(zip("n" + outs, (result.shape[0], *result.shape[2:])))
    extents |= dict(zip("goc", (call.groups, call.results, call.channels)))
    extents |= dict(zip(points, call.window))
    n, g, o, c = (constant(0) if extents[a] == 1 else axis(a) for a in "ngoc")
    b = BodyBuilder()
    windows, guard = (_walked_back if call.transposed else _walked)(b, call, outs, points)
    channel, at = g * call.channels + c, g * call.results + o
    factors = (channel, o) if call.transposed else (at, c)
    image = on_buffer(call.image, buffers, (n, channel, *windows), later=True)
    weights = on_buffer(call.weight, buffers, (*factors, *map(axis, points)))
    if image is None or weights is None:
        return None
    pixel = b.load(call.image.buffer, image, dtype, guard, 0.0, exact=True)
    weight = b.load(call.weight.buffer, weights, dtype, exact=True)
    summed = "".join(c.axes) + points
    value = b.reduce("sum", (b.op("mul", b.widen(pixel), b.widen(weight)),), tuple(summed))
    if call.bias is not None:
        value = b.op("add", value, b.widen(b.load(call.bias.buffer, (at,), dtype)))
    value = b.cast(value, dtype)
    names = "".join(a for e in (n, g, o) for a in e.axes) + outs + summed
    axes = tuple(Axis(name, extents[name]) for name in names)
    store = Store(result.name, (n, at, *map(axis, outs)), value)
    return Comp(node.name, axes, b.body, (store,), node.origins)


def on_buffer(
    view: View, buffers: Mapping[str, Buffer], place: IndexMap, later: bool = False
) -> IndexMap | None:
    """A place in a window as one in its buffer, whose dimensions may be others: an image
    [n, c, h, w] of the matrix [n*h*w, c]. Reads outside of the window are guarded. `later`: it may
    begin behind the buffer's start."""
    buffer = buffers[view.buffer]
    if view == buffer.view:
        return place
    numbers = (*view.shape, *view.strides, view.offset, *buffer.shape, *buffer.strides)
    if not all(isinstance(n, int) for n in numbers) or (view.offset and not later):
        return None
    order = sorted(range(len(buffer.shape)), key=lambda d: -buffer.strides[d])
    last, rest = [0] * len(buffer.shape), view.offset
    for d in order:
        if buffer.shape[d] > 1:
            last[d], rest = divmod(rest, buffer.strides[d])
    entries = [constant(n) for n in last]
    for at, extent, stride in zip(place, view.shape, view.strides):
        if extent == 1:
            continue
        steps = (d for d in order if buffer.shape[d] > 1 and stride % buffer.strides[d] == 0)
        d = next(steps, None)
        if d is None or not isinstance(at, Affine):
            return None
        step = stride // buffer.strides[d]
        entries[d], last[d] = entries[d] + at * step, last[d] + (extent - 1) * step
    inside = all(index < extent for index, extent in zip(last, buffer.shape))
    return tuple(entries) if inside and rest == 0 else None


def _walked(b: BodyBuilder, call: Call, outs: str, points: str) -> tuple[IndexMap, Value | None]:
    """Along each side of the image, the place that output and window meet in; and whether they
    do."""
    sizes, spans = call.image.shape[2:], zip(outs, points, call.stride, call.dilation, call.padding)
    places = [place(out, stride, kernel, dilation, p) for out, kernel, stride, dilation, p in spans]
    leaves = call.uneven or any(call.padding) or not all(isinstance(s, int) for s in sizes)
    return tuple(places), inside(b, places, sizes) if leaves else None


def _walked_back(b: BodyBuilder, call: Call, outs: str, points: str) -> tuple[IndexMap, Value]:
    """The same of a transposed convolution: places are divided by the stride."""
    spans = zip(outs, points, call.dilation, call.padding)
    places = [place(out, 1, kernel, -dilation, -p) for out, kernel, dilation, p in spans]
    ends = [size * stride for size, stride in zip(call.image.shape[2:], call.stride)]
    guard, indices = inside(b, places, ends), list(places)
    for k, stride in enumerate(call.stride):
        if stride > 1:
            at, number = b.index(places[k]), b.const(stride, dtypes.i64)
            rest = b.op("eq", b.op("remainder", at, number), b.const(0, dtypes.i64))
            guard, indices[k] = b.op("bit_and", guard, rest), Ref(b.op("floor_div", at, number))
    return tuple(indices), guard


def edges(b: BodyBuilder, at: Affine, points: int, size: int) -> list[Value]:
    """The conditions for an index along one side to be inside an image of `size`, where it is not
    anyhow: for the first and the last of so many points it leaves the image. Its terms are one
    axis, or none."""
    first, step = at.const, sum(c for _, c in at.terms)
    conditions, index = [], b.index(at)
    if first < 0:
        conditions.append(b.op("ge", index, b.index(constant(0))))
    if first + (points - 1) * step >= size:
        conditions.append(b.op("lt", index, b.index(constant(size))))
    return conditions


def all_of(b: BodyBuilder, conditions: Sequence[Value]) -> Value | None:
    """None if there are no conditions."""
    return reduce(lambda a, other: b.op("bit_and", a, other), conditions) if conditions else None


def inside(b: BodyBuilder, indices: Sequence[Affine], sizes: Sequence[int]) -> Value:
    """Whether each index is within its size."""
    zero, guard = b.index(constant(0)), None
    for index, size in zip(indices, sizes):
        at = b.index(index)
        for condition in (b.op("ge", at, zero), b.op("lt", at, b.index(constant(size)))):
            guard = condition if guard is None else b.op("bit_and", guard, condition)
    return guard

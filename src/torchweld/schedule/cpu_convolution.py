"""How a convolution of float32 images runs on a CPU (codegen/convolution.h), with what follows it.

    comp convolution_relu [n, o, h, w, c, i, j] {
      ...                                         h + i - 1 and w + j - 1 are in the image
      %k = load x[n, c, h+i-1, w+j-1] exact guard ... : f32
      ... = load weight[o, c, i, j] exact : f32
      ... = mul
      ... = reduce.sum[c, i, j]
      ...                                         pointwise over n, o, h and w
      store y[n, o, h, w] %m
    }

kernels/convolutions.py makes such Comps of library calls; the marks `exact` tell them from sums
that a user wrote out. A batch of one has no axis. Depthwise, o is also the channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
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
    Scan,
    Value,
    needed,
    store_operands,
)
from torchweld.ir.size import Size
from torchweld.schedule.access import Accesses, addressed
from torchweld.schedule.expand import with_values

MOST_TAPS = 192  # of a window; convolution.h's buffers
MOST_SIDE = 16
SUMS = "sums"
_ZERO = constant(0)


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial dimension: which elements of the image meet in an output. `kernel`: the axis that
    runs over the window, None where it is one element wide."""

    out: str
    kernel: str | None
    stride: int
    dilation: int
    padding: int
    taps: int
    size: Size

    @property
    def place(self) -> Affine:
        """The index into the image."""
        return place(self.out, self.stride, self.kernel, self.dilation, self.padding)


@dataclass(frozen=True, slots=True)
class CpuConvolution:
    """`value`: the sum, `image` and `weight`: its Loads. Names of axes: `batch`, `result` (output
    channel), `channel`, and those of the windows; `batch` is None for one image, `channel` for a
    depthwise convolution. `finish`: what follows the sums, as a Comp that loads them from the
    buffer SUMS, over merged axes; `pixel`, the innermost of them, is None where it has one pixel.
    """

    value: Value
    image: Load
    weight: Load
    batch: str | None
    result: str
    channel: str | None
    windows: tuple[Window, Window]
    finish: Accesses
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
    axes = _axes(image, weight)
    if axes is None or not _has_layouts(image, weight, buffers):
        return None
    batch, result, channel = axes
    windows = _windows(comp, image, weight, buffers[image.buffer])
    if windows is None:
        return None
    if not is_inside(comp, image.guard, [(w.place, w.size) for w in windows]):
        return None
    reduced = {name for name in (channel, *(w.kernel for w in windows)) if name}
    if set(comp.body[value].axes) != reduced:
        return None
    rows = (*([batch] if batch else ()), result, *(w.out for w in windows))
    finish = _finish(comp, value, reduced, rows)
    if finish is None:
        return None
    accesses = addressed(finish, {**buffers, SUMS: _sums(finish)}, hints)
    pixels = [a for a in accesses.frame.rows if a in {w.out for w in windows}]
    if len(pixels) > 1:
        return None
    pixel = pixels[0] if pixels else None
    return CpuConvolution(
        value, image, weight, batch, result, channel, windows, accesses, pixel
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
    ranked = marked and all(len(i.index) == 4 for i in loads)
    plain = ranked and loads[1].guard is None and loads[0].fill == 0
    affine = plain and all(isinstance(e, Affine) for i in loads for e in i.index)
    return (loads[0], loads[1]) if affine else None


def _axes(image: Load, weight: Load) -> tuple[str | None, str, str | None] | None:
    """Batch, output channel and channel."""
    (batch, channel), (result, same) = image.index[:2], weight.index[:2]
    if None in (channel.as_axis, result.as_axis) or (batch.as_axis is None and batch != _ZERO):
        return None
    if channel == result and same == _ZERO:
        return batch.as_axis, result.as_axis, None
    return (batch.as_axis, result.as_axis, same.as_axis) if channel == same else None


def _has_layouts(image: Load, weight: Load, buffers: Mapping[str, Buffer]) -> bool:
    """Rows of the image lie in memory, and weights one after the other."""
    strides, (_, *window) = buffers[image.buffer].strides, buffers[weight.buffer].shape
    if not all(isinstance(s, int) for s in window):
        return False
    channels, height, width = window
    packed = (channels * height * width, height * width, width, 1)
    return strides[-1] == 1 and buffers[weight.buffer].strides == packed


def _windows(comp: Comp, image: Load, weight: Load, buffer: Buffer) -> tuple[Window, Window] | None:
    found = tuple(_window(comp, image.index[d], weight.index[d], buffer.shape[d]) for d in (-2, -1))
    if None in found or found[0].taps * found[1].taps > MOST_TAPS:
        return None
    return found if max(w.taps for w in found) <= MOST_SIDE else None


def _window(comp: Comp, index: Affine, weight: Affine, size: Size) -> Window | None:
    kernel = weight.as_axis
    if kernel is None and weight != _ZERO:
        return None
    outs = [(n, c) for n, c in index.terms if n != kernel]
    numbers = (index.const, *(c for _, c in index.terms))
    if len(outs) != 1 or not all(isinstance(c, int) for c in numbers):
        return None
    ((out, stride),) = outs
    dilation = index.coefficient(kernel) if kernel else 1
    taps = comp.extent(kernel) if kernel else 1
    if not isinstance(taps, int) or stride < 1 or dilation < 1 or index.const > 0:
        return None
    return Window(out, kernel, stride, dilation, -index.const, taps, size)


def is_inside(comp: Comp, guard: Value | None, places: Sequence[tuple[Affine, Size]]) -> bool:
    """Whether `guard` holds where each index is in [0, size), and nowhere else; it may leave out
    what holds anyhow."""
    allowed: set[Affine] = set()
    needed: set[Affine] = set()
    for index, extent in places:
        above, below = index, index * -1 + (extent - 1)
        highest = sum((c * (comp.extent(a) - 1) for a, c in index.terms), index.const) - extent
        allowed |= {above, below}
        needed |= {above} if not isinstance(index.const, int) or index.const < 0 else set()
        needed |= {below} if not isinstance(highest, int) or highest >= 0 else set()
    found = set() if guard is None else set(_conditions(comp.body, guard))
    return needed <= found <= allowed


def _conditions(body: tuple[Instr, ...], value: Value) -> Iterator[Affine | None]:
    """Maps that must not be negative, all of them, for a guard to hold."""
    instr = body[value]
    if isinstance(instr, Op) and instr.name in ("bit_and", "mul"):
        for arg in instr.args:
            yield from _conditions(body, arg)
        return
    sides = [_map(body[a]) for a in instr.args] if isinstance(instr, Op) else []
    if len(sides) != 2 or None in sides:
        yield None
    elif instr.name in ("ge", "gt"):
        yield sides[0] + sides[1] * -1 + (-1 if instr.name == "gt" else 0)
    elif instr.name in ("le", "lt"):
        yield sides[1] + sides[0] * -1 + (-1 if instr.name == "lt" else 0)
    else:
        yield None


def _map(instr: Instr) -> Affine | None:
    if isinstance(instr, Index):
        return instr.map
    return constant(instr.value) if isinstance(instr, Const) else None


# -- what follows --


def _finish(comp: Comp, value: Value, reduced: set[str], rows: tuple[str, ...]) -> Comp | None:
    """`comp` with the sum loaded from a buffer, without what the sum is made of. None unless it is
    pointwise, and stores each point once."""
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


def _sums(finish: Comp) -> Buffer:
    """Strides for which no axes merge but those of the pixels."""
    extents = tuple(a.extent for a in finish.axes)
    return Buffer(SUMS, extents, dtypes.f32, (0, -1, extents[-1], 1)[-len(extents) :])

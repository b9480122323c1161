"""Convolutions of float32 images on a CPU, of one to three dimensions, in groups, transposed:
library calls become Comps (schedule/cpu_convolution.py), and take in what follows them.

    before: t = convolution(x, w, b);  y = relu(batch_norm(t) + r), t used nowhere else
    after:  comp [n, o, h, w, c, i, j] { store y[n, o, h, w] relu(batch_norm(sum + b[o]) + r) }

Images keep eager's layout and weights theirs, and nothing is kept. oneDNN with channels last
adds up each window in one chain, for a window of 4608 terms with 5 times the error of eager's; the
kernels here add up chains of at most 144 terms, with eager's error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from torchweld.core import dtypes
from torchweld.core.device import DeviceTable
from torchweld.core.options import Options
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Comp,
    Extern,
    Graph,
    IndexMap,
    Ref,
    Store,
    Value,
    View,
    views,
)
from torchweld.ir.size import Size, hint, product
from torchweld.kernels.channels import is_whole
from torchweld.kernels.coarse import coarsened
from torchweld.kernels.epilogues import with_readers
from torchweld.plan.decisions import Plan
from torchweld.schedule.cpu_convolution import cpu_convolution, place

_CALL = "aten.convolution.default"
_RANKS = (3, 4, 5)  # batch, channels, and one to three sides
_LEAST_WORK = 1 << 19  # multiply-adds
_FEW = 8  # output channels: for fewer, oneDNN reads an image once if windows are one pixel
_WHOLE = 16  # channels of a group that fill a vector: oneDNN is faster where windows take steps
# Points of overlapping windows, by the image's sides; above, oneDNN is 1.1 to 1.7 times as fast
_WIDE_WINDOW = {1: 192, 2: 16, 3: 64}
_WIDE_ALONE = 64  # the same for images of few channels (colours), which oneDNN pads
_COLOURS = 8
_WIDE_WORK = 1 << 23  # from this many multiply-adds on


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of an aten.convolution over images."""

    image: View
    weight: View
    bias: View | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    groups: int

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


def own_convolutions(plan: Plan, table: DeviceTable, options: Options) -> Plan:
    """`plan` with convolutions made by kernels of our own where those are faster."""
    if not options.fuse or not has_vectors(table):
        return plan
    graph = coarsened(plan.graph, _image_shapes(plan.graph))
    made = {n.name: comp for n in graph.nodes if (comp := _convolution_comp(n, graph))}
    return with_readers(replace(plan, graph=graph), made, _runs, table) if made else plan


def _runs(comp: Comp, graph: Graph) -> bool:
    return cpu_convolution(comp, graph.buffers, graph.hints) is not None


def _image_shapes(graph: Graph) -> Iterator[tuple[str, tuple[Size, ...]]]:
    """The shapes in which calls read images."""
    for node in graph.nodes:
        call = _read(node) if isinstance(node, Extern) else None
        if call is not None and call.image.offset == 0:
            yield call.image.buffer, call.image.shape


def has_vectors(table: DeviceTable) -> bool:
    """Windows are gathered by masked loads."""
    return table.kind == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512"


# -- a library call as a Comp --


def _convolution_comp(node: object, graph: Graph) -> Comp | None:
    call = _read(node) if isinstance(node, Extern) else None
    if call is None or not _suits(call, node, graph):
        return None
    comp = _as_comp(node, call, graph)
    return comp if _runs(comp, graph) else None


def _read(node: Extern) -> _Call | None:
    if node.target != _CALL or node.kwargs or node.outputs[0] is None:
        return None
    image, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    if len(image.shape) not in _RANKS:
        return None
    return _Call(image, weight, bias, stride, padding, dilation, transposed, groups)


def _suits(call: _Call, node: Extern, graph: Graph) -> bool:
    """Float32, whole buffers, and worth a kernel."""
    kinds = {graph.buffers[n].dtype for n in (*node.reads, *node.writes)}
    if kinds != {dtypes.f32} or not all(is_whole(v, graph) for v in views(node.args)):
        return False
    result = call.image if call.transposed else graph.buffers[node.outputs[0]]
    work = hint(product((*result.shape, *call.weight.shape[1:])), graph.hints)
    return work >= _LEAST_WORK and not _is_better_in_library(call, work)


def _is_better_in_library(call: _Call, work: int) -> bool:
    """As measured on Zen 5 with one thread, in eager."""
    sides, few = len(call.window), call.results < _FEW
    if math.prod(call.window) == 1:
        return few
    if call.transposed:
        return False
    if call.groups > 1 and call.channels % _WHOLE == 0 and max(call.stride) > 1:
        return True
    widest = max(_WIDE_WINDOW[sides], _WIDE_ALONE if call.channels < _COLOURS else 0)
    return _overlapping_points(call) > widest and work >= _WIDE_WORK and not few


def _overlapping_points(call: _Call) -> int:
    """Of a window that shares points of several channels with the next; 1 if it is apart."""
    apart = all(s >= n for s, n in zip(call.stride, call.window))
    return 1 if apart or call.channels == 1 else math.prod(call.window)


def _as_comp(node: Extern, call: _Call, graph: Graph) -> Comp:
    result, sides = graph.buffers[node.outputs[0]], len(call.window)
    outs, points = "dhw"[-sides:], "kij"[-sides:]
    extents = dict(zip("n" + outs, (result.shape[0], *result.shape[2:])))
    extents |= dict(zip("goc", (call.groups, call.results, call.channels)))
    extents |= dict(zip(points, call.window))
    n, g, o, c = (constant(0) if extents[a] == 1 else axis(a) for a in "ngoc")
    b = BodyBuilder()
    windows, guard = (_walked_back if call.transposed else _walked)(b, call, outs, points)
    channel, at = g * call.channels + c, g * call.results + o
    factors = (channel, o) if call.transposed else (at, c)
    pixel = b.load(call.image.buffer, (n, channel, *windows), dtypes.f32, guard, 0.0, exact=True)
    weight = b.load(call.weight.buffer, (*factors, *map(axis, points)), dtypes.f32, exact=True)
    summed = "".join(c.axes) + points
    value = b.reduce("sum", (b.op("mul", pixel, weight),), tuple(summed))
    if call.bias is not None:
        value = b.op("add", value, b.load(call.bias.buffer, (at,), dtypes.f32))
    names = "".join(a for e in (n, g, o) for a in e.axes) + outs + summed
    axes = tuple(Axis(name, extents[name]) for name in names)
    store = Store(result.name, (n, at, *map(axis, outs)), value)
    return Comp(node.name, axes, b.body, (store,), node.origins)


def _walked(b: BodyBuilder, call: _Call, outs: str, points: str) -> tuple[IndexMap, Value | None]:
    """Along each side of the image, the place that output and window meet in; and whether they
    do."""
    sizes, spans = call.image.shape[2:], zip(outs, points, call.stride, call.dilation, call.padding)
    places = [place(out, stride, kernel, dilation, p) for out, kernel, stride, dilation, p in spans]
    leaves = any(call.padding) or not all(isinstance(s, int) for s in sizes)
    return tuple(places), _inside(b, places, sizes) if leaves else None


def _walked_back(b: BodyBuilder, call: _Call, outs: str, points: str) -> tuple[IndexMap, Value]:
    """The same of a transposed convolution: places are divided by the stride."""
    spans = zip(outs, points, call.dilation, call.padding)
    places = [place(out, 1, kernel, -dilation, -p) for out, kernel, dilation, p in spans]
    ends = [size * stride for size, stride in zip(call.image.shape[2:], call.stride)]
    guard, indices = _inside(b, places, ends), list(places)
    for k, stride in enumerate(call.stride):
        if stride > 1:
            at, number = b.index(places[k]), b.const(stride, dtypes.i64)
            rest = b.op("eq", b.op("remainder", at, number), b.const(0, dtypes.i64))
            guard, indices[k] = b.op("bit_and", guard, rest), Ref(b.op("floor_div", at, number))
    return tuple(indices), guard


def _inside(b: BodyBuilder, indices: Sequence[Affine], sizes: Sequence[int]) -> Value:
    """Whether each index is within its size."""
    zero, guard = b.index(constant(0)), None
    for index, size in zip(indices, sizes):
        at = b.index(index)
        for condition in (b.op("ge", at, zero), b.op("lt", at, b.index(constant(size)))):
            guard = condition if guard is None else b.op("bit_and", guard, condition)
    return guard

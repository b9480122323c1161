"""Convolutions of float32 images on a CPU: library calls become Comps
(schedule/cpu_convolution.py), and take in what follows them.

    before: t = convolution(x, w, b);  y = relu(batch_norm(t) + r), t used nowhere else
    after:  comp [n, o, h, w, c, i, j] { store y[n, o, h, w] relu(batch_norm(sum + b[o]) + r) }

Images keep eager's layout and weights theirs; nothing is packed or kept. oneDNN with channels last
adds up each window in one chain, for a window of 4608 terms with 5 times the error of eager's; the
kernels here add up chains of 144 terms, with eager's error.
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
from torchweld.ir.nodes import Axis, Comp, Extern, Graph, Store, Value, View, views
from torchweld.ir.size import Size, hint, product
from torchweld.kernels.channels import is_whole
from torchweld.kernels.coarse import coarsened
from torchweld.kernels.epilogues import with_readers
from torchweld.plan.decisions import Plan
from torchweld.schedule.cpu_convolution import cpu_convolution, place

_CALL = "aten.convolution.default"
_RANKS = (3, 4, 5)  # batch, channels, and one to three sides
_LEAST_WORK = 1 << 19  # multiply-adds
_FEWEST = 8  # output channels, for windows of one pixel; below, oneDNN reads the image once
_WHOLE = 16  # oneDNN's vectors hold channels of one group
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
    groups: int


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
    if transposed or len(image.shape) not in _RANKS:
        return None
    return _Call(image, weight, bias, stride, padding, dilation, groups)


def _suits(call: _Call, node: Extern, graph: Graph) -> bool:
    """Float32, whole buffers, and worth a kernel."""
    kinds = {graph.buffers[n].dtype for n in (*node.reads, *node.writes)}
    if kinds != {dtypes.f32} or not all(is_whole(v, graph) for v in views(node.args)):
        return False
    result = graph.buffers[node.outputs[0]]
    work = hint(product((*result.shape, *call.weight.shape[1:])), graph.hints)
    return work >= _LEAST_WORK and not _is_better_in_library(call, work)


def _is_better_in_library(call: _Call, work: int) -> bool:
    """As measured on Zen 5 with one thread, in eager."""
    sides, (results, channels, *window) = len(call.weight.shape) - 2, call.weight.shape
    if math.prod(window) == 1:
        return results // call.groups < _FEWEST
    if call.groups > 1 and channels % _WHOLE == 0 and sides == 2:
        return True
    widest = max(_WIDE_WINDOW[sides], _WIDE_ALONE if channels < _COLOURS else 0)
    return _overlapping_points(call) > widest and work >= _WIDE_WORK


def _overlapping_points(call: _Call) -> int:
    """Of a window that shares points of several channels with the next; 1 if it is apart."""
    _, channels, *window = call.weight.shape
    apart = all(s >= n for s, n in zip(call.stride, window))
    return 1 if apart or channels == 1 else math.prod(window)


def _as_comp(node: Extern, call: _Call, graph: Graph) -> Comp:
    result, sizes = graph.buffers[node.outputs[0]], call.image.shape[2:]
    outs, points = "dhw"[-len(sizes) :], "kij"[-len(sizes) :]
    results, channels = call.weight.shape[0] // call.groups, call.weight.shape[1]
    extents = dict(zip("n" + outs, (result.shape[0], *result.shape[2:])))
    extents |= dict(g=call.groups, o=results, c=channels)
    extents |= dict(zip(points, call.weight.shape[2:]))
    n, g, o, c = (constant(0) if extents[a] == 1 else axis(a) for a in "ngoc")
    b = BodyBuilder()
    windows = _windows(call, outs, points)
    leaves = any(call.padding) or not all(isinstance(s, int) for s in sizes)
    guard = _inside(b, windows, sizes) if leaves else None
    place, at = (n, g * channels + c, *windows), g * results + o
    pixel = b.load(call.image.buffer, place, dtypes.f32, guard, 0.0, exact=True)
    weight = b.load(call.weight.buffer, (at, c, *map(axis, points)), dtypes.f32, exact=True)
    summed = "".join(c.axes) + points
    value = b.reduce("sum", (b.op("mul", pixel, weight),), tuple(summed))
    if call.bias is not None:
        value = b.op("add", value, b.load(call.bias.buffer, (at,), dtypes.f32))
    names = "".join(a for e in (n, g, o) for a in e.axes) + outs + summed
    axes = tuple(Axis(name, extents[name]) for name in names)
    store = Store(result.name, (n, at, *map(axis, outs)), value)
    return Comp(node.name, axes, b.body, (store,), node.origins)


def _windows(call: _Call, outs: str, points: str) -> list[Affine]:
    """Along each side of the image, the place that output and window meet in."""
    spans = zip(outs, points, call.stride, call.dilation, call.padding)
    return [place(out, stride, kernel, dilation, p) for out, kernel, stride, dilation, p in spans]


def _inside(b: BodyBuilder, indices: Sequence[Affine], sizes: Sequence[int]) -> Value:
    """Whether each index is within its size."""
    zero, guard = b.index(constant(0)), None
    for index, size in zip(indices, sizes):
        at = b.index(index)
        for condition in (b.op("ge", at, zero), b.op("lt", at, b.index(constant(size)))):
            guard = condition if guard is None else b.op("bit_and", guard, condition)
    return guard

"""Convolutions of float32 images on a CPU, of one to three dimensions, in groups, transposed:
library calls become Comps (templates/conv/cpu/schedule.py), and take in what follows them.

    before: t = convolution(x, w, b);  y = relu(batch_norm(t) + r), t used nowhere else
    after:  comp [n, o, h, w, c, i, j] { store y[n, o, h, w] relu(batch_norm(sum + b[o]) + r) }

Images keep eager's layout and weights theirs, and nothing is kept. oneDNN with channels last
adds up each window in one chain, for a window of 4608 terms with 5 times the error of eager's; the
kernels here add up chains of at most 144 terms, with eager's error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import (
    Comp,
    Extern,
    Graph,
    readers,
    views,
)
from torchweld.ir.size import Size, hint, product
from torchweld.layout.channels import is_whole
from torchweld.layout.coarse import coarsened
from torchweld.plan.decisions import Plan
from torchweld.plan.epilogues import with_readers
from torchweld.plan.products.told import explained, of_call
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, call_of, convolution_comp
from torchweld.templates.conv.cpu.schedule import cpu_convolution

_LEAST_WORK = 1 << 19  # multiply-adds
_FEW = 8  # output channels: for fewer, oneDNN reads an image once if windows are one pixel
_WHOLE = 16  # channels of a group that fill a vector: oneDNN is faster where windows take steps
# Points of overlapping windows, by the image's sides; above, oneDNN is 1.1 to 1.7 times as fast
_WIDE_WINDOW = {1: 192, 2: 16, 3: 64}
_WIDE_ALONE = 64  # the same for images of few channels (colours), which oneDNN pads
_COLOURS = 8
_LONG_STEP = 3  # of a window: oneDNN took 0.5 to 0.85 of the time on a Zen 4 (patches, too)
_WIDE_WORK = 1 << 23  # from this many multiply-adds on


def own_convolutions(plan: Plan, table: Target, options: Options) -> Plan:
    """`plan` with convolutions made by kernels of our own where those are faster."""
    if not options.fuse or "avx512" not in table.features:
        return plan
    graph = coarsened(plan.graph, _image_shapes(plan.graph))
    found = {n.name: _convolution_comp(n, graph) for n in graph.nodes if call_of(n)}
    made = {name: f for name, f in found.items() if isinstance(f, Comp)}
    refused, read_by = {}, readers(graph.nodes)
    for node in graph.nodes:
        if isinstance(why := found.get(node.name), Refusal):
            refused |= of_call(node, read_by, why)
    told = explained(replace(plan, graph=graph), refused)
    return with_readers(told, made, _runs, table) if made else replace(told, graph=plan.graph)


def _runs(comp: Comp, graph: Graph) -> bool:
    return cpu_convolution(comp, graph.buffers, graph.hints) is not None


def _image_shapes(graph: Graph) -> Iterator[tuple[str, tuple[Size, ...]]]:
    """The shapes in which calls read images."""
    for node in graph.nodes:
        call = call_of(node)
        if call is not None and call.image.offset == 0:
            yield call.image.buffer, call.image.shape


# -- a library call as a Comp --


def _convolution_comp(node: Extern, graph: Graph) -> Comp | Refusal:
    """The kernel in the place of a convolution, or why it stays the library's."""
    refusal = _refusal(call_of(node), node, graph)
    if refusal is not None:
        return refusal
    comp = convolution_comp(node, graph.buffers)
    return comp if _runs(comp, graph) else Refusal(Reason.TEMPLATE, node.target)


def _refusal(call: Call, node: Extern, graph: Graph) -> Refusal | None:
    """None for float32, whole buffers, and what is worth a kernel."""
    kinds = {graph.buffers[n].dtype for n in (*node.reads, *node.writes)}
    if kinds != {dtypes.f32}:
        return Refusal(Reason.TEMPLATE, f"{min(k.name for k in kinds - {dtypes.f32})}, not f32")
    if not all(is_whole(v, graph) for v in views(node.args)):
        return Refusal(Reason.TEMPLATE, "an operand is a part of a larger buffer")
    result = call.image if call.transposed else graph.buffers[node.outputs[0]]
    work = hint(product((*result.shape, *call.weight.shape[1:])), graph.hints)
    if work >= _LEAST_WORK and not _is_better_in_library(call, work):
        return None
    return Refusal(Reason.SLOWER, f"{work} multiply-adds in windows of {call.window}")


def _is_better_in_library(call: Call, work: int) -> bool:
    """As measured on Zen 5 with one thread, in eager."""
    sides, few = len(call.window), call.results < _FEW
    if math.prod(call.window) == 1:
        return few
    if call.transposed:
        return False
    if call.groups > 1 and call.channels % _WHOLE == 0 and max(call.stride) > 1:
        return True
    if call.groups == 1 and max(call.stride) >= _LONG_STEP and sides * call.channels > 1:
        return True
    widest = max(_WIDE_WINDOW[sides], _WIDE_ALONE if call.channels < _COLOURS else 0)
    return _overlapping_points(call) > widest and work >= _WIDE_WORK and not few


def _overlapping_points(call: Call) -> int:
    """Of a window that shares points of several channels with the next; 1 if it is apart."""
    apart = all(s >= n for s, n in zip(call.stride, call.window))
    return 1 if apart or call.channels == 1 else math.prod(call.window)



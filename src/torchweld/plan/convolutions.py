"""Convolutions of float32 images on a CPU, of one to three dimensions, in groups, transposed:
library calls become Comps (templates/conv/cpu/schedule.py), and take in what follows them.

    before: t = convolution(x, w, b);  y = relu(batch_norm(t) + r), t used nowhere else
    after:  comp [n, o, h, w, c, i, j] { store y[n, o, h, w] relu(batch_norm(sum + b[o]) + r) }

Images keep eager's layout and weights theirs, and nothing is kept. Operands that are views are
copied first (`x.view(1, b * c, h, w)` with a weight for each image). oneDNN with channels last
adds up each window in one chain, for a window of 4608 terms with 5 times the error of eager's; the
kernels here add up chains of at most 144 terms, with eager's error.

So do gradients of weights, of convolutions in groups of few channels:

    before: dw = convolution_backward(dy, x, w)
    after:  comp dw [g, i, j, n, h, w] { store sum of dy[n, g, h, w] * x[n, g, h+i, w+j] }
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
from torchweld.layout.whole import whole_copy
from torchweld.plan.decisions import Plan
from torchweld.plan.epilogues import with_readers
from torchweld.plan.products.told import explained, of_call
from torchweld.plan.refusals import Reason, Refusal
from torchweld.rewrite.flow import mutated_buffers
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, call_of, convolution_comp, lies_by_pixel
from torchweld.templates.conv.cpu.schedule import MOST_TAPS, cpu_convolution
from torchweld.templates.conv.gradient import WeightGradient, weight_gradient
from torchweld.templates.conv.price import (
    LONG_STEP,
    convolution_s,
    has_own_convolutions,
    knows_convolutions,
    work_of,
)
from torchweld.templates.weight_gradient.comp import weight_gradient_comp
from torchweld.templates.weight_gradient.schedule import weight_sums

_FEW = 8  # output channels: for fewer, oneDNN reads an image once if windows are one pixel
_WHOLE = 16  # channels of a group that fill a vector: oneDNN is faster where windows take steps
# Points of a window of three sides; with fewer oneDNN had a quarter of our speed on a Xeon
_WIDE_VOLUME = 64
# Channels of a group with which the library is slow at a weight's gradient; but it is not with
# channels last and short windows (bench/convolution_gradients.py).
_MOST_CHANNELS, _SHORT = 4, 9
_SURE = 0.05  # of a price: what follows is free in a kernel of ours


def own_convolutions(plan: Plan, table: Target, options: Options) -> Plan:
    """`plan` with convolutions made by kernels of our own where those are faster."""
    if not options.fuse or not has_own_convolutions(table):
        return plan
    graph = _with_copies(coarsened(plan.graph, _image_shapes(plan.graph)), table)
    found = {n.name: _convolution_comp(n, graph, table) for n in graph.nodes if call_of(n)}
    found |= {n.name: _gradient_comp(n, graph) for n in graph.nodes if weight_gradient(n)}
    made = {name: f for name, f in found.items() if isinstance(f, Comp)}
    refused, read_by = {}, readers(graph.nodes)
    for node in graph.nodes:
        if isinstance(why := found.get(node.name), Refusal):
            refused |= of_call(node, read_by, why)
    told = explained(replace(plan, graph=graph), refused)
    return with_readers(told, made, _runs, table) if made else replace(told, graph=plan.graph)


def _runs(comp: Comp, graph: Graph) -> bool:
    if cpu_convolution(comp, graph.buffers, graph.hints) is not None:
        return True
    return weight_sums(comp, graph.buffers) is not None


def _image_shapes(graph: Graph) -> Iterator[tuple[str, tuple[Size, ...]]]:
    """The shapes in which calls read images."""
    for node in graph.nodes:
        call = call_of(node)
        if call is not None and call.image.offset == 0:
            yield call.image.buffer, call.image.shape
        gradient = weight_gradient(node)
        for view in (gradient.points, gradient.image) if gradient is not None else ():
            if view.offset == 0:
                yield view.buffer, view.shape


# -- operands that are views --


def _with_copies(graph: Graph, table: Target) -> Graph:
    """`graph` with copies of the views that convolutions read for which it then has a kernel."""
    mutated = mutated_buffers(graph)
    for node in graph.nodes:
        if call_of(node) and not mutated.intersection(node.reads):
            graph = _copied(node, graph, table) or graph
    return graph


def _copied(node: Extern, graph: Graph, table: Target) -> Graph | None:
    """None where no operand of `node` is a view, or no kernel is made of it then; nor for images
    whose channels are innermost, which the library is fast at: 92 us for 1267 in three channels of
    92 x 103, twice, in windows of 3 x 3."""
    if lies_by_pixel(node.args[0]):
        return None
    apart = [k for k, v in enumerate(node.args[:3]) if v is not None and not is_whole(v, graph)]
    made = [whole_copy(node.args[k], f"{node.name}_whole{k}", graph, node) for k in apart]
    if not made or None in made:
        return None
    args = list(node.args)
    for k, (buffer, _) in zip(apart, made):
        args[k] = buffer.view
    call = replace(node, args=tuple(args))
    at = graph.nodes.index(node)
    nodes = (*graph.nodes[:at], *(comp for _, comp in made), call, *graph.nodes[at + 1 :])
    buffers = {**graph.buffers, **{b.name: b for b, _ in made}}
    copied = replace(graph, nodes=nodes, buffers=buffers)
    return copied if isinstance(_convolution_comp(call, copied, table), Comp) else None


# -- a library call as a Comp --


def is_own_gradient(node: object, graph: Graph, target: Target) -> bool:
    """Whether the gradient that a node makes of a weight is made faster by a kernel of ours."""
    call = weight_gradient(node)
    own = call is not None and has_own_convolutions(target)
    return own and _gradient_refusal(call, graph) is None


def _gradient_comp(node: Extern, graph: Graph) -> Comp | Refusal:
    """The kernel in the place of a call that makes a weight's gradient alone, or why it stays the
    library's."""
    refusal = _gradient_refusal(weight_gradient(node), graph)
    if refusal is not None:
        return refusal
    comp = weight_gradient_comp(node, graph.buffers)
    return comp if comp and _runs(comp, graph) else Refusal(Reason.TEMPLATE, node.target)


def _gradient_refusal(call: WeightGradient, graph: Graph) -> Refusal | None:
    kinds = {graph.buffers[v.buffer].dtype for v in (call.points, call.image)}
    if kinds != {dtypes.f32}:
        return Refusal(Reason.TEMPLATE, f"{min(k.name for k in kinds - {dtypes.f32})}, not f32")
    points = math.prod(call.window)
    if points > MOST_TAPS:
        return Refusal(Reason.TEMPLATE, f"windows of {call.window}")
    last = lies_by_pixel(call.image) and (call.channels, call.results) == (1, 1)
    if call.groups > 1 and call.channels <= _MOST_CHANNELS and not (last and points <= _SHORT):
        return None
    return Refusal(Reason.SLOWER, f"{call.channels} channels to a group, windows of {call.window}")


def _convolution_comp(node: Extern, graph: Graph, table: Target) -> Comp | Refusal:
    """The kernel in the place of a convolution, or why it stays the library's."""
    refusal = _refusal(call_of(node), node, graph, table)
    if refusal is not None:
        return refusal
    comp = convolution_comp(node, graph.buffers)
    return comp if _runs(comp, graph) else Refusal(Reason.TEMPLATE, node.target)


def _refusal(call: Call, node: Extern, graph: Graph, table: Target) -> Refusal | None:
    """None for float32, whole buffers, and what is worth a kernel."""
    kinds = {graph.buffers[n].dtype for n in (*node.reads, *node.writes)}
    if kinds != {dtypes.f32}:
        return Refusal(Reason.TEMPLATE, f"{min(k.name for k in kinds - {dtypes.f32})}, not f32")
    if not all(is_whole(v, graph) for v in views(node.args)):
        return Refusal(Reason.TEMPLATE, "an operand is a part of a larger buffer")
    result = call.image if call.transposed else graph.buffers[node.outputs[0]]
    work = hint(product((*result.shape, *call.weight.shape[1:])), graph.hints)
    said = f"{work} multiply-adds in windows of {call.window}"
    if _is_better_in_library(call):
        return Refusal(Reason.SLOWER, said)
    if not _has_two_ways(call) or not knows_convolutions(table):
        return None
    asked = work_of(node, call, graph.buffers, graph.hints)
    own_s, library_s = (convolution_s(way, asked, table) for way in ("own", "aten"))
    if library_s > own_s * (1 - _SURE):
        return None
    seconds = f"{1e6 * own_s:.0f} us, the library's {1e6 * library_s:.0f} us"
    return Refusal(Reason.SLOWER, f"{said}: {seconds}")


def _is_better_in_library(call: Call) -> bool:
    """Whether it is, whatever the machine's rates are."""
    if math.prod(call.window) == 1:
        return call.results < _FEW
    steps = not call.transposed and max(call.stride) > 1
    return steps and call.groups > 1 and call.channels % _WHOLE == 0


def is_own(node: Extern, graph: Graph, target: Target) -> bool:
    """Whether a node becomes a kernel of ours, if its operands stay as they are."""
    if call_of(node) is None or not has_own_convolutions(target):
        return False
    return isinstance(_convolution_comp(node, graph, target), Comp)


def is_always_own(node: object, graph: Graph, target: Target) -> bool:
    """Whether a node is a convolution of float32 images that a kernel of ours makes faster,
    whatever the machine's rates are."""
    call = call_of(node)
    if call is None or not has_own_convolutions(target):
        return False
    if graph.buffers[node.outputs[0]].dtype != dtypes.f32 or lies_by_pixel(call.image):
        return False
    return not _is_better_in_library(call) and not _has_two_ways(call)


def has_two_ways(node: object, graph: Graph) -> bool:
    """Whether a node is a convolution of float32 images that either way may make faster."""
    call = call_of(node)
    if call is None or graph.buffers[node.outputs[0]].dtype != dtypes.f32:
        return False
    return not _is_better_in_library(call) and _has_two_ways(call)


def _has_two_ways(call: Call) -> bool:
    """Whether either way may be the faster one. Ours is, by far, for what is transposed, and where
    little is read several times: windows that are apart, and one channel."""
    sides, points = len(call.window), math.prod(call.window)
    if call.transposed or points == 1 or (sides == 1 and call.channels == 1):
        return False
    if max(call.stride) >= LONG_STEP:
        return call.groups == 1
    apart = all(s >= n for s, n in zip(call.stride, call.window))
    if apart or call.channels == 1 or call.results < _FEW:
        return False
    return sides == 2 or (sides == 3 and points > _WIDE_VOLUME)

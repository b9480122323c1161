"""Depthwise convolutions as pointwise work: a few elements of one channel, multiplied and
added.

    before: y = convolution(x[n, c, h, w], v[c*m, 1, 3, 3], groups c)
    after:  y[n, c*m, h, w] = x[n, c, h-1, w-1] * v[c*m, 0, 0, 0] + ... eight more

On a GPU, there is nothing for tensor cores in them: each element of a window is multiplied by one
number. Nor is there in convolutions without groups of a few channels to a few, which filter images.
As pointwise work they are fused with what is before and after them. cuDNN has a slow kernel for
some of those whose channels lie innermost: of FastViT-T12 (16 images, bf16, H100) it took 7.1 of
8.4 ms. On a CPU, vectors of channels have little to do for images of three (a blur, SSIM).

The gradient of such an image is a convolution that is turned around, and so are transposed ones:

    before: dx, dv = convolution_backward(dy, x, v)
    after:  dx[n, c, h, w] = dy[n, c, h+1, w+1] * v[c, 0, 0, 0] + ...;  dv = convolution_backward

The gradient of the weight is a sum for each of its elements (depthwise_weights.py).

Where windows move in steps, each point makes a result of each phase, as many as a step has places:
along a side in steps of two, dx[2*h] of every second element of a window, dx[2*h+1] of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product

from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Node, Store, Value
from torchweld.passes.depthwise_weights import weight_sums
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, all_of, call_of, edges, on_buffer
from torchweld.templates.conv.depthwise import (
    is_pointwise,
    is_pointwise_on_cpu,
    is_summed,
    pointwise_gradient,
)
from torchweld.templates.conv.gradient import IMAGE, WEIGHT, weight_gradient, without

_SIDES = "dhw"


def depthwise_written_out(graph: Graph, target: Target, options: Options) -> Graph:
    """`graph` with such convolutions as Comps; on a GPU, gradients of their images, too."""
    if not options.fuse or options.numerics != "contract":
        return graph
    change = partial(_changed_on_cpu, lanes=target.lanes) if target.kind == "cpu" else _changed
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += change(node, graph.buffers) if isinstance(node, Extern) else [node]
    return replace(graph, nodes=tuple(nodes))


def _changed_on_cpu(node: Extern, buffers: dict[str, Buffer], lanes: int) -> list[Node]:
    call = call_of(node)
    wanted = is_pointwise_on_cpu(call, buffers, lanes) and buffers[node.outputs[0]].strides[-1] == 1
    return [_written_out(node, call, buffers) or node] if wanted else [node]


def _changed(node: Extern, buffers: dict[str, Buffer]) -> list[Node]:
    call = call_of(node)
    if is_pointwise(call, buffers):
        return [_written_out(node, call, buffers) or node]
    call, weight = pointwise_gradient(node, buffers), weight_gradient(node)
    made = {
        IMAGE: None if call is None else _written_out(node, call, buffers),
        WEIGHT: weight_sums(node, weight, buffers) if is_summed(weight, buffers) else None,
    }
    found = {k: comp for k, comp in made.items() if comp is not None}
    return [*found.values(), *without(node, found)]


def _written_out(node: Extern, call: Call, buffers: dict[str, Buffer]) -> Comp | None:
    """The Comp; None where a window on a buffer goes over several of its dimensions at once, or the
    result has others than the call, but for sides of one (layout/one_row.py)."""
    result, sides = buffers[node.outputs[0]], _SIDES[-len(call.window) :]
    more, lengths = result.shape[2 : -len(sides)], result.shape[-len(sides) :]
    channels = call.groups * call.results
    if result.shape[:2] != (call.image.shape[0], channels) or any(n != 1 for n in more):
        return None
    apart = call.stride if call.transposed else (1,) * len(sides)  # results of one point
    sizes = (-(-size // step) for size, step in zip(lengths, apart))
    extents = {"n": result.shape[0], "g": call.groups, "o": call.results} | dict(zip(sides, sizes))
    at = {a: constant(0) if size == 1 else axis(a) for a, size in extents.items()}
    sums, stores = _Sums(call, buffers, result, at, [extents[s] for s in sides]), []
    body, channel = sums.body, at["g"] * call.results + at["o"]
    for phase in product(*map(range, apart)):
        total = sums.of(phase)
        if total is None:
            return None
        places = [at[s] * step + r for s, step, r in zip(sides, apart, phase)]
        ends = zip(places, phase, apart, lengths, sums.extents)
        last = [body.op("lt", body.index(place), body.index(constant(size)))
                for place, r, step, size, points in ends if (points - 1) * step + r >= size]
        value = body.cast(total, result.dtype)
        store = Store(result.name, (at["n"], channel, *(constant(0) for _ in more), *places), value)
        stores.append(replace(store, guard=all_of(body, last)))
    axes = tuple(Axis(a, size) for a, size in extents.items() if size != 1)
    return Comp(node.name, axes, body.body, tuple(stores), node.origins)


class _Sums:
    """Of windows around the points `at` (of `extents` along each side), in float32."""

    def __init__(
        self, call: Call, buffers: dict[str, Buffer], result: Buffer, at: dict[str, Affine],
        extents: Sequence[int],
    ) -> None:  # fmt: skip
        self.call, self.buffers, self.result, self.at = call, buffers, result, at
        self.extents, self.body = extents, BodyBuilder()
        # Made when they are first needed: what waits fills registers.
        self._inside, self._pixel = cache(self._inside_now), cache(self._pixel_now)

    def of(self, phase: tuple[int, ...]) -> Value | None:
        """None where a window on a buffer goes over several of its dimensions at once."""
        call, body, total = self.call, self.body, None
        taps = product(*(_taps(call, d, r) for d, r in enumerate(phase)))
        for channel, tap in product(range(call.channels), taps):
            ks, firsts = zip(*tap)
            pixel, weight = self._pixel(channel, firsts), self._weight(channel, ks)
            if pixel is None or weight is None:
                return None
            term = body.op("mul", body.widen(pixel), body.widen(weight))
            total = term if total is None else body.op("add", total, term)
        if total is None:
            total = body.const(0.0, dtypes.f32)
        if call.bias is None:
            return total
        at = self.at["g"] * call.results + self.at["o"]
        bias = body.load(call.bias.buffer, (at,), self.result.dtype)
        return body.op("add", total, body.widen(bias))

    def _weight(self, channel: int, ks: Sequence[int]) -> Value | None:
        call, g, o = self.call, self.at["g"], self.at["o"]
        factors = (g * call.results + o, constant(channel))
        if call.transposed:
            factors = (g * call.channels + channel, o)
        place = on_buffer(call.weight, self.buffers, (*factors, *map(constant, ks)))
        return place and self.body.load(call.weight.buffer, place, self.result.dtype, exact=True)

    def _pixel_now(self, channel: int, firsts: Sequence[int]) -> Value | None:
        call, body = self.call, self.body
        places, guards = zip(*(self._inside(d, first) for d, first in enumerate(firsts)))
        guard = all_of(body, [g for g in guards if g is not None])
        at = (self.at["n"], self.at["g"] * call.channels + channel, *places)
        place = on_buffer(call.image, self.buffers, at, later=True)
        return place and body.load(
            call.image.buffer, place, self.result.dtype, guard, 0.0, exact=True
        )

    def _inside_now(self, d: int, first: int) -> tuple[Affine, Value | None]:
        """Where in the image an element of a window along side `d` is that is at `first` for the
        first point, and whether that is inside (None: always)."""
        call = self.call
        step = 1 if call.transposed else call.stride[d]
        place = self.at[_SIDES[-len(call.window) :][d]] * step + first
        found = edges(self.body, place, self.extents[d], call.image.shape[2 + d])
        return place, all_of(self.body, found)


def _taps(call: Call, d: int, phase: int) -> list[tuple[int, int]]:
    """The elements of a window along side `d`, and where in the image each is for the first point.
    Of a transposed convolution those that meet the results of a phase: k, where
    `phase + padding - k * dilation` is a multiple of the stride."""
    step, dilation, padding = call.stride[d], call.dilation[d], call.padding[d]
    if not call.transposed:
        return [(k, k * dilation - padding) for k in range(call.window[d])]
    offsets = [(k, phase + padding - k * dilation) for k in range(call.window[d])]
    return [(k, offset // step) for k, offset in offsets if offset % step == 0]

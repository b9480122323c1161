"""Gradients of the weights of depthwise convolutions on a GPU as sums over images and places.

    before: dx, dv = convolution_backward(dy, x[n, c, h, w], v[c*m, 1, 3, 3])
    after:  dv[c*m, 0, i, j] = sum of x[n, c, h+i-1, w+j-1] * dy[n, c*m, h, w] over n, h and w;
            dx = convolution_backward(dy, x, v)

One computation has a sum for each element of a window: they read the same pixels of `dy`, and
neighbours of the same pixels of `x`. ATen's kernel reads both again for each element.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Store
from torchweld.templates.conv.comp import all_of, edges, on_buffer
from torchweld.templates.conv.gradient import WEIGHT, WeightGradient

_SIDES = "dhw"


def weight_sums(
    node: Extern, call: WeightGradient, buffers: Mapping[str, Buffer]
) -> Comp | None:
    """The Comp; None where a window on a buffer goes over several of its dimensions at once."""
    result, sides = buffers[node.outputs[WEIGHT]], _SIDES[-len(call.window) :]
    extents = {"g": call.groups, "o": call.results, "n": call.points.shape[0]}
    extents |= dict(zip(sides, call.points.shape[2:]))
    at = {a: constant(0) if size == 1 else axis(a) for a, size in extents.items()}
    body, channel = BodyBuilder(), at["g"] * call.results + at["o"]
    summed = tuple(a for a in ("n", *sides) if extents[a] != 1)
    pixel = on_buffer(call.points, buffers, (at["n"], channel, *(at[s] for s in sides)), later=True)
    if pixel is None:
        return None
    pixel = body.widen(body.load(call.points.buffer, pixel, result.dtype, exact=True))
    stores = []
    for ks in product(*map(range, call.window)):
        spans = zip(sides, ks, call.stride, call.dilation, call.padding)
        places = [at[s] * step + (k * apart - p) for s, k, step, apart, p in spans]
        bounds = zip(places, call.points.shape[2:], call.image.shape[2:])
        guard = all_of(body, [c for b in bounds for c in edges(body, *b)])
        at_tap = on_buffer(call.image, buffers, (at["n"], at["g"], *places), later=True)
        if at_tap is None:
            return None
        tap = body.load(call.image.buffer, at_tap, result.dtype, guard, 0.0, exact=True)
        total = body.op("mul", body.widen(tap), pixel)
        total = body.reduce("sum", (total,), summed) if summed else total
        place = (channel, constant(0), *map(constant, ks))
        stores.append(Store(result.name, place, body.cast(total, result.dtype)))
    axes = tuple(Axis(a, size) for a, size in extents.items() if size != 1)
    return Comp(f"{node.name}_weight", axes, body.body, tuple(stores), node.origins)

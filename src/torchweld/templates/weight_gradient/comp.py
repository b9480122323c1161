"""Calls of aten.convolution_backward that make a weight's gradient, as Comps (schedule.py has the
form)."""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Store
from torchweld.templates.conv.comp import inside, on_buffer
from torchweld.templates.conv.cpu.schedule import place
from torchweld.templates.conv.gradient import WEIGHT, weight_gradient


def weight_gradient_comp(node: Extern, buffers: Mapping[str, Buffer]) -> Comp | None:
    """The Comp of a call that makes nothing else; None of another node, and where a window on a
    buffer goes over several of its dimensions at once."""
    call = weight_gradient(node)
    if call is None or sum(name is not None for name in node.outputs) > 1:
        return None
    result, sides = buffers[node.outputs[WEIGHT]], len(call.window)
    outs, taps = "dhw"[-sides:], "kij"[-sides:]
    extents = dict(zip("goc", (call.groups, call.results, call.channels)))
    extents |= dict(zip(taps, call.window)) | {"n": call.points.shape[0]}
    extents |= dict(zip(outs, call.points.shape[2:]))
    n, g, o, c = (constant(0) if extents[a] == 1 else axis(a) for a in "ngoc")
    row = g * call.results + o
    b = BodyBuilder()
    spans = zip(outs, call.stride, taps, call.dilation, call.padding)
    places = [place(*span) for span in spans]
    at = (n, row, *map(axis, outs)), (n, g * call.channels + c, *places)
    views = call.points, call.image
    windows = [on_buffer(v, buffers, p, later=True) for v, p in zip(views, at)]
    if None in windows:
        return None
    guard = inside(b, places, call.image.shape[2:])
    points = b.load(call.points.buffer, windows[0], result.dtype, exact=True)
    pixel = b.load(call.image.buffer, windows[1], result.dtype, guard, 0.0, exact=True)
    summed = "".join(n.axes) + outs
    value = b.reduce("sum", (b.op("mul", b.widen(points), b.widen(pixel)),), tuple(summed))
    names = "".join(a for e in (g, o, c) for a in e.axes) + taps + summed
    axes = tuple(Axis(name, extents[name]) for name in names)
    store = Store(result.name, (row, c, *map(axis, taps)), b.cast(value, result.dtype))
    return Comp(node.name, axes, b.body, (store,), node.origins)

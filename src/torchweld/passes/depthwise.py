"""Depthwise convolutions on a GPU as pointwise work: a few elements of one channel, multiplied and
added.

    before: y = convolution(x[n, c, h, w], v[c*m, 1, 3, 3], groups c)
    after:  y[n, c*m, h, w] = x[n, c, h-1, w-1] * v[c*m, 0, 0, 0] + ... eight more

There is nothing for tensor cores in them: each element of a window is multiplied by one number. As
pointwise work they are fused with what is before and after them. cuDNN has a slow kernel for some
of those whose channels lie innermost: of FastViT-T12 (16 images, bf16, H100) it took 7.1 of 8.4 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, reduce
from itertools import product

from torchweld.core.options import Options
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Node, Store, Value
from torchweld.templates.conv.comp import Call, call_of, on_buffer
from torchweld.templates.conv.depthwise import is_pointwise

_SIDES = "dhw"


def depthwise_written_out(graph: Graph, options: Options) -> Graph:
    """`graph` with such convolutions as Comps."""
    if not options.fuse or options.numerics != "contract":
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        call, made = call_of(node), None
        if is_pointwise(call, graph.buffers):
            made = _written_out(node, call, graph.buffers)
        nodes.append(made or node)
    return replace(graph, nodes=tuple(nodes))


def _written_out(node: Extern, call: Call, buffers: dict[str, Buffer]) -> Comp | None:
    """The Comp; None where a window on a buffer goes over several of its dimensions at once."""
    result, sides = buffers[node.outputs[0]], _SIDES[-len(call.window) :]
    extents = {"n": result.shape[0], "g": call.groups, "o": call.results}
    extents |= dict(zip(sides, result.shape[2:]))
    at = {a: constant(0) if size == 1 else axis(a) for a, size in extents.items()}
    channel, body = at["g"] * call.results + at["o"], BodyBuilder()
    total = None

    @cache  # when it is first needed: values that wait fill registers
    def inside(d: int, k: int) -> tuple[Affine, Value | None]:
        return _inside(body, call, d, k, at[sides[d]])

    for tap in product(*map(range, call.window)):
        places, guards = zip(*(inside(d, k) for d, k in enumerate(tap)))
        guard = _all(body, [g for g in guards if g is not None])
        image = on_buffer(call.image, buffers, (at["n"], at["g"], *places), later=True)
        one = on_buffer(call.weight, buffers, (channel, constant(0), *map(constant, tap)))
        if image is None or one is None:
            return None
        pixel = body.load(call.image.buffer, image, result.dtype, guard, 0.0, exact=True)
        weight = body.load(call.weight.buffer, one, result.dtype, exact=True)
        term = body.op("mul", body.widen(pixel), body.widen(weight))
        total = term if total is None else body.op("add", total, term)
    if call.bias is not None:
        bias = body.load(call.bias.buffer, (channel,), result.dtype)
        total = body.op("add", total, body.widen(bias))
    axes = tuple(Axis(a, size) for a, size in extents.items() if size != 1)
    store = Store(result.name, (at["n"], channel, *(at[s] for s in sides)),
                  body.cast(total, result.dtype))  # fmt: skip
    return Comp(node.name, axes, body.body, (store,), node.origins)


def _all(body: BodyBuilder, conditions: Sequence[Value]) -> Value | None:
    return reduce(lambda a, b: body.op("bit_and", a, b), conditions) if conditions else None


def _inside(
    body: BodyBuilder, call: Call, d: int, k: int, out: Affine
) -> tuple[Affine, Value | None]:
    """Where in the image the k-th element of a window along side `d` is, and whether that is
    inside (None: always)."""
    size, step, padding = call.image.shape[2 + d], call.stride[d], call.padding[d]
    reach = call.dilation[d] * (call.window[d] - 1)
    last = (size + 2 * padding - reach - 1) // step * step
    first = k * call.dilation[d] - padding
    place, conditions = out * step + first, []
    if first < 0:
        conditions.append(body.op("ge", body.index(place), body.index(constant(0))))
    if last + first >= size:
        conditions.append(body.op("lt", body.index(place), body.index(constant(size))))
    return place, _all(body, conditions)

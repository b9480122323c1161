"""Convolutions in narrow groups as ones in fewer, wider groups, for tensor cores.

    before: convolution x[n, 128, h, w], w[128, 4, 3, 3], 32 groups
    after:  v[128, 64, 3, 3] = w where a channel is of its result's group, else 0
            convolution x, v, 2 groups

or with zeros behind the channels of each group:

    before: convolution x[n, 120, h, w], w[180, 40, 3, 3], 3 groups
    after:  t[n, 192, h, w] = x, and 24 zeros behind each 40 channels
            v[180, 64, 3, 3] = w, and zeros
            convolution t, v, 3 groups

A step of a product is 32 channels or 64 deep, a tile 64 columns wide (templates/gemm/hopper). What
is multiplied by zero costs nothing where memory is the limit: all of it is in the tile anyhow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.contraction import TENSOR_DTYPES
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, IndexMap, Node, Store, Value, View
from torchweld.layout.channels import innermost
from torchweld.passes.few_channels import is_faster
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, call_of, lies_by_pixel, on_buffer
from torchweld.templates.conv.own import joined_groups, own_s
from torchweld.templates.gemm.price import Prices

_LINE = 128  # bytes


@dataclass(frozen=True, slots=True)
class _Way:
    """Another convolution in place of one, and what it reads instead: copies of the weight, maybe
    one of the image."""

    call: Extern
    weights: tuple[Comp, ...]
    image: tuple[Comp, ...]
    buffers: tuple[Buffer, ...]

    def known(self, graph: Graph) -> Graph:
        return replace(graph, buffers={**graph.buffers, **{b.name: b for b in self.buffers}})

    def seconds(self, graph: Graph, table: Target) -> float:
        """Of our kernel, after the copy of the image. All ways want one of the weight, for its
        channels to lie innermost."""
        return own_s([*self.image, self.call], self.known(graph), table)


def wide_groups(graph: Graph, table: Target, options: Options) -> Graph:
    """`graph` with such convolutions on a Hopper GPU, where they are predicted to be faster."""
    if not options.fuse or options.numerics != "contract" or table.capability[:1] != (9,):
        return graph
    found: dict[object, str | None] = {}
    nodes, after = list[Node](), graph
    for node in graph.nodes:
        call = call_of(node)
        ways = _ways(node, call, graph) if _is_narrow(call, graph) else {}
        alike = call and (replace(call.image, buffer=""), call.weight.shape, node.args[3:])
        if ways and alike not in found:
            found[alike] = _best(node, ways, graph, table)
        way = ways.get(found[alike]) if ways else None
        if way:
            nodes += [*way.image, *way.weights, way.call]
            after = way.known(after)
        else:
            nodes.append(node)
    return replace(after, nodes=tuple(nodes))


def _ways(node: Extern, call: Call, graph: Graph) -> dict[str, _Way]:
    count = joined_groups(call)
    joined = _widened(node, call, graph, count) if count > 1 else None
    made = {"joined": joined, "in lines": _in_lines(_Way(node, (), (), ()), graph),
            "joined, in lines": joined and _in_lines(joined, graph)}  # fmt: skip
    return {name: way for name, way in made.items() if way is not None}


def _best(node: Extern, ways: dict[str, _Way], graph: Graph, table: Target) -> str | None:
    """None where none is faster than the library's call, and than our own as it is."""
    seconds = {name: way.seconds(graph, table) for name, way in ways.items()}
    name = min(seconds, key=seconds.__getitem__)
    others = Prices(graph, table).call_s(node), own_s([node], graph, table)
    return name if all(is_faster(seconds[name], s) for s in others) else None


def _is_narrow(call: Call | None, graph: Graph) -> bool:
    """Whether it has groups of a few channels each. Those of one are pointwise work; of windows of
    one pixel, products in a batch."""
    if call is None or call.transposed or call.groups == 1 or call.channels == 1:
        return False
    image, weight = (graph.buffers[v.buffer] for v in (call.image, call.weight))
    known = all(isinstance(n, int) for n in call.image.shape)
    alike = image.dtype == weight.dtype and image.dtype in TENSOR_DTYPES
    return known and alike and prod(call.window) > 1


def _widened(node: Extern, call: Call, graph: Graph, count: int) -> _Way | None:
    """With `count` groups as one: a channel that is none of its result's group is zero."""
    results, channels, window = call.results, call.channels, call.window
    taps = {f"s{d}": size for d, size in enumerate(window)}
    sizes = {"g": call.groups // count, "to": count, "o": results, "of": count, "c": channels}
    g, to, o, of, c, *places = map(axis, (*sizes, *taps))
    body, result = BodyBuilder(), (g * count + to) * results + o
    weight = _copy(
        node, "weight_wide", call.weight, graph, sizes | taps, (result, c, *places),
        (result, of * channels + c, *places), (call.weight.shape[0], count * channels, *window),
        body, body.op("eq", body.index(to), body.index(of)),
    )  # fmt: skip
    if weight is None:
        return None
    copy, wide = weight
    args = (*node.args[:1], wide.view, *node.args[2:8], call.groups // count)
    return _Way(replace(node, args=args), (copy,), (), (wide,))


def _in_lines(way: _Way, graph: Graph) -> _Way | None:
    """With zeros behind the channels of each group, so that they begin at a multiple of 128 bytes
    in each pixel: TMA copies such lines in half to a fifth of the time."""
    node, call, graph = way.call, call_of(way.call), way.known(graph)
    line = _LINE // graph.buffers[call.image.buffer].dtype.bytes
    width = -(-call.channels // line) * line
    if width == call.channels or not lies_by_pixel(call.image):
        return None
    batch, _, *sides = call.image.shape
    results = call.weight.shape[0]
    n, g, o, c = (axis(a) for a in "ngoc")
    places = [axis(f"s{d}") for d in range(len(sides))]

    def copied(of: str, view: View, axes: dict[str, int], inner, place, to, shape):
        body = BodyBuilder()
        given = body.op("lt", body.index(c), body.const(call.channels, dtypes.i64))
        every = axes | {"c": width} | {f"s{d}": size for d, size in enumerate(inner)}
        return _copy(node, f"{of}_lines", view, graph, every, (*place, *places), (*to, *places),
                     (*shape, *inner), body, given)  # fmt: skip

    image = copied("image", call.image, {"n": batch, "g": call.groups}, sides,
                   (n, g * call.channels + c), (n, g * width + c),
                   (batch, call.groups * width))  # fmt: skip
    weight = copied("weight", call.weight, {"o": results}, call.window, (o, c), (o, c),
                    (results, width))  # fmt: skip
    if image is None or weight is None:
        return None
    made = replace(node, args=(image[1].view, weight[1].view, *node.args[2:]))
    buffers = (*way.buffers, image[1], weight[1])
    return _Way(made, (*way.weights, weight[0]), (image[0],), buffers)


def _copy(
    node: Extern, of: str, view: View, graph: Graph, axes: Mapping[str, int], place: IndexMap,
    to: IndexMap, shape: tuple[int, ...], body: BodyBuilder, guard: Value,
) -> tuple[Comp, Buffer] | None:
    """What is at `place` of a window, at `to` of a buffer with its channels innermost; zero where
    `guard`, a value of `body`, is false."""
    source, name = graph.buffers[view.buffer], f"{node.name}_{of}"
    at = on_buffer(view, graph.buffers, place)
    if at is None:
        return None
    made = innermost(replace(source, name=name, shape=shape, frozen=False))
    store = Store(name, to, body.load(source.name, at, source.dtype, guard, 0.0))
    every = tuple(Axis(a, e) for a, e in axes.items())
    return Comp(name, every, body.body, (store,), node.origins), made

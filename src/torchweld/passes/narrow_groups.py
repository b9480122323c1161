"""Convolutions in narrow groups as ones in fewer, wider groups, for tensor cores.

    before: convolution x[n, 128, h, w], w[128, 4, 3, 3], 32 groups
    after:  v[128, 64, 3, 3] = w where a channel is of its result's group, else 0
            convolution x, v, 2 groups

A step of a product is 32 channels or 64 deep, a tile 64 columns wide (templates/gemm/hopper). What
is multiplied by zero costs nothing where memory is the limit: all of it is in the tile anyhow.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torchweld.core.options import Options
from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.contraction import TENSOR_DTYPES
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Node, Store
from torchweld.layout.channels import innermost
from torchweld.passes.few_channels import is_faster
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, call_of, on_buffer
from torchweld.templates.conv.own import joined_groups, own_s
from torchweld.templates.gemm.price import Prices


def wide_groups(graph: Graph, table: Target, options: Options) -> Graph:
    """`graph` with such convolutions on a Hopper GPU, where they are predicted to be faster."""
    if not options.fuse or options.numerics != "contract" or table.capability[:1] != (9,):
        return graph
    nodes: list[Node] = []
    buffers, pays = dict(graph.buffers), {}
    for node in graph.nodes:
        call = call_of(node)
        count = joined_groups(call) if _is_narrow(call, graph) else 1
        made = _widened(node, call, graph, count) if count > 1 else None
        if made is None:
            nodes.append(node)
            continue
        copy, weight, wide = made
        seen = replace(graph, buffers={**graph.buffers, weight.name: weight})
        alike = replace(call.image, buffer=""), call.weight.shape, node.args[3:]
        if alike not in pays:
            pays[alike] = _pays(node, wide, seen, table)
        if pays[alike]:
            nodes, buffers = [*nodes, copy, wide], {**buffers, weight.name: weight}
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _is_narrow(call: Call | None, graph: Graph) -> bool:
    """Whether it has groups of a few channels each. Those of one are pointwise work; of windows of
    one pixel, products in a batch."""
    if call is None or call.transposed or call.groups == 1 or call.channels == 1:
        return False
    image, weight = (graph.buffers[v.buffer] for v in (call.image, call.weight))
    known = all(isinstance(n, int) for n in call.image.shape)
    alike = image.dtype == weight.dtype and image.dtype in TENSOR_DTYPES
    return known and alike and prod(call.window) > 1


def _pays(node: Extern, wide: Extern, graph: Graph, table: Target) -> bool:
    """Whether wider groups are faster than the library's call, and than our own as they are. All
    of them want a copy of the weight, for its channels to lie innermost."""
    seconds = own_s([wide], graph, table)
    if not is_faster(seconds, Prices(graph, table).call_s(node)):
        return False
    return is_faster(seconds, own_s([node], graph, table))


def _widened(
    node: Extern, call: Call, graph: Graph, count: int
) -> tuple[Comp, Buffer, Extern] | None:
    """The copy of the weight, what it writes, and the convolution in groups of `count`."""
    source = graph.buffers[call.weight.buffer]
    results, channels, window = call.results, call.channels, call.window
    shape = call.weight.shape[0], count * channels, *window
    weight = innermost(replace(source, name=f"{node.name}_weight_wide", shape=shape, frozen=False))
    sides = [f"s{d}" for d in range(len(window))]
    sizes = call.groups // count, count, results, count, channels, *window
    extents = dict(zip(("g", "to", "o", "of", "c", *sides), sizes))
    g, to, o, of, c, *taps = (axis(a) for a in extents)
    body, result = BodyBuilder(), (g * count + to) * results + o
    place = on_buffer(call.weight, graph.buffers, (result, c, *taps))
    if place is None:
        return None
    same = body.op("eq", body.index(to), body.index(of))
    value = body.load(source.name, place, source.dtype, same, 0.0)
    store = Store(weight.name, (result, of * channels + c, *taps), value)
    axes = tuple(Axis(a, e) for a, e in extents.items())
    copy = Comp(f"{node.name}_weight_wide", axes, body.body, (store,), node.origins)
    args = (*node.args[:1], weight.view, *node.args[2:8], call.groups // count)
    return copy, weight, replace(node, args=args)

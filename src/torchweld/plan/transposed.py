"""Transposed convolutions on a Hopper GPU as convolutions of our own, with the kernel that reads
their results.

    extern y = transposed convolution x, w, steps of 2;  comp z [n, o, h, w] { relu(y + b[o]) }
 -> comp v = w, turned;  extern t = convolution x, v           (turned.py: t[n, (r, s, o), a, b])
    comp z [n, r, s, o, a, b] { z[n, o, 2*a+r-1, 2*b+s-1] = relu(t + b[o]) where that is inside }

The reader goes over the convolution's results as they lie, so that `join products` may take it into
the convolution's kernel. A library's kernels of this kind are those of a gradient, and a kernel
reads what they write once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from torchweld.core.options import Options
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder, copy_comp
from torchweld.ir.contraction import TENSOR_DTYPES
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Extern,
    Graph,
    Load,
    Node,
    Reduce,
    Scan,
    Value,
    readers,
    value_axes,
)
from torchweld.ir.simplify import simplify
from torchweld.ir.size import Size
from torchweld.ir.substitute import move_store, substitute_axes, with_operands
from torchweld.plan.decisions import Plan
from torchweld.plan.merge import Rules
from torchweld.plan.products.columns import joined
from torchweld.plan.products.kernel import MARGIN, Judge, Kernel
from torchweld.plan.turned import Turned, turned
from torchweld.rewrite.flow import mutated_buffers, output_buffers
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, call_of, convolution_comp
from torchweld.templates.gemm.price import Prices
from torchweld.templates.template import Choose


def transposed_turned(plan: Plan, table: Target, options: Options, choose: Choose) -> Plan:
    """`plan` with such convolutions where they are predicted to be faster."""
    if options.numerics != "contract" or not options.fuse or table.capability[:1] != (9,):
        return plan
    graph = plan.graph
    for node in graph.nodes:
        call = call_of(node)
        if call is not None and call.transposed and _may_be(call, graph):
            graph = _changed(node, call, graph, table, choose)
    return replace(plan, graph=graph)


def _may_be(call: Call, graph: Graph) -> bool:
    kinds = {graph.buffers[v.buffer].dtype for v in (call.image, call.weight)}
    stays = mutated_buffers(graph).isdisjoint((call.image.buffer, call.weight.buffer))
    return stays and len(kinds) == 1 and kinds <= TENSOR_DTYPES


def _changed(
    node: Extern, call: Call, graph: Graph, table: Target, choose: Choose
) -> Graph:
    """`graph` with the convolution in the place of a call, if that is faster."""
    made = turned(node, call, graph.buffers)
    if made is None:
        return graph
    buffers = {**graph.buffers, made.weight.name: made.weight, made.made.name: made.made}
    new = replace(graph, buffers=buffers)
    before, rest = _with_reader(node, made, graph)
    prices = Prices(new, table)
    before_s = prices.call_s(node) + sum(map(prices.comp_s, before[1:]))
    shuffles = made.phases > 1 and len(before) == 1
    best = _best(made, rest, prices, Judge(new, table, choose), shuffles)
    if best is None or best[0] >= (1 - MARGIN) * before_s:
        return graph
    nodes: list[Node] = []
    for one in graph.nodes:
        after = [made.copy, best[1], *rest]
        nodes += after if one is before[-1] else [] if one in before else [one]
    return replace(new, nodes=tuple(nodes))


def _with_reader(node: Extern, made: Turned, graph: Graph) -> tuple[list[Node], list[Comp]]:
    """The call, with the kernel that reads its results if that may read those of a convolution,
    and what follows the convolution."""
    (result,), reader = node.writes, _reader(node, graph)
    if made.phases == 1:
        return ([node], []) if reader is None else ([node, reader], [reader])
    after = reader and over_phases(reader, result, made, graph.buffers)
    if after is not None:
        return [node, reader], [after]
    (same,) = (graph.buffers[name] for name in node.writes)
    copy = copy_comp(f"{node.name}_shuffle", same, same, node.origins)  # it reads another at last
    after = over_phases(copy, result, made, graph.buffers)
    assert after is not None
    return [node], [after]


def _best(
    made: Turned, rest: list[Comp], prices: Prices, judge: Judge, shuffles: bool
) -> tuple[float, Node] | None:
    """Seconds of all by kernels of our own, and the convolution: a call, which will be joined with
    its reader, or a kernel that stays apart. `shuffles`: what follows is a copy of the results,
    which is for the convolution's kernel to make, not for one of its own."""
    comp = convolution_comp(made.convolution, prices.graph.buffers)
    alone = comp and judge.kernel(comp)
    if not isinstance(alone, Kernel) or alone.schedule.form != "gluon":
        return None
    copy_s, rest_s = prices.comp_s(made.copy), sum(map(prices.comp_s, rest))
    library_s = prices.call_s(made.convolution)
    shapes = {name: b.shape for name, b in prices.graph.buffers.items()}
    merged = joined(comp, rest[0], Rules(frozenset(), shapes)) if rest else None
    together = judge.kernel(merged) if isinstance(merged, Comp) else None
    apart_s = alone.seconds + rest_s
    least_s = (1 - MARGIN) * (library_s + rest_s)
    together_s = together.seconds if isinstance(together, Kernel) else inf
    if together_s < (least_s if shuffles else min(least_s, apart_s)):
        return copy_s + together_s, made.convolution
    if shuffles:
        return None
    return copy_s + apart_s, comp if alone.seconds < library_s else made.convolution


def _reader(node: Extern, graph: Graph) -> Comp | None:
    """The pointwise kernel that alone reads what a call makes."""
    (made,) = node.writes
    found = readers(graph.nodes).get(made, [])
    if len(found) != 1 or not isinstance(found[0], Comp) or made in output_buffers(graph):
        return None
    plain = not any(isinstance(i, (Reduce, Scan)) for i in found[0].body)
    plain &= not any(s.combine or s.init is not None for s in found[0].stores)
    return found[0] if plain else None


def over_phases(
    comp: Comp, result: str, made: Turned, buffers: Mapping[str, Buffer]
) -> Comp | None:
    """`comp`, which reads each element of `result` at a point of its own, over places and phases;
    None where it reads more or less of it, or otherwise."""
    shape = buffers[result].shape
    indices = {i.index for i in comp.body if isinstance(i, Load) and i.buffer == result}
    names = _names(indices, shape)
    if names is None or _sizes(names, shape) != {a.name: a.extent for a in comp.axes}:
        return None
    new = {"n": shape[0], "g": made.groups, **{f"r{d}": s.phases for d, s in enumerate(made.sides)},
           "o": made.results, **{f"a{d}": s.places for d, s in enumerate(made.sides)}}  # fmt: skip
    at = {a: constant(0) if size == 1 else axis(f"p_{a}") for a, size in new.items()}
    channel, phase = at["g"] * made.results + at["o"], at["g"]
    places = [at[f"a{d}"] for d in range(len(made.sides))]
    for d, side in enumerate(made.sides):
        phase = phase * side.phases + at[f"r{d}"]
    results = [s.result(p, at[f"r{d}"]) for d, (s, p) in enumerate(zip(made.sides, places))]
    images = dict(zip(names, (at["n"], channel, *results)))
    images.pop(None, None)
    body = BodyBuilder()
    inside = _inside(body, results, made)
    source = (at["n"], phase * made.results + at["o"], *places)
    along = frozenset().union(*(place.axes for place in results))
    values = _moved(comp, body, images, (inside, along), (result, made.made.name, source))
    stores = tuple(move_store(s, values.__getitem__, images) for s in comp.stores)
    stores = tuple(replace(s, guard=body.both(s.guard, inside)) for s in stores)
    axes = tuple(Axis(f"p_{a}", size) for a, size in new.items() if size != 1)
    return simplify(replace(comp, axes=axes, body=body.body, stores=stores))


def _names(indices: set, shape: tuple) -> list[str | None] | None:
    """The axis of each dimension in which something is read as a whole; None for those of one
    element."""
    if len(indices) != 1:
        return None
    (index,) = indices
    found = [e.as_axis if isinstance(e, Affine) else None for e in index]
    ones = [n == 1 and e == constant(0) for e, n in zip(index, shape)]
    named = [n for n in found if n]
    whole = all(n or one for n, one in zip(found, ones)) and len(set(named)) == len(named)
    return found if whole else None


def _sizes(names: list[str | None], shape: tuple) -> dict[str, Size]:
    return {name: size for name, size in zip(names, shape) if name}


def _inside(body: BodyBuilder, results: list[Affine], made: Turned) -> Value | None:
    """Whether a result is one of `y`; None: always."""
    inside = None
    for place, side in zip(results, made.sides):
        at = body.index(place)
        if side.cut:
            inside = body.both(inside, body.op("ge", at, body.index(constant(0))))
        if side.last >= side.size:
            inside = body.both(inside, body.op("lt", at, body.index(constant(side.size))))
    return inside


def _moved(
    comp: Comp, body: BodyBuilder, images: Mapping[str, Affine],
    inside: tuple[Value | None, frozenset[str]], source: tuple[str, str, tuple[Affine, ...]],
) -> list[Value]:  # fmt: skip
    """The values of `comp` at other points: those that read `source[0]` read `source[1]` at a place
    that always is there, others that vary along the axes of `inside` nothing outside."""
    values: list[Value] = []
    guard, along = inside
    sides = {name for name, image in images.items() if image.axes & along}
    for instr, axes in zip(comp.body, value_axes(comp.body)):
        made = with_operands(substitute_axes(instr, images), values.__getitem__)
        if isinstance(made, Load) and made.buffer == source[0]:
            made = replace(made, buffer=source[1], index=source[2])
        elif isinstance(made, Load) and axes & sides:  # at a computed place, too
            made = replace(made, guard=body.both(made.guard, guard))
        values.append(body.emit(made))
    return values

"""Convolutions of float32 images that cuDNN makes without tensor cores, as products of our own:
each factor is the sum of parts that tensor cores take (codegen/triton/wide.py); nothing is lost.

    before: convolution x[n, 8, 256, 256], w[64, 8, 3, 3], padding (1, 1)
    after:  t[n, 258, 258, 8] = x with its channels innermost, zeros around it
            v[64, 3, 3, 8] = w likewise
            y[n, o, h, w] = sum over i, j, c of t[n, h+i, w+j, c] * v[o, i, j, c]

Channels are padded to whole vectors of 16 bytes. A transposed convolution in steps of one is one of
the image with zeros around it, by the window turned round. What cuDNN makes by TF32 stays its call:
that takes a third of the instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import inf, prod

from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.access import addressed
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Extern,
    Graph,
    IndexMap,
    Node,
    Store,
    Value,
    View,
)
from torchweld.ir.views import dense_like
from torchweld.layout.precision import is_exact
from torchweld.plan.decisions import Plan
from torchweld.plan.epilogues import Readers, named
from torchweld.plan.products.kernel import MARGIN, Judge, Kernel
from torchweld.plan.products.told import Taken, decisions
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, call_of, convolution_comp
from torchweld.templates.gemm.price import Prices
from torchweld.templates.pointwise_reduce.gpu.branches import of_each
from torchweld.templates.template import Choose

_VECTOR = 4  # elements of 16 bytes
_CAPABILITY = (8, 0)  # the first with TF32
# Of a thread, in what follows a product (gpu/branches.py). H200, 8 to 64 channels of 128 images of
# 256 x 256, then mish: 3.9 ms with 128, 1.9 and 1.2 apart. 3 to 16 channels of volumes, then tanh
# and sigmoid: 1.5 ms with 32.
_MOST_BRANCHES = 48


def exact_windows(plan: Plan, table: Target, options: Options, choose: Choose) -> Plan:
    """`plan` with such products where they are predicted to be faster than the library's calls,
    each in one kernel with what alone reads its result."""
    if not options.fuse or options.numerics != "contract" or table.capability < _CAPABILITY:
        return plan
    graph, made = plan.graph, {}
    for node in graph.nodes:
        found = _written_out(node, call_of(node), graph) if _may_be(node, graph) else None
        if found is not None and _is_taken(node, found, graph, table, choose):
            made[node.name] = found
    return _with_readers(plan, made, table, choose) if made else plan


@dataclass(frozen=True, slots=True)
class _Made:
    """`buffers`: what copies write."""

    copies: tuple[Comp, Comp]
    product: Comp
    buffers: Mapping[str, Buffer]


def _may_be(node: Node, graph: Graph) -> bool:
    call = call_of(node)
    if call is None or call.groups != 1 or prod(call.window) == 1:
        return False
    views = [v for v in (call.image, call.weight, call.bias) if v is not None]
    known = all(isinstance(n, int) and n > 0 for n in (*call.image.shape, *call.weight.shape))
    if not known or not all(graph.buffers[v.buffer].dtype == dtypes.f32 for v in views):
        return False
    turns = all(n == 1 for n in call.stride) and min(_around(call)) >= 0
    plain = all(v == graph.buffers[v.buffer].view for v in views)
    return plain and (turns or not call.transposed)


def _is_taken(node: Extern, made: _Made, graph: Graph, table: Target, choose: Choose) -> bool:
    """Prices first: to ask costs a call."""
    after = replace(graph, buffers={**graph.buffers, **made.buffers})
    prices, judge = Prices(after, table), Judge(after, table, choose)
    own_s = _product_s(made.product, judge) + sum(map(prices.comp_s, made.copies))
    return own_s < (1 - MARGIN) * prices.exact_s(node) and is_exact(node, graph)


def _product_s(comp: Comp, judge: Judge) -> float:
    """Infinite where no template makes it."""
    kernel = judge.kernel(comp)
    return kernel.seconds if isinstance(kernel, Kernel) else inf


def _with_readers(
    plan: Plan, made: Mapping[str, _Made], table: Target, choose: Choose
) -> Plan:
    nodes: list[Node] = []
    buffers = dict(plan.graph.buffers)
    for node in plan.graph.nodes:
        found = made.get(node.name)
        nodes += [node] if found is None else [*found.copies, found.product]
        buffers |= {} if found is None else found.buffers
    graph = replace(plan.graph, nodes=tuple(nodes), buffers=buffers)

    judge, prices = Judge(graph, table, choose), Prices(graph, table)
    readers, taken = Readers(graph), []

    def may_join(fused: Comp, _: Graph) -> bool:
        kernel = judge.kernel(fused)
        return isinstance(kernel, Kernel) and _branches(fused, kernel, graph) <= _MOST_BRANCHES

    for found in reversed(made.values()):
        reader = readers.only(found.product)
        fused = reader and readers.fused(found.product, reader, may_join)
        if not isinstance(fused, Comp):
            continue
        before_s = _product_s(found.product, judge) + prices.comp_s(reader)
        after_s = _product_s(fused, judge)
        if after_s < before_s:
            parts = (found.product.name, reader.name)
            taken.append(Taken(fused, None, parts, before_s, after_s))
            readers.join(found.product, reader, fused)
    graph, taken = named(replace(graph, nodes=readers.nodes()), taken)
    before = Prices(replace(plan.graph, buffers=buffers), table)
    return Plan(graph, decisions(plan, taken, {}, before))


def _branches(fused: Comp, kernel: Kernel, graph: Graph) -> int:
    """Of what follows the product, at the points that a thread has."""
    s, accesses = kernel.schedule, addressed(fused, graph.buffers, graph.hints)
    return of_each(accesses) * s.block_m * s.block_n // (32 * s.num_warps)


def _around(call: Call) -> tuple[int, ...]:
    """Zeros before and behind each side of the image."""
    if not call.transposed:
        return call.padding
    spans = zip(call.window, call.dilation, call.padding)
    return tuple((n - 1) * step - less for n, step, less in spans)


def _written_out(node: Extern, call: Call, graph: Graph) -> _Made | None:
    """None where the result is laid out otherwise than by whole dimensions."""
    image, weight = (graph.buffers[v.buffer] for v in (call.image, call.weight))
    channels = -(-call.channels // _VECTOR) * _VECTOR
    result = graph.buffers[node.outputs[0]]
    reach = zip(result.shape[2:], call.stride, call.window, call.dilation)
    sides = tuple((n - 1) * step + (k - 1) * d + 1 for n, step, k, d in reach)
    t = dense_like(image, f"{node.name}_image", (image.shape[0], *sides, channels))
    v = dense_like(weight, f"{node.name}_window", (call.results, *call.window, channels))
    copies = _image_copy(node, image, t, _around(call)), _window_copy(node, call, weight, v)
    zero = (0,) * len(sides)
    args = (_channels_first(t), _channels_first(v), call.bias, call.stride, zero, call.dilation,
            False, zero, 1)  # fmt: skip
    comp = convolution_comp(replace(node, args=args), {**graph.buffers, t.name: t, v.name: v})
    return None if comp is None else _Made(copies, comp, {t.name: t, v.name: v})


def _image_copy(node: Extern, image: Buffer, t: Buffer, before: tuple[int, ...]) -> Comp:
    """t[n, .., w, c] = image[n, c, .., w - before], zero where there is no such element."""
    n, *sides, c = map(axis, _names(t))
    at = [s + constant(-b) for s, b in zip(sides, before)]
    ends = [extent - b for extent, b in zip(t.shape[1:-1], before)]
    body = BodyBuilder()
    tests = [body.op("ge", body.index(i), body.index(constant(0))) for i, b in zip(at, before) if b]
    tests += [_below(body, i, n) for i, end, n in zip(at, ends, image.shape[2:]) if end > n]
    return _copy(node, body, image, t, (n, c, *at), tests)


def _window_copy(node: Extern, call: Call, weight: Buffer, v: Buffer) -> Comp:
    """v[o, .., j, c] = weight[o, c, .., j]; of a transposed one weight[c, o, .., last - j]."""
    o, *points, c = map(axis, _names(v))
    if call.transposed:
        points = [p * -1 + constant(n - 1) for p, n in zip(points, call.window)]
    first = (c, o) if call.transposed else (o, c)
    return _copy(node, BodyBuilder(), weight, v, (*first, *points), [])


def _copy(
    node: Extern, body: BodyBuilder, source: Buffer, target: Buffer, at: IndexMap,
    tests: list[Value],
) -> Comp:  # fmt: skip
    """`tests`: of the places that are in the source; channels beyond its own are not."""
    names = _names(target)
    channel = next(i for i in at if i.axes == {"c"})
    extent = source.shape[at.index(channel)]
    if target.shape[-1] > extent:
        tests = [*tests, _below(body, channel, extent)]
    guard = reduce(partial(body.op, "bit_and"), tests) if tests else None
    value = body.load(source.name, at, source.dtype, guard, 0.0)
    axes = tuple(Axis(a, e) for a, e in zip(names, target.shape))
    store = Store(target.name, tuple(map(axis, names)), value)
    return Comp(target.name, axes, body.body, (store,), node.origins)


def _below(body: BodyBuilder, index: Affine, extent: int) -> Value:
    return body.op("lt", body.index(index), body.index(constant(extent)))


def _names(buffer: Buffer) -> list[str]:
    return ["n", *(f"s{d}" for d in range(len(buffer.shape) - 2)), "c"]


def _channels_first(buffer: Buffer) -> View:
    """The view of a buffer whose channels are innermost that has them second."""
    view, last = buffer.view, len(buffer.shape) - 1
    order = (0, last, *range(1, last))
    return replace(
        view, shape=tuple(view.shape[d] for d in order),
        strides=tuple(view.strides[d] for d in order),
    )  # fmt: skip

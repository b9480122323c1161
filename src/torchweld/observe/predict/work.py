"""What a kernel has to do, from shapes alone: bytes read and written, and arithmetic.

An ATen call is lowered to the IR, whose Comps know their reads, writes and arithmetic; products of
matrices, convolutions and attention are counted by their formulas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

import torch

from torchweld.core import dtypes
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.nodes import (
    Attr,
    Buffer,
    Comp,
    Extern,
    Graph,
    Op,
    Reduce,
    View,
    value_axes,
    views,
)
from torchweld.ir.size import hint
from torchweld.observe.measure.metas import Meta, distinct_bytes, elements, largest_dtype, metas_in
from torchweld.observe.measure.recorder import Call
from torchweld.observe.predict.flops import gemm_of, like, product_flops
from torchweld.observe.predict.lowered import lowered
from torchweld.runtime.externs import operator as aten_operator
from torchweld.targets.find import target_of
from torchweld.templates.library.odd_rows import ODD_ROWS
from torchweld.templates.pointwise_reduce.price import bytes_of, cost
from torchweld.templates.traffic import node_bytes

GENERATED = "generated"
GENERATED_PRODUCT, GENERATED_CONVOLUTION = f"{GENERATED} product", f"{GENERATED} convolution"
_LINEAR = ("torchweld.linear", "torchweld.packed_linear")  # x [m, k], weight [n, k], ...
_ONEDNN = "mkldnn::_linear_pointwise"
_LARGE_BYTES = 32 << 20  # glibc has the system map larger ones anew each time
_known: dict[str, Work] = {}


@dataclass(frozen=True)
class Work:
    """`operator`: as the profiler calls it, or GENERATED, GENERATED_PRODUCT or
    GENERATED_CONVOLUTION. `product`: the flops are those of matrix products. `comps`: what the
    planner's own model prices, with the sizes of their graph; empty for a library call.
    `fresh_bytes`: of large results in new memory. `gemm`: (batch, rows, columns, depth) of a
    product, or of the one that a convolution is. `like`: the problem whose measured rate it should
    reach, empty for the operator's own. `scattered`: results of ATen that lie in memory otherwise
    than what they are made of; `turned`: and whose neighbours are far apart there."""

    bytes: int
    flops: float
    dtype: str
    operator: str = GENERATED
    product: bool = False
    comps: tuple[tuple[Comp, Graph], ...] = ()
    fresh_bytes: int = 0
    gemm: tuple[int, int, int, int] | None = None
    like: str = ""
    scattered: int = 0
    turned: int = 0


def rate_name(work: Work) -> str:
    """What the rate that it should reach is kept under."""
    return f"{work.like or work.operator} {work.dtype}"


def call_work(call: Call) -> Work:
    """Of one ATen call of eager. Calls alike are worked out once."""
    key = repr((str(call.op), call.args, call.kwargs, call.results))
    if key not in _known:
        new = () if _writes_arguments(call) else map(distinct_bytes, metas_in(call.results))
        _known[key] = replace(_call_work(call), fresh_bytes=_large(new))
    return _known[key]


def node_work(node: Comp | Extern, graph: Graph) -> Work:
    """Of a generated kernel or a library call in a planned graph; symbols as at capture."""
    returned = {v.buffer for v in views(graph.outputs)}
    new = (bytes_of(graph.buffers[b], graph.hints) for b in node.writes if b in returned)
    work = _extern_work(node, graph) if isinstance(node, Extern) else _comp_work(node, graph)
    return replace(work, fresh_bytes=_large(new))


def _comp_work(node: Comp, graph: Graph) -> Work:
    table, buffers = target_of("cpu"), graph.buffers
    priced = cost(node, buffers, graph.hints, table)
    touched = [buffer_meta(buffers[name], graph) for name in (*node.reads, *node.writes)]
    moved, dtype = node_bytes(node, buffers, graph.hints), largest_dtype(touched)
    found = contraction(node, graph)
    if found:
        return replace(found, bytes=moved, dtype=dtype)
    return Work(moved, 2 * priced.fma, dtype, comps=((node, graph),))


def _large(sizes: Iterable[int]) -> int:
    return sum(size for size in sizes if size >= _LARGE_BYTES)


def _writes_arguments(call: Call) -> bool:
    return call.op._schema.is_mutable


def contraction(comp: Comp, graph: Graph) -> Work | None:
    """The sums of products in a Comp whose factors do not vary along the same axes, bytes left out.
    What comes before and after them is little beside them."""
    axes, extents = value_axes(comp.body), {a.name: hint(a.extent, graph.hints) for a in comp.axes}
    total, kind, gemm = 0.0, GENERATED, None
    for instr in comp.body:
        term = comp.body[instr.args[0]] if isinstance(instr, Reduce) else None
        if isinstance(term, Op) and term.name == "mul" and instr.monoid == "sum":
            left, right = (axes[v] for v in term.args)
            if left - right and right - left:
                total += 2.0 * prod(extents[name] for name in left | right)
                kind = GENERATED_CONVOLUTION if instr.axes[1:] else GENERATED_PRODUCT
                depth = frozenset(instr.axes)
                parts = (left & right) - depth, left - right, right - left, depth
                gemm = tuple(prod(extents[name] for name in part) for part in parts)
    return Work(0, total, "", kind, product=True, gemm=gemm) if total else None


def _call_work(call: Call) -> Work:
    moved, dtype = call.bytes_moved, largest_dtype(call.tensors)
    flops = product_flops(call.op, call.args, dict(call.kwargs), call.results)
    if flops is not None:
        return _product_work(
            call.name, metas_in(call.args), metas_in(call.results), moved, flops, dtype)
    graph = lowered(call)
    nodes = [n for n in graph.nodes if getattr(n, "target", "") != CHECK_INDEX] if graph else []
    comps = [n for n in nodes if isinstance(n, Comp)]
    if not comps or len(comps) < len(nodes):
        return Work(moved, elements(metas_in(call.results)), dtype, call.name, like=manner(call))
    parts = [_comp_work(comp, graph) for comp in comps]
    return Work(sum(p.bytes for p in parts), sum(p.flops for p in parts), dtype, call.name,
                comps=tuple((comp, graph) for comp in comps), like=manner(call),
                scattered=_scattered(call), turned=_turned(call))


def manner(call: Call) -> str:
    """aten::gelu tanh, aten::native_batch_norm True: a call with the names and flags that it is
    given, which decide how long it takes."""
    asked = (*call.args, *(value for _, value in call.kwargs))
    return " ".join((call.name, *(str(a) for a in asked if isinstance(a, str) or a is True)))


def _scattered(call: Call) -> int:
    """Of a pointwise call or a concatenation: ATen's kernels for a GPU then take elements one at a
    time."""
    given, made = metas_in(call.args), metas_in(call.results)
    if len(made) != 1 or not given:
        return 0
    layout = made[0].shape, made[0].strides
    apart = any((m.shape, m.strides) != layout for m in given if m.shape)
    known = call.name == "aten::cat" or _pointwise(given, made[0])
    return prod(made[0].shape) if apart and known else 0


def _turned(call: Call) -> int:
    made, *_ = metas_in(call.results) or [None]
    alike = [m for m in metas_in(call.args) if made and m.shape == made.shape and m.strides]
    apart = any(_innermost(m) != _innermost(made) for m in alike)
    return prod(made.shape) if apart else 0


def _innermost(meta: Meta) -> int | None:
    """The dimension along which elements are neighbours."""
    lines = (d for d, n in enumerate(meta.shape) if n > 1 and meta.strides[d] == 1)
    return next(lines, None)


def _pointwise(given: list[Meta], made: Meta) -> bool:
    try:
        return torch.broadcast_shapes(*(m.shape for m in given)) == made.shape
    except RuntimeError:
        return False


def _extern_work(node: Extern, graph: Graph) -> Work:
    read = [_view_meta(v, graph) for v in views(node.args + tuple(v for _, v in node.kwargs))]
    written = [buffer_meta(graph.buffers[name], graph) for name in node.writes]
    moved, dtype = node_bytes(node, graph.buffers, graph.hints), largest_dtype([*read, *written])
    if node.target in _LINEAR:
        (rows, width), (columns, _) = read[0].shape, read[1].shape
        flops, gemm = 2.0 * rows * width * columns, (1, rows, columns, width)
        return Work(moved, flops, dtype, _ONEDNN, product=True, gemm=gemm)
    if node.target == ODD_ROWS:
        (rows, depth), columns = read[0].shape, read[1].shape[1]
        flops, gemm = 2.0 * rows * columns * depth, (1, rows, columns, depth)
        return Work(moved, flops, dtype, "aten::mm", product=True, gemm=gemm)
    args = tuple(_plain(a, graph) for a in node.args)
    kwargs = {name: _plain(value, graph) for name, value in node.kwargs}
    name = "aten::item" if node.target == CHECK_INDEX else "::".join(node.target.split(".")[:2])
    flops = None
    if node.target.startswith("aten."):
        flops = product_flops(aten_operator(node.target), args, kwargs, tuple(written))
    if flops is None:
        return Work(moved, elements(written), dtype, name)
    return _product_work(name, read, written, moved, flops, dtype)


def _product_work(
    operator: str, given: list[Meta], made: list[Meta], moved: int, flops: float, dtype: str
) -> Work:
    gemm, alike = gemm_of(operator, given, made), like(operator, given)
    return Work(moved, flops, dtype, operator, product=True, gemm=gemm, like=alike)


def _plain(arg, graph: Graph):
    if isinstance(arg, View):
        return _view_meta(arg, graph)
    if isinstance(arg, tuple):
        return tuple(_plain(a, graph) for a in arg)
    if isinstance(arg, Attr):
        return None
    return arg if isinstance(arg, (float, bool, str, type(None))) else hint(arg, graph.hints)


def _view_meta(view: View, graph: Graph) -> Meta:
    dtype, hints = graph.buffers[view.buffer].dtype, graph.hints
    shape, strides = (tuple(hint(s, hints) for s in part) for part in (view.shape, view.strides))
    return Meta(shape, strides, dtypes.to_torch(dtype))


def buffer_meta(buffer: Buffer, graph: Graph) -> Meta:
    """A planned buffer as a tensor; symbols as at capture."""
    return _view_meta(buffer.view, graph)



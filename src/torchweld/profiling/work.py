"""What a kernel has to do, from shapes alone: bytes read and written, and arithmetic.

An ATen call is lowered to the IR, whose Comps know their reads, writes and arithmetic; products of
matrices, convolutions and attention are counted by their formulas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from operator import getitem

import torch
from torch.utils.flop_counter import flop_registry

from torchweld.capture.captured import Captured
from torchweld.capture.lower import lower
from torchweld.core import dtypes
from torchweld.core.device import device_table
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.nodes import (
    Attr,
    Buffer,
    Comp,
    Extern,
    Graph,
    Load,
    Op,
    Reduce,
    Store,
    View,
    map_axes,
    operands,
    store_operands,
    value_axes,
    views,
)
from torchweld.ir.size import hint
from torchweld.plan.cost import bytes_of, cost
from torchweld.profiling.recorder import Call, Meta
from torchweld.runtime.externs import operator as aten_operator

GENERATED = "generated"
GENERATED_PRODUCT, GENERATED_CONVOLUTION = f"{GENERATED} product", f"{GENERATED} convolution"
_ATTENTION = re.compile(r"aten\._(scaled_dot_product|flash|efficient)\w*attention\w*")
_LINEAR = ("torchweld.linear", "torchweld.packed_linear")  # x [m, k], weight [n, k], ...


_GEMMS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation")
_ONEDNN = "mkldnn::_linear_pointwise"
_BLOCK = 128  # rows that attention takes together
_LARGE_BYTES = 32 << 20  # glibc has the system map larger ones anew each time
_known: dict[str, Work] = {}


@dataclass(frozen=True)
class Work:
    """`operator`: as the profiler calls it, or GENERATED, GENERATED_PRODUCT or
    GENERATED_CONVOLUTION. `product`: the flops are those of matrix products. `comps`: what the
    planner's own model prices, with the sizes of their graph; empty for a library call.
    `fresh_bytes`: of large results in new memory. `gemm`: (batch, rows, columns, depth) of a
    product, or of the one that a convolution is."""

    bytes: int
    flops: float
    dtype: str
    operator: str = GENERATED
    product: bool = False
    comps: tuple[tuple[Comp, Graph], ...] = ()
    fresh_bytes: int = 0
    gemm: tuple[int, int, int, int] | None = None


def call_work(call: Call) -> Work:
    """Of one ATen call of eager. Calls alike are worked out once."""
    key = repr((str(call.op), call.args, call.kwargs, call.results))
    if key not in _known:
        new = () if _writes_arguments(call) else map(_distinct_bytes, _metas(call.results))
        _known[key] = replace(_call_work(call), fresh_bytes=_large(new))
    return _known[key]


def node_work(node: Comp | Extern, graph: Graph) -> Work:
    """Of a generated kernel or a library call in a planned graph; symbols as at capture."""
    returned = {v.buffer for v in views(graph.outputs)}
    new = (bytes_of(graph.buffers[b], graph.hints) for b in node.writes if b in returned)
    work = _extern_work(node, graph) if isinstance(node, Extern) else _comp_work(node, graph)
    return replace(work, fresh_bytes=_large(new))


def _comp_work(node: Comp, graph: Graph) -> Work:
    table, buffers = device_table("cpu"), graph.buffers
    priced = cost(node, buffers, graph.hints, table)
    touched = [_buffer_meta(buffers[name], graph) for name in (*node.reads, *node.writes)]
    found = contraction(node, graph)
    if found:
        return replace(found, bytes=touched_bytes(node, graph), dtype=_largest(touched))
    return Work(touched_bytes(node, graph), 2 * priced.fma, _largest(touched),
                comps=((node, graph),))


def touched_bytes(comp: Comp, graph: Graph) -> int:
    """Distinct bytes that a Comp reads, plus those that it writes."""
    axes, extents = value_axes(comp.body), {a.name: hint(a.extent, graph.hints) for a in comp.axes}
    found: dict[tuple[type, str], int] = {}
    for access in (*(i for i in comp.body if isinstance(i, Load)), *comp.stores):
        buffer = graph.buffers[access.buffer]
        indirect = operands(access) if isinstance(access, Load) else store_operands(access)
        along = map_axes(access.index).union(*(axes[v] for v in indirect))
        points = prod(extents[name] for name in along) * buffer.dtype.bytes
        key = type(access), access.buffer
        found[key] = min(found.get(key, 0) + points, bytes_of(buffer, graph.hints))
    scattered = [s.buffer for s in comp.stores if s.combine]
    return sum(found.values()) + sum(found[Store, name] for name in scattered)


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
    tensors = [*_metas((call.args, call.kwargs)), *_metas(call.results)]
    moved, dtype = sum(map(_distinct_bytes, tensors)), _largest(tensors)
    flops = product_flops(call.op, call.args, dict(call.kwargs), call.results)
    if flops is not None:
        gemm = gemm_of(call.name, _metas(call.args), _metas(call.results))
        return Work(moved, flops, dtype, call.name, product=True, gemm=gemm)
    graph = lowered(call)
    nodes = [n for n in graph.nodes if getattr(n, "target", "") != CHECK_INDEX] if graph else []
    comps = [n for n in nodes if isinstance(n, Comp)]
    if not comps or len(comps) < len(nodes):
        return Work(moved, _elements(_metas(call.results)), dtype, call.name)
    parts = [_comp_work(comp, graph) for comp in comps]
    return Work(sum(p.bytes for p in parts), sum(p.flops for p in parts), dtype, call.name,
                comps=tuple((comp, graph) for comp in comps))


# -- products --


def product_flops(op, args: tuple, kwargs: dict, results) -> float | None:
    """2 for each multiply-add of a product, a convolution or attention; None for other calls."""
    packet = getattr(op, "overloadpacket", None)
    if _ATTENTION.fullmatch(str(packet)):
        causal = _is_causal(op, args, kwargs)
        return _attention_flops(_metas(args), "backward" in str(packet), causal)
    count = flop_registry.get(packet)
    if count is None:
        return None
    first = results[0] if isinstance(results, tuple) and "backward" not in str(op) else results
    given = _as_tensors((args, kwargs, first))
    try:
        return float(count(*given[0], **given[1], out_val=given[2]))
    except (TypeError, ValueError, RuntimeError, AssertionError, IndexError):
        return None  # arguments that torch's own counter does not know


def gemm_of(operator: str, given: list[Meta], made: list[Meta]) -> tuple | None:
    """(batch, rows, columns, depth) of a product or a convolution by ATen."""
    if operator in _GEMMS:
        left, right = given[-2:]
        return prod(left.shape[:-2]), left.shape[-2], right.shape[-1], left.shape[-1]
    if operator == "aten::convolution":
        weight, result = given[1].shape, made[0].shape
        return 1, result[0] * prod(result[2:]), weight[0], prod(weight[1:])
    return None


def _is_causal(op, args: tuple, kwargs: dict) -> bool:
    """Whether only half of the scores are needed."""
    names = [argument.name for argument in op._schema.arguments]
    return bool((dict(zip(names, args)) | kwargs).get("is_causal"))


def _attention_flops(tensors: list[Meta], backward: bool, causal: bool) -> float:
    """Two products, or the seven of its gradient less two that are saved: softmax is left out.
    `causal`: of the blocks below the diagonal, and on it."""
    query, key, value = tensors[1:4] if backward else tensors[:3]  # its own gradient comes first
    batch, heads, rows, width = query.shape
    one = 2.0 * batch * heads * rows * key.shape[-2]
    one *= min(1.0, (rows + _BLOCK) / (2 * max(rows, 1))) if causal else 1.0
    return one * (width + value.shape[-1]) * (2.5 if backward else 1.0)


def _as_tensors(tree, device: str = "meta"):
    """Metas as tensors, by default without memory."""
    if isinstance(tree, Meta):
        return torch.empty_strided(tree.shape, tree.strides, dtype=tree.dtype, device=device)
    if isinstance(tree, (tuple, list)):
        return tuple(_as_tensors(part, device) for part in tree)
    if isinstance(tree, dict):
        return {name: _as_tensors(value, device) for name, value in tree.items()}
    return tree


# -- library calls of a planned graph --


def _extern_work(node: Extern, graph: Graph) -> Work:
    read = [_view_meta(v, graph) for v in views(node.args + tuple(v for _, v in node.kwargs))]
    written = [_buffer_meta(graph.buffers[name], graph) for name in node.writes]
    moved, dtype = sum(map(_distinct_bytes, (*read, *written))), _largest([*read, *written])
    if node.target in _LINEAR:
        (rows, width), (columns, _) = read[0].shape, read[1].shape
        flops, gemm = 2.0 * rows * width * columns, (1, rows, columns, width)
        return Work(moved, flops, dtype, _ONEDNN, product=True, gemm=gemm)
    args = tuple(_plain(a, graph) for a in node.args)
    kwargs = {name: _plain(value, graph) for name, value in node.kwargs}
    name = "aten::item" if node.target == CHECK_INDEX else "::".join(node.target.split(".")[:2])
    flops = None
    if node.target.startswith("aten."):
        flops = product_flops(aten_operator(node.target), args, kwargs, tuple(written))
    if flops is None:
        return Work(moved, _elements(written), dtype, name)
    return Work(moved, flops, dtype, name, product=True, gemm=gemm_of(name, read, written))


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


def _buffer_meta(buffer: Buffer, graph: Graph) -> Meta:
    return _view_meta(View(buffer.name, buffer.shape, buffer.strides), graph)


# -- one call of eager, lowered --


def lowered(call: Call, device: str = "meta") -> Graph | None:
    """The call as a graph of its own on a device; None if it has no lowering."""
    op = _functional(call.op)
    graph = torch.fx.Graph()
    placeholders: list[torch.fx.Node] = []

    def node(value):
        if isinstance(value, Meta):
            placeholders.append(graph.placeholder(f"x{len(placeholders)}"))
            placeholders[-1].meta["val"] = _as_tensors(value, device)
            return placeholders[-1]
        return tuple(map(node, value)) if isinstance(value, tuple) else value

    try:
        made = graph.call_function(op, node(call.args), {k: node(v) for k, v in call.kwargs})
        made.meta["val"] = _as_tensors(call.results, device)
        graph.output(_results(graph, made))
        module = torch.fx.GraphModule({}, graph)
        return lower(Captured(module, "call", "inference")).graph
    except Exception:  # whatever a lowering makes of arguments that capture never gives it
        return None


def _results(graph: torch.fx.Graph, made: torch.fx.Node) -> tuple:
    value = made.meta["val"]
    if isinstance(value, torch.Tensor):
        return (made,)
    items = [(k, v) for k, v in enumerate(value) if isinstance(v, torch.Tensor)]
    found = []
    for position, tensor in items:
        found.append(graph.call_function(getitem, (made, position)))
        found[-1].meta["val"] = tensor
    return tuple(found)


def _functional(op):
    """aten.add_.Tensor -> aten.add.Tensor, which does the same work."""
    name, _, overload = str(op).removeprefix("aten.").partition(".")
    if not name.endswith("_") or name.endswith("__"):
        return op
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, overload, op) if packet else op


# -- tensors --


def _metas(tree) -> list[Meta]:
    if isinstance(tree, Meta):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return [m for part in tree for m in _metas(part)] if isinstance(tree, tuple) else []


def _elements(metas: list[Meta]) -> float:
    return float(sum(prod(m.shape) for m in metas))


def _distinct_bytes(meta: Meta) -> int:
    sizes = meta.shape if not meta.strides else [
        n if stride else min(n, 1) for n, stride in zip(meta.shape, meta.strides)]
    return prod(sizes) * meta.dtype.itemsize


def _largest(metas: list[Meta]) -> str:
    floating = [m for m in metas if m.dtype.is_floating_point] or metas
    largest = max(floating, key=_distinct_bytes, default=None)
    return str(largest.dtype).removeprefix("torch.") if largest else "-"

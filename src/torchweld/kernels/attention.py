"""Attention of a few queries (decoding) as a kernel of our own on a GPU.

    extern y = scaled_dot_product_attention(q, k, v, mask)
 -> comp y [b, h, g, i, d, l, e] { ... }               schedule/attention.py

A library's kernel for a few rows takes longer to start and drain than to read its keys, and the
kernels around it cannot begin early. `g` counts the heads of queries that share a head of keys; a
copy of keys in which each head is repeated, as the library needs it beside a mask, is not made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.capture.views import Tensor, contiguous_strides, whole
from torchweld.core import dtypes
from torchweld.core.device import DeviceTable
from torchweld.ir import affine
from torchweld.ir.affine import Affine, axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, IndexMap, Node, Store, Value, View
from torchweld.ir.size import Size, divide, hint
from torchweld.kernels.products.comp import window
from torchweld.plan.decisions import Plan
from torchweld.rewrite.dead import drop_dead_nodes
from torchweld.schedule.attention import LARGEST_HEAD, attention_of
from torchweld.schedule.contraction import TENSOR_DTYPES

MOST_ROWS = 64  # queries that share a head of keys; beyond, the library has the better kernels
_SHORT = 256  # but for as many rows and keys in all, in a few heads
_FEW_POINTS = 24 << 16  # pairs of a query and a key


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of any of torch's attention operators."""

    query: View
    key: View
    value: View
    mask: View | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None


def _plain(q, k, v, mask=None, dropout=0.0, causal=False, *, scale=None, enable_gqa=False):
    return _Call(q, k, v, mask, dropout, causal, scale)


def _flash(q, k, v, dropout=0.0, causal=False, debug=False, *, scale=None):
    return _Call(q, k, v, None, dropout, causal, scale)


def _efficient(q, k, v, mask, lse, dropout=0.0, causal=False, *, scale=None):
    return _Call(q, k, v, mask, dropout, causal, scale)


def _cudnn(q, k, v, mask, lse, dropout=0.0, causal=False, debug=False, *, scale=None):
    return _Call(q, k, v, mask, dropout, causal, scale)


def _flash_for_cpu(q, k, v, dropout=0.0, causal=False, *, attn_mask=None, scale=None):
    return _Call(q, k, v, attn_mask, dropout, causal, scale)


_READERS = {
    "aten.scaled_dot_product_attention.default": _plain,
    "aten._scaled_dot_product_flash_attention.default": _flash,
    "aten._scaled_dot_product_efficient_attention.default": _efficient,
    "aten._scaled_dot_product_cudnn_attention.default": _cudnn,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _flash_for_cpu,
}


def own_attention(plan: Plan, table: DeviceTable) -> Plan:
    """`plan` with attention by kernels of our own where those are faster."""
    if table.kind != "cuda" or table.capability < (8, 0):
        return plan
    graph, nodes = plan.graph, []
    repeated: dict[str, View] = {}  # what copies are of, as long as that does not change
    for node in graph.nodes:
        nodes.append(_own(_with_shared_heads(node, repeated), graph) or node)
        repeated = {b: v for b, v in repeated.items() if v.buffer not in node.writes}
        repeated |= _repeated_heads(node, graph)
    return replace(plan, graph=drop_dead_nodes(replace(graph, nodes=tuple(nodes))))


def _own(node: Node, graph: Graph) -> Comp | None:
    if not isinstance(node, Extern) or node.target not in _READERS or not node.outputs[0]:
        return None
    call = _READERS[node.target](*node.args, **dict(node.kwargs))
    if any(node.outputs[1:]) or not _suits(call, graph):
        return None
    comp = attention_comp(node, graph.buffers)
    return comp if comp is not None and attention_of(comp) is not None else None


def _repeated_heads(node: Node, graph: Graph) -> dict[str, View]:
    """A view (b, h, g, l, d) by its copy, if `node` copies keys or values, each head g times."""
    if not isinstance(node, Extern) or node.target != "aten.clone.default":
        return {}
    (view, *_), (name, *_) = node.args, node.outputs
    buffer = graph.buffers[name]
    plain = buffer.strides == contiguous_strides(buffer.shape) and buffer.shape == view.shape
    return {name: view} if plain and len(view.shape) == 5 and view.strides[2] == 0 else {}


def _with_shared_heads(node: Node, repeated: Mapping[str, View]) -> Node:
    """Attention over keys and values from before their heads were repeated, if as often in both."""
    if not isinstance(node, Extern) or node.target not in _READERS:
        return node
    query, *found = node.args[:3]
    shared = [_shared(view, repeated) for view in found]
    if None in shared or shared[0].shape[1] != shared[1].shape[1]:
        return node
    return replace(node, args=(query, *shared, *node.args[3:]))


def _shared(view: View, repeated: Mapping[str, View]) -> View | None:
    """(b, h, l, d) of a view (b, h * g, l, d) of a whole copy; None for any other."""
    source = repeated.get(view.buffer)
    if source is None or (view.offset, view.strides) != (0, contiguous_strides(view.shape)):
        return None
    b, h, g, *rest = source.shape
    strides = (*source.strides[:2], *source.strides[3:])
    whole = replace(source, shape=(b, h, *rest), strides=strides)
    return whole if view.shape == (b, h * g, *rest) else None


def _suits(call: _Call, graph: Graph) -> bool:
    """Few rows of 16 bits, heads of sizes that are known, no dropout, one meaning of "causal"."""
    (_, heads, positions, depth), (_, shared, keys, _) = call.query.shape, call.key.shape
    known = all(isinstance(s, int) for s in (heads, shared, positions, depth, call.value.shape[3]))
    if not known or call.dropout or graph.buffers[call.query.buffer].dtype not in TENSOR_DTYPES:
        return False
    if call.causal and positions != keys:
        return False
    widest = max(depth, call.value.shape[3])
    rows, keys = heads // max(1, shared) * positions, hint(keys, graph.hints)
    points = hint(call.query.shape[0], graph.hints) * heads * positions * keys
    short = max(rows, keys) <= _SHORT and points <= _FEW_POINTS
    return widest <= LARGEST_HEAD and min(rows, keys) > 0 and (rows <= MOST_ROWS or short)


def attention_comp(node: Extern, buffers: Mapping[str, Buffer]) -> Comp | None:
    """The Comp of an attention call; None where a window has no affine map, heads do not divide,
    queries are broadcast over keys, or there is one key."""
    call = _READERS[node.target](*node.args, **dict(node.kwargs))
    group = divide(call.query.shape[1], call.key.shape[1])
    if group is None or 1 in (*call.key.shape[2:], call.value.shape[3]):
        return None
    (b, _, i, d), (_, h, keys, _), e = call.query.shape, call.key.shape, call.value.shape[3]
    if buffers[node.outputs[0]].shape != (b, call.query.shape[1], i, e):
        return None
    extents = {"b": b, "h": h, "g": group, "i": i, "d": d, "l": keys, "e": e}
    places = _places(extents)
    used = frozenset().union(*(p.axes for place in places.values() for p in place))
    views = {"query": call.query, "key": call.key, "value": call.value}
    views |= {"mask": _four(call.mask)} if call.mask is not None else {}
    read = {name: window(v, buffers[v.buffer]) for name, v in views.items()}
    read["result"] = whole(buffers[node.outputs[0]])
    if any(t is None or any(len(dim) > 1 for dim in t.dims) for t in read.values()):
        return None
    body = _Body(call, {n: (t, _index(t, places[n])) for n, t in read.items()})
    value = body.written()
    store = Store(node.outputs[0], _index(read["result"], places["result"]), value)
    axes = tuple(Axis(n, e) for n, e in extents.items() if n in used)
    return Comp(node.name, axes, body.builder.body, (store,), node.origins)


def _four(view: View) -> View:
    """A mask broadcasts from the right."""
    missing = 4 - len(view.shape)
    return replace(view, shape=(1,) * missing + view.shape, strides=(0,) * missing + view.strides)


def _index(tensor: Tensor, places: tuple[Affine, ...]) -> IndexMap:
    """The buffer's index at `places`: one for each dimension of the window, and what is added to
    the last."""
    entries: list[Affine] = [affine.constant(b) for b in tensor.base]
    for dim, place in zip(tensor.dims, places):
        for d, step in dim[0].steps if dim else ():
            entries[d] = entries[d] + place * step
    for rest in places[tensor.rank :]:
        entries[-1] = entries[-1] + rest
    return tuple(entries)


class _Body:
    """Writes the instructions of a call whose operands are read at known places."""

    def __init__(self, call: _Call, operands: dict[str, tuple[Tensor, IndexMap]]) -> None:
        self.call, self.operands, self.builder = call, operands, BodyBuilder()

    def written(self) -> Value:
        """The result, in its dtype: zero for a query that may see nothing, as torch has it."""
        body = self.builder
        scores = body.reduce("sum", (body.op("mul", self.load("query"), self.load("key")),), ("d",))
        scores = self.masked(body.op("mul", scores, body.const(self.scale, dtypes.f32)))
        top = body.reduce("max", (scores,), ("l",))
        nothing = body.op("eq", top, body.const(-math.inf, dtypes.f32))
        base = body.op("where", nothing, body.const(0.0, dtypes.f32), top)
        weight = body.op("exp", body.op("sub", scores, base))
        total = body.reduce("sum", (weight,), ("l",))
        mix = body.reduce("sum", (body.op("mul", weight, self.load("value")),), ("l",))
        zero = body.const(0.0, dtypes.f32)
        mean = body.op("where", body.op("eq", total, zero), zero, body.op("div", mix, total))
        return body.cast(mean, self.operands["result"][0].dtype)

    @property
    def scale(self) -> float:
        given = self.call.scale
        return 1 / math.sqrt(self.call.query.shape[3]) if given is None else float(given)

    def load(self, name: str) -> Value:
        """In float32, but for a mask of truths."""
        tensor, index = self.operands[name]
        value = self.builder.load(tensor.source, index, tensor.dtype)
        return value if tensor.dtype == dtypes.b1 else self.builder.widen(value)

    def masked(self, scores: Value) -> Value:
        body = self.builder
        if self.call.causal:
            later = body.index(axis("l") + axis("i") * -1)
            return self.where(body.op("le", later, body.const(0, dtypes.i64)), scores)
        if self.call.mask is None:
            return scores
        mask = self.load("mask")
        if body[mask].dtype == dtypes.b1:
            return self.where(mask, scores)
        return body.op("add", scores, mask)

    def where(self, allowed: Value, scores: Value) -> Value:
        return self.builder.op("where", allowed, scores, self.builder.const(-math.inf, dtypes.f32))


def _places(extents: Mapping[str, Size]) -> dict[str, tuple[Affine, ...]]:
    """Where an operand is read, by logical dimension. An axis of one point is none; but there is a
    row, if only of index zero (whose stride keeps addresses aligned)."""
    at = {n: affine.constant(0) if e == 1 else axis(n) for n, e in extents.items()}
    lone = (axis("i") * extents["d"],) if extents["g"] == 1 and extents["i"] == 1 else ()
    head = at["h"] * extents["g"] + at["g"]
    return {
        "query": (at["b"], head, at["i"], at["d"], *lone),
        "key": (at["b"], at["h"], at["l"], at["d"]),
        "value": (at["b"], at["h"], at["l"], at["e"]),
        "mask": (at["b"], head, at["i"], at["l"]),
        "result": (at["b"], head, at["i"], at["e"], *lone),
    }

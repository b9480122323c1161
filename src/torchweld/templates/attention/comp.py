"""Calls of torch's attention operators, written out as Comps (schedule.py has the form)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.affine import Affine, axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, IndexMap, Store, Value, View
from torchweld.ir.size import Size, divide
from torchweld.ir.views import Tensor, whole
from torchweld.templates.gemm.comp import window


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of any of torch's attention operators."""

    query: View
    key: View
    value: View
    mask: View | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None


def _plain(q, k, v, mask=None, dropout=0.0, causal=False, *, scale=None, enable_gqa=False):
    return Call(q, k, v, mask, dropout, causal, scale)


def _flash(q, k, v, dropout=0.0, causal=False, debug=False, *, scale=None):
    return Call(q, k, v, None, dropout, causal, scale)


def _efficient(q, k, v, mask, lse, dropout=0.0, causal=False, *, scale=None):
    return Call(q, k, v, mask, dropout, causal, scale)


def _cudnn(q, k, v, mask, lse, dropout=0.0, causal=False, debug=False, *, scale=None):
    return Call(q, k, v, mask, dropout, causal, scale)


def _flash_for_cpu(q, k, v, dropout=0.0, causal=False, *, attn_mask=None, scale=None):
    return Call(q, k, v, attn_mask, dropout, causal, scale)


READERS = {
    "aten.scaled_dot_product_attention.default": _plain,
    "aten._scaled_dot_product_flash_attention.default": _flash,
    "aten._scaled_dot_product_efficient_attention.default": _efficient,
    "aten._scaled_dot_product_cudnn_attention.default": _cudnn,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _flash_for_cpu,
}


def call_of(node: object) -> Call | None:
    """The arguments of a call of attention, None for any other node."""
    if not isinstance(node, Extern) or node.target not in READERS or not node.outputs[0]:
        return None
    return READERS[node.target](*node.args, **dict(node.kwargs))


def attention_comp(node: Extern, buffers: Mapping[str, Buffer]) -> Comp | None:
    """The Comp of an attention call; None where a window has no affine map, heads do not divide,
    queries are broadcast over keys, or there is one key."""
    call = call_of(node)
    if call is None:
        return None
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
    read = {name: _window(v, buffers[v.buffer]) for name, v in views.items()}
    read["result"] = whole(buffers[node.outputs[0]])
    if any(t is None or any(len(dim) > 1 for dim in t.dims) for t in read.values()):
        return None
    body = _Body(call, {n: (t, _index(t, places[n])) for n, t in read.items()})
    value = body.written()
    store = Store(node.outputs[0], _index(read["result"], places["result"]), value)
    axes = tuple(Axis(n, e) for n, e in extents.items() if n in used)
    return Comp(node.name, axes, body.builder.body, (store,), node.origins)


def _window(view: View, buffer: Buffer) -> Tensor | None:
    """`window`, and the first columns of rows that torch made longer, for addresses that its own
    kernels can load from: of a size that varies, it cannot be told that they are fewer."""
    found = window(view, buffer)
    if found is None and view.offset == 0 and len(buffer.shape) > 1:
        found = window(view, replace(buffer, shape=(*buffer.shape[:-1], view.shape[-1])))
    return found


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

    def __init__(self, call: Call, operands: dict[str, tuple[Tensor, IndexMap]]) -> None:
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

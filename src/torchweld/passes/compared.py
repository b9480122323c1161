"""Values in memory that decide a comparison, on a GPU: rounded as the operations say.

    before: comp z { store z[i, j] x * w + y };  k = topk(z);  comp m { ... x * w + y < k ... }
    after:  comp z { store z[i, j] cast.round (x * w + y) };  the rest as before

A kernel that compares rounds the products that it sums, as eager does, and may compute again what
is in memory, too. A compiler that made one operation of `x * w + y` where it is stored would leave
the k-th element out. A `cast.round` to the type that a value has already says to round its
products, as a comparison does (templates/pointwise_reduce/gpu/roundings.py). It comes after the
plan, which knows who computes what again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torchweld.ir.monoid import TABLE as MONOIDS
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Const,
    Extern,
    Graph,
    Instr,
    Load,
    Op,
    Reduce,
    Scan,
    Value,
    needed,
    operands,
)
from torchweld.ir.simplify import drop_dead
from torchweld.templates.pointwise_reduce.gpu.roundings import products_in_sums

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
# Library calls whose results are elements of what they are given.
_SELECTIONS = {
    f"aten.{name}"
    for name in (
        "topk.default", "sort.default", "sort.stable", "kthvalue.default", "mode.default",
        "median.default", "median.dim", "nanmedian.default", "nanmedian.dim",
    )
}  # fmt: skip


def compared_as_rounded(graph: Graph) -> Graph:
    """`graph` with such values marked where they are stored."""
    nodes, compared = [], set[str]()
    for node in reversed(graph.nodes):
        if isinstance(node, Comp):
            node = _marked(node, compared)
            compared |= _read(node.body, _deciding(node, compared))
        elif isinstance(node, Extern) and node.target in _SELECTIONS:
            compared |= set(node.reads) if compared & set(node.writes) else set()
        nodes.append(node)
    return replace(graph, nodes=tuple(reversed(nodes)))


def _deciding(comp: Comp, compared: Collection[str]) -> set[Value]:
    """What is compared with what varies, or is stored for another kernel that compares it."""
    found = {s.value for s in comp.stores if s.buffer in compared}
    for instr in comp.body:
        if _compares(comp.body, instr):
            found.update(operands(instr))
    return found


def _compares(body: tuple[Instr, ...], instr: Instr) -> bool:
    """Two results: no constants, nor something with itself, which asks whether it is NaN."""
    if not isinstance(instr, Op) or instr.name not in _COMPARISONS:
        return False
    results = (v for v in set(instr.args) if body[v].dtype.is_float)
    return sum(not isinstance(body[v], Const) for v in results) > 1


def _read(body: tuple[Instr, ...], values: Collection[Value]) -> set[str]:
    """The buffers of floats whose elements, or extremes of them, `values` are computed from."""
    sums = {
        v for v, i in enumerate(body)
        if isinstance(i, (Reduce, Scan)) and not MONOIDS[i.monoid].exact
    }  # fmt: skip
    behind = (body[v] for v in needed(body, values, stop=sums))
    return {i.buffer for i in behind if isinstance(i, Load) and i.dtype.is_float}


def _marked(comp: Comp, compared: Collection[str]) -> Comp:
    """`comp` with the sums of products marked that it stores into `compared`."""
    body, stores = list(comp.body), []
    for store in comp.stores:
        if store.buffer in compared and products_in_sums(comp.body, {store.value}):
            store = replace(store, value=_rounded(body, store.value))
        stores.append(store)
    if tuple(stores) == comp.stores:
        return comp
    return drop_dead(replace(comp, body=tuple(body), stores=tuple(stores)))


def _rounded(body: list[Instr], value: Value) -> Value:
    """The value marked, in `body`; of a conversion, what is converted."""
    instr = body[value]
    if isinstance(instr, Cast):
        made = replace(instr, arg=_rounded(body, instr.arg))
    else:
        made = Cast(value, instr.dtype, must_round=True)
    body.append(made)
    return len(body) - 1

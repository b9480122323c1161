"""Values in memory that decide a comparison, on a GPU: rounded as the operations say.

    before: comp z { store z[i, j] x * w + y };  k = topk(z);  comp m { ... x * w + y < k ... }
    after:  comp z { store z[i, j] cast.round (x * w + y) };  the rest as before

A kernel that compares rounds the products that it sums, as eager does, and may compute again what
is in memory, too. A compiler that made one operation of `x * w + y` where it is stored would leave
the k-th element out, and so would functions that are coarser where all results have 16 bits. A
`cast.round` to the type that a value has already says to compute it as for a comparison
(templates/pointwise_reduce/gpu/roundings.py). It comes after the plan, which knows who computes
what again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torchweld.ir.monoid import TABLE as MONOIDS
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Extern,
    Graph,
    Instr,
    Load,
    Reduce,
    Scan,
    Value,
    needed,
)
from torchweld.ir.simplify import drop_dead
from torchweld.templates.pointwise_reduce.gpu.roundings import compared_values, may_differ

# Library calls whose results are elements of what they are given.
_SELECTIONS = {
    f"aten.{name}"
    for name in (
        "topk.default", "sort.default", "sort.stable", "kthvalue.default", "mode.default",
        "median.default", "median.dim", "nanmedian.default", "nanmedian.dim",
    )
}  # fmt: skip


def compared_as_rounded(graph: Graph) -> Graph:
    """`graph` with such values marked where they are stored, if a kernel computes them again."""
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
    """What is compared where some of it is computed again, or is stored for such a comparison."""
    again = compared_values(comp.body)
    if not may_differ(comp.body, _behind(comp.body, again)):
        again = set()
    return again | {s.value for s in comp.stores if s.buffer in compared}


def _read(body: tuple[Instr, ...], values: Collection[Value]) -> set[str]:
    """The buffers of floats that they are computed from."""
    behind = (body[v] for v in _behind(body, values))
    return {i.buffer for i in behind if isinstance(i, Load) and i.dtype.is_float}


def _behind(body: tuple[Instr, ...], values: Collection[Value]) -> set[Value]:
    """`values`, and what they, or extremes of which they are one, are computed from."""
    sums = {
        v for v, i in enumerate(body)
        if isinstance(i, (Reduce, Scan)) and not MONOIDS[i.monoid].exact
    }  # fmt: skip
    return needed(body, values, stop=sums)


def _marked(comp: Comp, compared: Collection[str]) -> Comp:
    """`comp` with what it stores into `compared` marked, where kernels may compute other bits."""
    body, stores = list(comp.body), []
    for store in comp.stores:
        if store.buffer in compared and may_differ(comp.body, {store.value}):
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

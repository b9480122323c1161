"""Attention of a few queries (decoding) as a kernel of our own on a GPU.

    extern y = scaled_dot_product_attention(q, k, v, mask)
 -> comp y [b, h, g, i, d, l, e] { ... }               templates/attention/schedule.py

A library's kernel for a few rows takes longer to start and drain than to read its keys, and the
kernels around it cannot begin early. `g` counts the heads of queries that share a head of keys; a
copy of keys in which each head is repeated, as the library needs it beside a mask, is not made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir.contraction import TENSOR_DTYPES
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Load, Node, Ref, Store, View
from torchweld.ir.size import hint
from torchweld.ir.views import contiguous_strides
from torchweld.plan.decisions import Plan
from torchweld.plan.products.told import explained, of_call
from torchweld.plan.refusals import Reason, Refusal
from torchweld.rewrite.dead import drop_dead_nodes
from torchweld.targets.target import Target
from torchweld.templates.attention.comp import READERS, Call, attention_comp, call_of
from torchweld.templates.attention.schedule import LARGEST_HEAD, MOST_ROWS, SHORT, attention_of

_FEW_POINTS = 24 << 16  # pairs of a query and a key, up to which few rows and keys are SHORT


def own_attention(plan: Plan, table: Target) -> Plan:
    """`plan` with attention by kernels of our own where those are faster."""
    if table.capability < (8, 0):
        return plan
    graph, nodes, refused = plan.graph, [], {}
    repeated: dict[str, View] = {}  # what copies are of, as long as that does not change
    for node in graph.nodes:
        own = _own(_with_shared_heads(node, repeated), graph)
        if isinstance(own, Refusal):
            refused |= of_call(node, graph, own)
        nodes.append(own if isinstance(own, Comp) else node)
        repeated = {b: v for b, v in repeated.items() if v.buffer not in node.writes}
        repeated |= _repeated_heads(node, graph)
    plan = explained(plan, refused)
    return replace(plan, graph=drop_dead_nodes(replace(graph, nodes=tuple(nodes))))


def _own(node: Node, graph: Graph) -> Comp | Refusal | None:
    """The kernel in the place of a call of attention, or why there is none; None for others."""
    call = call_of(node)
    if call is None:
        return None
    if any(node.outputs[1:]):
        return Refusal(Reason.READERS, "its gradient needs more than its result")
    refusal = _refusal(call, graph)
    comp = None if refusal else attention_comp(node, graph.buffers)
    if comp is not None and attention_of(comp) is not None:
        return comp
    return refusal or Refusal(Reason.TEMPLATE, "an operand is not a plain view of a buffer")


def _repeated_heads(node: Node, graph: Graph) -> dict[str, View]:
    """A view (b, h, g, l, d) by its copy, if `node` copies keys or values, each head g times: a
    call, or a kernel that may copy both."""
    if isinstance(node, Comp):
        copies = {store.buffer: _copied(node, store, graph) for store in node.stores}
    elif isinstance(node, Extern) and node.target == "aten.clone.default":
        copies = {node.outputs[0]: node.args[0]}
    else:
        return {}
    return {name: v for name, v in copies.items() if v and _repeats(v, graph.buffers[name])}


def _repeats(view: View, copy: Buffer) -> bool:
    """The copy is whole and contiguous, and has each head of the view several times."""
    shape = view.shape[len(view.shape) - len(copy.shape) :]
    plain = copy.strides == contiguous_strides(copy.shape) and copy.shape == shape
    return plain and len(view.shape) == 5 and view.strides[2] == 0


def _copied(comp: Comp, store: Store, graph: Graph) -> View | None:
    """What a store copies, in five dimensions; None where it computes something. A batch of one has
    no axis."""
    load = comp.body[store.value]
    if store.combine or store.guard is not None or not isinstance(load, Load):
        return None
    if load.guard is not None or any(isinstance(i, Ref) for i in (*store.index, *load.index)):
        return None
    axes = [place.as_axis for place in store.index]
    if None in axes or not 4 <= len(axes) <= 5:
        return None
    strides = graph.buffers[load.buffer].strides
    steps = [sum(i.coefficient(a) * s for i, s in zip(load.index, strides)) for a in axes]
    start = sum(i.const * s for i, s in zip(load.index, strides))
    batch = (1,) * (5 - len(axes))
    shape = (*batch, *map(comp.extent, axes))
    return View(load.buffer, shape, (*((0,) * len(batch)), *steps), start)


def _with_shared_heads(node: Node, repeated: Mapping[str, View]) -> Node:
    """Attention over keys and values from before their heads were repeated, if as often in both."""
    if not isinstance(node, Extern) or node.target not in READERS:
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


def _refusal(call: Call, graph: Graph) -> Refusal | None:
    """None for few rows of 16 bits, heads of sizes that are known, no dropout, one meaning of
    "causal"."""
    why = _unsupported(call, graph)
    if why is not None:
        return Refusal(Reason.TEMPLATE, why)
    (batch, heads, positions, _), (_, shared, keys, _) = call.query.shape, call.key.shape
    rows, keys = heads // max(1, shared) * positions, hint(keys, graph.hints)
    points = hint(batch, graph.hints) * heads * positions * keys
    short = max(rows, keys) <= SHORT and points <= _FEW_POINTS
    if min(rows, keys) <= 0:
        return Refusal(Reason.TEMPLATE, "there are no keys")
    if rows <= MOST_ROWS or short:
        return None
    return Refusal(Reason.SLOWER, f"{rows} queries share a head of keys: the library is faster")


def _unsupported(call: Call, graph: Graph) -> str | None:
    (_, heads, positions, depth), (_, shared, keys, _) = call.query.shape, call.key.shape
    dtype, width = graph.buffers[call.query.buffer].dtype, call.value.shape[3]
    if not all(isinstance(s, int) for s in (heads, shared, positions, depth, width)):
        return "sizes are known only at the call"
    if call.dropout:
        return "dropout"
    if dtype not in TENSOR_DTYPES:
        return f"{dtype.name} is not of 16 bits"
    if call.causal and positions != keys:
        return f"causal attention of {positions} queries to {keys} keys"
    return f"heads of {max(depth, width)}" if max(depth, width) > LARGEST_HEAD else None

"""Rows that nobody reads are not made: a part is taken before an operation, not behind it.

    layer_norm(x)[:, 0]             ->  layer_norm(x[:, 0:1])[:, 0]
    linear(x, w)[:, :-1]            ->  linear(x[:, :-1], w)
    attention(q, k, v)[:, :, -1:]   ->  attention(q[:, :, -1:], k, v)

A classifier reads one token of its last layer, a language model that goes on with a text the last
one, and a loss of next tokens all but the last. Of that layer the queries, their products and the
MLP are then made for these rows alone: of the 12 parts of a transformer's layer (q, k, v, the
result and 4 + 4 of the MLP), ten. In training the gradients too, as this is done in Dynamo's graph,
before autograd. Each row is the same calculation, so nothing is rounded otherwise than by a product
of another height.

Only where a product becomes smaller, nothing in the graph is written to, and the part is not
returned itself: it would not lie as eager's, which is a view of the whole.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from torchweld.capture.constant import example, name_of, traced_value, writes
from torchweld.capture.part_rules import (
    FRESH,
    PRODUCTS,
    Call,
    Part,
    Taken,
    first_tensor,
    index_of,
    is_one,
    part_call,
    result_of,
    taken_in,
)
from torchweld.capture.unrolled import MODES
from torchweld.core.errors import one_line
from torchweld.core.logs import logger
from torchweld.core.torch_private import pytree


@dataclass(frozen=True, slots=True)
class _Demand:
    """All that is read of a node, and the call that makes it."""

    dim: int
    part: Part
    call: Call


def take_parts_first(gm: GraphModule) -> int:
    """Changes the graph in place; returns how many operations make less."""
    nodes = list(gm.graph.nodes)
    if not any(map(_selected, nodes)) or any(map(writes, nodes)):
        return 0
    demands = _useful(nodes, _demands(nodes))
    values = _values(demands)
    if values:
        _rewrite(gm.graph, demands, values)
        gm.graph.lint()
        gm.recompile()
    return len(values)


# -- what is read --


def _selected(node: Node) -> tuple[int, Part] | None:
    """The part that an index takes of a tensor: along the dimension of which least is left."""
    if name_of(node) != "getitem" or example(node.args[0]) is None:
        return None
    index, shape = index_of(node), example(node.args[0]).shape
    if index is None or None in index:
        return None
    given = ((d, i) for d, i in enumerate(index) if i != slice(None) and not is_one(shape[d]))
    taken = [(d, _part(i)) for d, i in given]

    def share(dim: int, part: Part) -> float:
        left = part.length(shape[dim])
        return 1.0 if left is None else left / max(shape[dim], 1)

    return min(taken, key=lambda t: share(*t), default=None)


def _part(index: int | slice) -> Part:
    if isinstance(index, slice):
        return Part(index.start, index.stop)
    return Part(index, index + 1 if index != -1 else None)


def _demands(nodes: list[Node]) -> dict[Node, _Demand]:
    """Of each node of which its users read one part, the same."""
    changes = accumulate(name_of(n) in MODES for n in nodes)
    region, found = dict(zip(nodes, changes)), {}
    for node in reversed(nodes):
        if node.op not in ("call_function", "call_method") or not node.users:
            continue
        read = {_read(u, node, found) if region[u] == region[node] else None for u in node.users}
        if len(read) == 1 and None not in read:
            dim, part = read.pop()
            call = part_call(node, dim, part)
            if call is not None:
                found[node] = _Demand(dim, part, call)
    return found


def _read(user: Node, node: Node, demands: dict[Node, _Demand]) -> tuple[int, Part] | None:
    """What a user reads of `node`; None for all of it, or for what is not known."""
    demand = demands.get(user)
    if demand is None:
        selected = _selected(user)
        return None if selected is None or _is_returned(user) else selected
    whole: list[Node] = []
    map_arg(demand.call, whole.append)
    dims = {t.dim for t in taken_in(demand.call) if t.node is node}
    return (dims.pop(), demand.part) if len(dims) == 1 and node not in whole else None


def _is_returned(node: Node) -> bool:
    """Whether the memory of a view may be a result of the graph."""
    seen, pending = {node}, [node]
    while pending:
        for user in pending.pop().users:
            if user.op == "output":
                return True
            if name_of(user) not in FRESH and user not in seen:
                seen.add(user)
                pending.append(user)
    return False


def _useful(nodes: list[Node], demands: dict[Node, _Demand]) -> dict[Node, _Demand]:
    """Those that a product is among, or before."""
    found: dict[Node, _Demand] = {}
    for node in nodes:
        demand = demands.get(node)
        if demand is None:
            continue
        taken = [t.node for t in taken_in(demand.call)]
        if any(n in found for n in taken) or _saves(node, demand):
            found[node] = demand
    return found


def _saves(node: Node, demand: _Demand) -> bool:
    """A product whose operand is not copied for a few rows less."""
    if name_of(node) not in PRODUCTS:
        return False
    value, size = example(node), example(node).shape[demand.dim]
    left = demand.part.length(size)
    if left is None:
        return True
    first = example(taken_in(demand.call)[0].node)
    return 2 * left <= size or bool(left < size and value.numel() >= first.numel())


# -- the change --


def _values(demands: dict[Node, _Demand]) -> dict[Node, object]:
    """What the smaller calls give, as fake tensors; nothing where torch refuses one of them, or a
    result is not of the part's shape."""
    made: dict[Node, object] = {}

    def given(argument, part: Part):
        if isinstance(argument, Taken):
            whole = traced_value(argument.node)
            return made[argument.node] if argument.node in made else whole[part.of(argument.dim)]
        return traced_value(argument) if isinstance(argument, Node) else argument

    for node, demand in demands.items():
        value = result_of(node)
        args, kwargs = map_aggregate(demand.call, lambda a, part=demand.part: given(a, part))
        try:
            with value.fake_mode, torch.set_grad_enabled(value.requires_grad):
                method = node.op == "call_method"
                call = getattr(args[0], node.target) if method else node.target
                result = call(*args[method:], **kwargs)
                wanted = value[demand.part.of(demand.dim)].shape
        except Exception as error:
            logger("capture").debug("rows that nobody reads: %s: %s", node, one_line(error))
            return {}
        if str(first_tensor(result).shape) != str(wanted):
            return {}
        made[node] = _in_type(result, value.dtype)
    return made


def _in_type(result, dtype: torch.dtype):
    """Under autocast, the graph's own: it is not on while this is asked."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(dtype), result)


def _rewrite(graph: Graph, demands: dict[Node, _Demand], values: dict[Node, object]) -> None:
    made: dict[Node, Node] = {}
    cuts: dict[tuple[Taken, Part], Node] = {}

    def operand(taken, part: Part):
        if not isinstance(taken, Taken):
            return taken
        if taken.node in made:
            return made[taken.node]
        if (taken, part) not in cuts:
            index = part.of(taken.dim)
            cut = graph.call_function(operator.getitem, (taken.node, index))
            whole = traced_value(taken.node)
            with whole.fake_mode:
                cut.meta = {**taken.node.meta, "example_value": whole[index]}
            cuts[taken, part] = cut
        return cuts[taken, part]

    for node, demand in demands.items():
        with graph.inserting_before(node):
            args, kwargs = map_aggregate(demand.call, lambda a, part=demand.part: operand(a, part))
            made[node] = graph.create_node(node.op, node.target, args, kwargs)
        made[node].meta = {**node.meta, "example_value": values[node]}
    for node, demand in demands.items():
        for user in [u for u in node.users if u not in demands]:
            _select(user, made[node], demand.dim)
    for node in reversed(demands):
        graph.erase_node(node)


def _select(user: Node, node: Node, dim: int) -> None:
    """What `user` takes of the whole, of the part `node`."""
    index = index_of(user)
    index[dim] = slice(None) if isinstance(index[dim], slice) else 0
    if all(i == slice(None) for i in index):
        user.replace_all_uses_with(node)
        user.graph.erase_node(user)
    else:
        user.args = (node, tuple(index))

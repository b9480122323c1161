"""New calls in an FX graph of ATen, with what is said of the nodes that they stand for."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from torchweld.capture.torch_private import FakeTensorMode

aten = torch.ops.aten
_KEPT_META = ("nn_module_stack", "fwd_nn_module_stack", "stack_trace", "from_node", "seq_nr")


def add_call(
    before: Node, target, args: tuple, fake_mode: FakeTensorMode | None = None, **kwargs
) -> Node:
    """A call in front of a node, of which it is said that it comes from the same place. No node is
    added where `target` raises. `fake_mode`: that of the graph, if `before` makes no tensor."""
    with fake_mode or before.meta["val"].fake_mode:
        given, named = map_arg((args, kwargs), lambda n: n.meta["val"])
        value = target(*given, **named)
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    node.meta = {k: before.meta[k] for k in _KEPT_META if k in before.meta} | {"val": value}
    return node


def filled(graph: Graph, value: torch.Tensor, number: float) -> Node:
    """A tensor of one number in all elements, of sizes and type of the fake `value`, where `graph`
    has its next node."""
    options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    node = graph.call_function(aten.full.default, (list(value.shape), number), options)
    node.meta["val"] = value
    return node

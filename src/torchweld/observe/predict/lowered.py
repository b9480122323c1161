"""One recorded call of ATen as a graph of its own."""

from __future__ import annotations

from operator import getitem

import torch

from torchweld.capture.captured import Captured
from torchweld.capture.lower import lower
from torchweld.ir.nodes import Graph
from torchweld.observe.measure.metas import Meta, as_tensors
from torchweld.observe.measure.recorder import Call


def lowered(call: Call, device: str = "meta") -> Graph | None:
    """The call as a graph of its own on a device; None if it has no lowering."""
    try:
        return lower(_captured(call, device)).graph
    except Exception:  # whatever a lowering makes of arguments that capture never gives it
        return None


def _captured(call: Call, device: str) -> Captured:
    """As if it had been captured, all of its tensors inputs."""
    graph = torch.fx.Graph()
    placeholders: list[torch.fx.Node] = []

    def node(value):
        if isinstance(value, Meta):
            placeholders.append(graph.placeholder(f"x{len(placeholders)}"))
            placeholders[-1].meta["val"] = as_tensors(value, device)
            return placeholders[-1]
        return tuple(map(node, value)) if isinstance(value, tuple) else value

    arguments = node(call.args), {k: node(v) for k, v in call.kwargs}
    made = graph.call_function(_functional(call.op), *arguments)
    made.meta["val"] = as_tensors(call.results, device)
    graph.output(_results(graph, made))
    return Captured(torch.fx.GraphModule({}, graph), "call", "inference")


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

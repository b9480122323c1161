"""What is made from nothing on the CPU and copied to a GPU is made there.

    before: a = exp(arange) on cpu;  b = copy of a on cuda:0
    after:  b = exp(arange) on cuda:0

Models write frequencies and masks so (`torch.arange(n) ... .to(x.device)`). Such a kernel and copy
on the CPU keep the whole graph from being replayed as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir.build import copy_comp
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Node, View
from torchweld.ir.substitute import drop_unit_axes
from torchweld.rewrite.flow import rename

_COPY = "aten._to_copy.default"


def make_where_used(graph: Graph) -> Graph:
    """`graph` with such values made on the GPU, too; on the CPU they are dead, if nothing else
    reads them."""
    made: dict[str, Comp] = {}  # by the buffer on the CPU
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    for node in graph.nodes:
        if isinstance(node, Comp) and _is_from_nothing(node, made, graph):
            made |= dict.fromkeys(node.writes, node)
        source = _copied(node, graph)
        if source in made:
            nodes += _made_there(node, source, made, buffers)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _is_from_nothing(comp: Comp, made: Mapping[str, Comp], graph: Graph) -> bool:
    on_cpu = all(graph.buffers[name].device == "cpu" for name in comp.writes)
    plain = all(s.combine is None and s.init is None and s.guard is None for s in comp.stores)
    return on_cpu and plain and len(comp.stores) == 1 and all(n in made for n in comp.reads)


def _copied(node: Node, graph: Graph) -> str | None:
    """The buffer on the CPU that a call copies to a GPU, all of it."""
    if not isinstance(node, Extern) or node.target != _COPY or not node.outputs[0]:
        return None
    view, result = node.args[0], graph.buffers[node.outputs[0]]
    if not isinstance(view, View) or not result.device.startswith("cuda"):
        return None
    source = graph.buffers[view.buffer]
    whole = view == source.view and tuple(view.shape) == tuple(result.shape)
    return source.name if whole and source.device == "cpu" else None


def _made_there(
    copy: Extern, source: str, made: Mapping[str, Comp], buffers: dict[str, Buffer]
) -> list[Node]:
    """The Comps behind `source` with buffers on the GPU, and the copy as one; adds the buffers."""
    result, wanted, behind = buffers[copy.outputs[0]], [source], set[str]()
    while wanted:
        name = wanted.pop()
        if name not in behind:
            behind.add(name)
            wanted += made[name].reads
    order = [name for name in made if name in behind]  # as the graph makes them
    there = {name: f"{name}_on_{copy.name}" for name in order}
    for name, other in there.items():
        buffers[other] = replace(buffers[name], name=other, device=result.device)
    comps = [replace(rename(made[name], there), name=there[name]) for name in order]
    written = copy_comp(copy.name, buffers[there[source]], result, copy.origins)
    return [*comps, drop_unit_axes(written)]

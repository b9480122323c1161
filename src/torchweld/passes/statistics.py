"""Statistics of norms over many pixels, apart from where they are applied, on a GPU.

    before: comp y [g, c, p] { m, s = welford over c, p of x[g, c, p]; store y[g, c, p] f(x, m, s) }
    after:  comp s [g, c, p] { store m[g], r[g] };  comp y [g, c, p] { store y[g, c, p] f(x, m, r) }

A row that no multiprocessor can hold is read twice in any case. Apart, its application joins what
follows it; the planner joins the two again where that is best.

Groups of few channels lie in short pieces where channels are innermost. There each channel has its
statistics first, which neighbours read together (`channel_groups.py`).
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Graph, Load, Node, Reduce
from torchweld.ir.size import hint, product
from torchweld.layout.channel_groups import channel_groups, in_steps
from torchweld.plan.cut import cut
from torchweld.plan.moves import is_pointwise
from torchweld.targets.target import Target
from torchweld.templates.pointwise_reduce.price import HELD_ACROSS


def statistics_apart(graph: Graph, table: Target) -> Graph:
    """`graph` with such norms in two Comps, or three."""
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    for node in graph.nodes:
        nodes += _parts(node, buffers) if _is_long_norm(node, graph, table) else [node]
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _is_long_norm(node: Node, graph: Graph, table: Target) -> bool:
    reduces = [i for i in node.body if isinstance(i, Reduce)] if isinstance(node, Comp) else []
    if len(reduces) != 1 or reduces[0].monoid != "welford":
        return False
    length = hint(product(node.extent(a) for a in reduces[0].axes), graph.hints)
    held = table.max_columns if _runs_along(node, reduces[0], graph) else HELD_ACROSS
    return length > held


def _runs_along(comp: Comp, reduce: Reduce, graph: Graph) -> bool:
    """Whether memory runs along some of what is reduced, not across it."""
    loads = [i for i in comp.body if isinstance(i, Load)]
    steps = (
        index.coefficient(a) * stride
        for load in loads
        for index, stride in zip(load.index, graph.buffers[load.buffer].strides)
        if isinstance(index, Affine)
        for a in reduce.axes
    )
    return 1 in steps


def _parts(comp: Comp, buffers: dict[str, Buffer]) -> list[Comp]:
    """The Comps in the place of one; adds what they pass on to `buffers`."""
    groups = channel_groups(comp, buffers, read_alone=True)
    if groups is not None:
        return in_steps(comp, groups, buffers)
    parts = cut(comp, buffers[comp.writes[0]].device)
    if parts is None or not is_pointwise(parts[1]):
        return [comp]
    buffers.update((b.name, b) for b in parts[2])
    return [*parts[:2]]

"""Scans that are faster in stretches (templates/pointwise_reduce/stretches.py), as their price has
said."""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Comp, Graph, Node
from torchweld.targets.target import Target
from torchweld.templates.pointwise_reduce.price import fastest_stretches


def scans_in_stretches(graph: Graph, target: Target) -> Graph:
    """`graph` with such scans in three Comps."""
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    for node in graph.nodes:
        found = isinstance(node, Comp) and fastest_stretches(node, buffers, graph.hints, target)
        buffers |= found[1].buffers if found else {}
        nodes += found[1].comps if found else [node]
    return replace(graph, nodes=tuple(nodes), buffers=buffers)

"""Nodes whose results nothing reads."""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Comp, Graph, Node
from torchweld.rewrite.flow import is_pure, output_buffers, without_unused_buffers, written_inputs


def drop_dead_nodes(graph: Graph) -> Graph:
    """Without the nodes that no output needs. A call that draws random numbers or has effects
    stays."""
    needed, kept = output_buffers(graph) | written_inputs(graph), []
    for node in reversed(graph.nodes):
        if needed.intersection(node.writes) or not _may_go(node):
            needed.update(node.reads)
            kept.append(node)
    return without_unused_buffers(replace(graph, nodes=tuple(reversed(kept))))


def _may_go(node: Node) -> bool:
    return isinstance(node, Comp) or is_pure(node)

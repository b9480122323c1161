"""Exact rewrites of a graph, before anything is fused: the same outputs to the bit, from fewer
operations."""

from __future__ import annotations

from torchweld.ir.nodes import Graph
from torchweld.rewrite.rules import RULES


def rewrite(graph: Graph) -> Graph:
    """`graph` with every rule applied in order. Inputs, symbols and the layout of outputs stay as
    they are."""
    for rule in RULES:
        graph = rule.apply(graph)
    return graph

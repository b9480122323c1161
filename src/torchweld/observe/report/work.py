"""What torchweld's programs do in one call, from the pipeline's records: kernels and bytes."""

from __future__ import annotations

from torchweld.ir.nodes import Node
from torchweld.templates.traffic import node_bytes


def kernel_count(records: list) -> int:
    """Generated kernels and library calls of one call, over all graphs."""
    return sum(_launches(node, record) for record in records for node in record.graph.nodes)


def bytes_moved(records: list) -> int:
    """Bytes read and written by one call, each buffer once a kernel or library call, over all
    graphs; sizes that are symbols count as they were at capture."""
    graphs = [record.graph for record in records]
    return sum(node_bytes(node, g.buffers, g.hints) for g in graphs for node in g.nodes)


def _launches(node: Node, record) -> int:
    bundle = record.bundles.get(node.name)
    return len(bundle.sources) if bundle else 1

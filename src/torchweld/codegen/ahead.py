"""What a kernel may have brought into L2 for a later one: between two small kernels memory idles
for microseconds, and weights are known beforehand."""

from __future__ import annotations

from torchweld.ir.nodes import Graph, Node
from torchweld.ir.size import product

LEAST_BYTES = 1 << 20


def weights_ahead(graph: Graph) -> dict[str, str]:
    """Node -> the largest weight that the next node with large weights reads."""
    found: dict[str, str] = {}
    following = None
    for node in reversed(graph.nodes):
        if following is not None:
            found[node.name] = following
        following = _largest_weight(node, graph) or following
    return found


def _largest_weight(node: Node, graph: Graph) -> str | None:
    sizes = {n: product(b.shape) for n in node.reads if (b := graph.buffers[n]).frozen}
    large = {n: s * graph.buffers[n].dtype.bytes for n, s in sizes.items() if isinstance(s, int)}
    best = max(large, key=large.get, default=None)
    return best if best is not None and large[best] >= LEAST_BYTES else None

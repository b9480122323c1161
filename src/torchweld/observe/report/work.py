"""What torchweld's programs do in one call, from the pipeline's records: kernels and bytes."""
from __future__ import annotations

from collections.abc import Mapping
from math import prod

from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, View, views
from torchweld.ir.size import hint
from torchweld.targets.find import target_of
from torchweld.templates.pointwise_reduce.price import bytes_of, cost


def kernel_count(records: list) -> int:
    """Generated kernels and library calls of one call, over all graphs."""
    return sum(_launches(node, record) for record in records for node in record.graph.nodes)


def bytes_moved(records: list) -> int:
    """Bytes read and written by one call, each buffer once a kernel or library call, over all
    graphs; sizes that are symbols count as they were at capture."""
    return sum(_graph_bytes(record.graph, record.device) for record in records)


def _launches(node: Comp | Extern, record) -> int:
    bundle = record.bundles.get(node.name)
    return len(bundle.sources) if bundle else 1


def _graph_bytes(graph: Graph, device: str) -> int:
    table, hints = target_of(device), graph.hints
    return sum(
        cost(node, graph.buffers, hints, table).bytes_moved
        if isinstance(node, Comp)
        else _extern_bytes(node, graph.buffers, hints)
        for node in graph.nodes
    )


def _extern_bytes(node: Extern, buffers: Mapping[str, Buffer], hints: Mapping[str, int]) -> int:
    arguments = views(node.args + tuple(value for _, value in node.kwargs))
    read = sum(_view_bytes(view, buffers[view.buffer], hints) for view in arguments)
    return read + sum(bytes_of(buffers[name], hints) for name in node.writes)


def _view_bytes(view: View, buffer: Buffer, hints: Mapping[str, int]) -> int:
    """An expanded dimension (stride 0) counts once."""
    sizes = [hint(n, hints) if hint(s, hints) else 1 for n, s in zip(view.shape, view.strides)]
    return prod(sizes) * buffer.dtype.bytes

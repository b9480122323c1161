"""Products whose result the caller sees, in rows that start anywhere in memory: logits of 50257
classes.

cuBLAS has no fast kernel for such rows (6.6 ms where 0.9 would do, on an H100), and a copy out of
aligned ones has the result in memory twice, which is most of what such a model needs. A kernel of
our own stores each element where it belongs.

    extern y = mm(x, w.T)   ->   comp y [m, n, k] { sum over k of x[m, k] * w[n, k]; store y[m, n] }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchweld.core.device import DeviceTable
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Node
from torchweld.ir.size import hint, product
from torchweld.kernels.products import Choose
from torchweld.kernels.products_comp import product_comp
from torchweld.kernels.products_cost import Work, kernel_s, library_s
from torchweld.kernels.rows import Uses, is_aligned, is_product, operands, whole
from torchweld.schedule.access import addressed
from torchweld.schedule.contraction import contraction_of
from torchweld.schedule.product import ProductSchedule


def own_results(
    graph: Graph, table: DeviceTable, loose_outputs: Iterable[int], choose: Choose
) -> Graph:
    """`graph` with kernels in the place of such products, where a template makes one that is
    predicted to be no slower than the library's call and a copy. `loose_outputs`: positions of
    outputs that may have any strides."""
    if table.kind != "cuda":
        return graph
    uses = Uses.of(graph, frozenset(loose_outputs))
    nodes = (_own(n, graph, uses, table, choose) or n for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _own(node: Node, graph: Graph, uses: Uses, table: DeviceTable, choose: Choose) -> Comp | None:
    result = is_product(node) and graph.buffers[node.outputs[0]]
    if not result or result.name not in uses.held or not _only_result_is_in_the_way(node, result):
        return None
    comp = product_comp(node, graph.buffers)
    if comp is None or _others_multiply_it(result.name, node, graph):
        return None
    accesses = addressed(comp, graph.buffers, graph.hints)
    form = contraction_of(accesses)
    chosen = form and choose(accesses, form, graph.buffers, table, graph.hints)
    fits = isinstance(chosen, ProductSchedule)
    return comp if fits and _is_as_fast(node, result, chosen, graph, table) else None


def _only_result_is_in_the_way(node: Extern, result: Buffer) -> bool:
    dtype = result.dtype
    aligned = all(is_aligned(view, dtype) for view in operands(node))
    return dtype.is_low_precision and aligned and not is_aligned(whole(result), dtype)


def _others_multiply_it(name: str, node: Extern, graph: Graph) -> bool:
    """They want its rows aligned."""
    return any(is_product(n) and name in n.reads for n in graph.nodes if n is not node)


def _is_as_fast(
    node: Extern, result: Buffer, chosen: ProductSchedule, graph: Graph, table: DeviceTable
) -> bool:
    *batch, rows, columns = (hint(n, graph.hints) for n in result.shape)
    work = Work(product(batch), rows, columns, hint(operands(node)[0].shape[-1], graph.hints))
    copy_s = 2 * work.batch * rows * columns * result.dtype.bytes / table.dram_bytes_per_s
    return kernel_s(work, chosen, table) <= library_s(work, table) + copy_s

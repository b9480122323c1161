"""Products of float32 matrices on a CPU: library calls become Comps (schedule/cpu_product.py), and
take in what follows them.

    before: t = addmm(b, x, w);  y = relu(t), t used nowhere else
    after:  comp [m, n, k] { store y[m, n] relu(sum over k of x[m, k] * w[k, n] + b[n]) }

Measured on Zen 5 against MKL, which eager calls: 2.2-2.6 times as fast for 16 to 1500 rows, with
operands as they are or transposed, and as exact; against oneDNN 1.0-1.3 times, which is less exact.
For fewer than five rows the time is that of reading the matrix, and MKL is ahead.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.core import dtypes
from torchweld.core.device import DeviceTable
from torchweld.ir.nodes import Comp, Graph, Node, Reduce
from torchweld.ir.size import hint
from torchweld.kernels.epilogues import with_readers
from torchweld.kernels.products_comp import is_product, operands_of, product_comp
from torchweld.plan.decisions import Plan
from torchweld.schedule.access import addressed
from torchweld.schedule.cpu_product import cpu_product

_FEWEST = 5  # rows and columns of the result; below, the library
_LEAST_WORK = 1 << 19  # multiply-adds


def own_products(plan: Plan, table: DeviceTable) -> Plan:
    """`plan` with products made by kernels of our own where those are faster."""
    if table.kind != "cpu":
        return plan
    graph = plan.graph
    made = {n.name: comp for n in graph.nodes if (comp := _made(n, graph))}
    return with_readers(plan, made, _runs, table) if made else plan


def _made(node: Node, graph: Graph) -> Comp | None:
    """The kernel in the place of a library call."""
    if not is_product(node) or not _suits(node, graph):
        return None
    comp = product_comp(node, graph.buffers)
    marked = comp and _marked(comp)
    return marked if marked and _runs(marked, graph) else None


def _suits(node: Node, graph: Graph) -> bool:
    """Float32, worth a kernel, and not a matrix times a few vectors."""
    left, right = operands_of(node)
    if graph.buffers[left.buffer].dtype != dtypes.f32 or len(left.shape) != len(right.shape):
        return False
    m, k, n = (hint(s, graph.hints) for s in (*left.shape[-2:], right.shape[-1]))
    return min(m, n) >= _FEWEST and m * n * k >= _LEAST_WORK


def _marked(comp: Comp) -> Comp:
    """`comp` with the mark that tells its factors from what a user multiplied."""
    total = next(i for i in comp.body if isinstance(i, Reduce))
    factors = comp.body[total.args[0]].args
    body = (replace(i, exact=True) if v in factors else i for v, i in enumerate(comp.body))
    return replace(comp, body=tuple(body))


def _runs(comp: Comp, graph: Graph) -> bool:
    return cpu_product(addressed(comp, graph.buffers, graph.hints), graph.hints) is not None

"""Products of matrices on a CPU: library calls become Comps (templates/gemm/cpu/schedule.py), and take in
what follows them. Those of float32, and of 16-bit types that oneDNN has no instructions for.

    before: t = addmm(b, x, w);  y = relu(t), t used nowhere else
    after:  comp [m, n, k] { store y[m, n] relu(sum over k of x[m, k] * w[k, n] + b[n]) }

Measured on Zen 5 against MKL, which eager calls: 2.2-2.6 times as fast for 16 to 1500 rows, with
operands as they are or transposed, and as exact; against oneDNN 1.0-1.3 times, which is less exact.
Up to eight rows the time is that of reading the matrix, which is done once: 1.4-3 times MKL's rate
for two rows and more.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod

from torchweld.capture.torch_private import onednn_multiplies
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.access import addressed
from torchweld.ir.nodes import Comp, Graph, Load, Node, Reduce, needed
from torchweld.ir.size import hint
from torchweld.plan.decisions import Plan
from torchweld.plan.epilogues import with_readers
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import is_product, operands_of, product_comp
from torchweld.templates.gemm.cpu.schedule import cpu_product

_FEWEST_UNKNOWN = 5
_MOST_NARROW = 4  # in 16-bit types that oneDNN has instructions for: its calls take 10 us longer
_FEWEST_NARROW = 2  # rows and columns of the result in 16-bit types
_LEAST_WORK = 1 << 19  # multiply-adds


def own_products(plan: Plan, table: Target) -> Plan:
    """`plan` with products made by kernels of our own where those are faster."""
    graph = plan.graph
    made = {n.name: comp for n in graph.nodes if (comp := _made(n, graph))}
    return with_readers(plan, made, _runs, table) if made else plan


def _made(node: Node, graph: Graph) -> Comp | None:
    """The kernel in the place of a library call."""
    if not is_product(node) or not _suits(node, graph):
        return None
    comp = product_comp(node, graph.buffers)
    if comp and _is_slow_row(node, graph):
        return comp
    marked = comp and _marked(comp)
    return marked if marked and _runs(marked, graph) else None


def _suits(node: Node, graph: Graph) -> bool:
    """Of a type that the library is slow for, worth a kernel, and not a matrix times a few
    vectors."""
    left, right = operands_of(node)
    known = all(isinstance(s, int) for s in (*left.shape[:-1], right.shape[-1]))
    fewest = _fewest(graph.buffers[left.buffer].dtype, known)
    if len(left.shape) != len(right.shape):
        return False
    if fewest is None:
        few = known and len(left.shape) == 2 and 0 not in (*left.shape, *right.shape)
        return few and min(left.shape[0], right.shape[1]) <= _MOST_NARROW
    if _is_slow_row(node, graph):
        return True
    *batch, m, k, n = (hint(s, graph.hints) for s in (*left.shape, right.shape[-1]))
    if not any(right.strides[:-2]):  # the same matrix for all of them
        m, batch = m * prod(batch), []
    return min(m, n) >= fewest and m * n * k >= _LEAST_WORK


def _is_slow_row(node: Node, graph: Graph) -> bool:
    """A 16-bit row times a matrix whose columns lie apart: ATen's loop takes 20 ms where memory
    would take one. A kernel like any other that sums does it."""
    left, right = operands_of(node)
    narrow = graph.buffers[left.buffer].dtype in narrow_types()
    return narrow and left.shape[-2] == 1 and right.strides[-2] != 1


def _fewest(dtype: DType, known: bool) -> int | None:
    """Rows and columns from which on kernels of our own are faster; None: never. Those for few rows
    are for sizes that are `known`."""
    if dtype == dtypes.f32:
        return 1 if known else _FEWEST_UNKNOWN
    return _FEWEST_NARROW if dtype in narrow_types() else None


@cache
def narrow_types() -> frozenset[DType]:
    """16-bit types that oneDNN multiplies without instructions for them."""
    narrow = (dtypes.f16, dtypes.bf16)
    return frozenset(d for d in narrow if not onednn_multiplies(dtypes.to_torch(d)))


def _marked(comp: Comp) -> Comp | None:
    """`comp` with the mark that tells its factors from what a user multiplied. None for a depth of
    one, which leaves nothing to add up."""
    total = next((i for i in comp.body if isinstance(i, Reduce)), None)
    if total is None:
        return None
    behind = needed(comp.body, total.args)
    body = (
        replace(i, exact=True) if v in behind and isinstance(i, Load) else i
        for v, i in enumerate(comp.body)
    )
    return replace(comp, body=tuple(body))


def _runs(comp: Comp, graph: Graph) -> bool:
    return cpu_product(addressed(comp, graph.buffers, graph.hints), graph.hints) is not None

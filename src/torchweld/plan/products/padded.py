"""Factors that the caller holds in rows that are no multiples of 16 bytes: copies whose rows are.

    extern dw = mm(dy.T, x)          ->  comp x_rows[i, j] = x[i, j], rows 64 elements apart, not 63
                                         extern dw = mm(dy.T, x_rows)

Before products join anything, each is priced with its factors as they lie and in copies, by the
library and by a kernel of ours, whichever is faster. Copies are made where the products that read
them gain at least twice what they cost. TMA and Triton read rows to their end, whatever the length:
nothing beyond it is read. What the library can be helped to without a kernel of ours is left to
`layout/rows.py`.

H100, bf16, us: the gradient of a weight, 128 x 63 x 262144, by Triton 281 as it lies and 42.8 with
rows apart, by the library 84 and 85.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from torchweld.core.options import Options
from torchweld.ir.nodes import Extern, Graph
from torchweld.layout.rows import (
    MARGIN,
    Rows,
    Uses,
    copy_s,
    is_row_product,
    rows_to_copy,
    with_rows,
)
from torchweld.plan.products.kernel import Judge, Kernel
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import product_comp
from torchweld.templates.gemm.price import Prices
from torchweld.templates.template import Choose


def pad_products(
    graph: Graph, table: Target, options: Options, choose: Choose, loose: Iterable[int] = ()
) -> Graph:
    """`graph` with copies of unaligned factors for the products that gain by them. `loose`:
    positions of outputs that may have any strides."""
    if options.numerics != "contract" or not options.fuse:
        return graph
    uses = Uses.of(graph, frozenset(loose))
    found = (_gain(n, graph, uses, table, choose) for n in graph.nodes if is_row_product(n))
    return with_rows(graph, _worth_it([g for g in found if g], graph, table), uses)


@dataclass(frozen=True, slots=True)
class _Gain:
    """What a product gains by copies of these buffers, in seconds."""

    rows: Mapping[str, Rows]
    seconds: float


def _gain(
    node: Extern, graph: Graph, uses: Uses, table: Target, choose: Choose
) -> _Gain | None:
    rows = rows_to_copy(node, graph, uses)
    if not rows:
        return None
    alone = replace(graph, nodes=(node,))
    copied = with_rows(alone, rows, uses)
    seconds = product_s(alone, table, choose) - product_s(copied, table, choose)
    return _Gain(rows, seconds) if seconds > 0 else None


def product_s(graph: Graph, table: Target, choose: Choose) -> float:
    """Of the one product of `graph`, without the copies beside it, as whatever makes it fastest."""
    (node,) = filter(is_row_product, graph.nodes)
    comp = product_comp(node, graph.buffers)
    kernel = comp and Judge(graph, table, choose).kernel(comp)
    own_s = kernel.seconds if isinstance(kernel, Kernel) else inf
    return min(own_s, Prices(graph, table).call_s(node))


def _worth_it(gains: list[_Gain], graph: Graph, table: Target) -> dict[str, Rows]:
    """The copies to make: again and again those of one product that gain most, with what all others
    gain that need no more."""
    chosen: dict[str, Rows] = {}

    def net_s(names: frozenset[str]) -> float:
        there = names | chosen.keys()
        gain_s = sum(g.seconds for g in gains if g.rows.keys() <= there)
        return gain_s - MARGIN * sum(copy_s(n, graph, table) for n in names - chosen.keys())

    while gains:
        best = max(gains, key=lambda g: net_s(frozenset(g.rows)))
        if net_s(frozenset(best.rows)) < 0:
            break
        chosen |= best.rows
        gains = [g for g in gains if not g.rows.keys() <= chosen.keys()]
    return chosen

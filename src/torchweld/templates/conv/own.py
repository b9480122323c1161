"""How long a convolution takes by the template for images (templates/gemm/hopper/images.py)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from torchweld.ir.access import addressed
from torchweld.ir.contraction import contraction_of
from torchweld.ir.nodes import Graph, Node
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import convolution_comp
from torchweld.templates.gemm.hopper.schedule import candidates, supports
from torchweld.templates.gemm.price import Prices


def own_s(nodes: Sequence[Node], graph: Graph, table: Target) -> float:
    """Of a convolution by the template for images, after copies; infinite where it does not make
    it."""
    *copies, last = nodes
    comp = convolution_comp(last, graph.buffers)
    accesses = comp and addressed(comp, graph.buffers)
    found = accesses and contraction_of(accesses)
    if not found or supports(accesses, found, table) is not None:
        return inf
    chosen = next(candidates(accesses, found, table), None)
    if chosen is None:
        return inf
    prices = Prices(graph, table)
    return prices.fused_s(accesses, found, chosen) + sum(map(prices.comp_s, copies))

"""How long a convolution takes by the template for images (templates/gemm/hopper/images.py), and
which groups want it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from torchweld.ir.access import addressed
from torchweld.ir.contraction import contraction_of
from torchweld.ir.nodes import Graph, Node
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, convolution_comp
from torchweld.templates.gemm.hopper.schedule import candidates, supports
from torchweld.templates.gemm.price import Prices, has_grouped_kernels

# Channels of a wider group, and results: a step of the depth, and columns of a tile. H100, us, 16
# images, 3 x 3, cuDNN and ours with 32, 64 and 128: 32 groups of 4, 56 x 56 26.2, 30.2, 21.8, 25.8;
# of 8, 28 x 28 17.5, 15.3, 12.0, 15.5; of 16, 14 x 14 9.5, 9.9, 8.7, 10.2; of 32, 7 x 7 6.6, 6.6,
# 6.0, 7.6; 5 groups of 24, 28 x 28 76.7, as they are 22.9, as one of 120 17.8.
_WIDE, _WIDEST = 64, 128
_NARROW = 32  # at most, of what gains by more than that


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


def joined_groups(call: Call) -> int:
    """How many groups become one: as many as are not wide, else the fewest that are not narrow."""
    width = max(call.channels, call.results)
    counts = [n for n in range(1, call.groups + 1) if call.groups % n == 0]
    fitting = max((n for n in counts if n * width <= _WIDE), default=1)
    if fitting > 1 or width > _NARROW:
        return fitting
    return next((n for n in counts if n > 1 and n * width <= _WIDEST), 1)


def is_permuted(call: Call | None) -> bool:
    """Whether narrow groups of a convolution with channels last are brought to another layout by
    the library, slowly: it has no kernel for all of them. H100, us, eager and with channels last:
    5 groups of 12 to 24, 3 x 3 in steps of two, 64 images of 101 x 77, bf16 375 and 654; 4 groups
    of 4 to 8, 3 x 3 x 3, float32 177 and 221; 16 groups of 6, 3 x 3 in steps of two, the
    transformation alone, bf16 20 and 82."""
    if call is None or call.transposed or call.groups == 1 or call.channels == 1:
        return False
    narrow = call.channels < _NARROW and prod(call.window) > 1
    return narrow and not has_grouped_kernels(call)

"""Predicted seconds of products on a CPU: by each library, and in a kernel of our own."""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir.nodes import Buffer, Comp
from torchweld.targets.target import Target
from torchweld.templates.gemm.cpu.schedule import CpuProduct
from torchweld.templates.pointwise_reduce.price import cost


def product_s(
    product: CpuProduct,
    comp: Comp,
    buffers: Mapping[str, Buffer],
    hints: Mapping[str, int],
    target: Target,
) -> float:
    """Of our own kernel."""
    return cost(comp, buffers, hints, target).seconds

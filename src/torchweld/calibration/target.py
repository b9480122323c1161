"""The target of the device at hand, with rates that were measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchweld.calibration.convolutions import measured_convolutions
from torchweld.calibration.gemm import measured_rates
from torchweld.calibration.halves import measured_halves
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.options import Options
from torchweld.ir.nodes import Graph
from torchweld.plan.convolutions import has_two_ways
from torchweld.targets.target import Target
from torchweld.templates.conv.price import has_own_convolutions
from torchweld.templates.gemm.comp import is_product, left_operand


def calibrated(target: Target, graph: Graph, options: Options) -> Target:
    """`target` with measured rates in the place of the priors that it comes with, if `graph`, as
    lowered, has anything that they decide: products, and float32 convolutions, on a CPU."""
    if not _is_measured(target, options):
        return target
    target = with_rates(target, _of_products(graph), options)
    if not has_own_convolutions(target) or not _has_convolution(graph):
        return target
    found = measured_convolutions(target, options) or {}
    return replace(target, rates={**target.rates, **found})


def with_rates(target: Target, kinds: Sequence[DType], options: Options) -> Target:
    """`target` with the measured rates of products of such floats. Kernels of ours multiply those
    of 16 bits in float32."""
    if not kinds or not _is_measured(target, options):
        return target
    found = measured_rates(target, options)
    if found is None:  # of 16 bits alone they would be compared with priors of other processors
        return target
    for kind in kinds:
        if kind.is_low_precision:
            found = found | (measured_halves(dtypes.to_torch(kind), options) or {})
    return replace(target, rates={**target.rates, **found})


def _is_measured(target: Target, options: Options) -> bool:
    return target.kind == "cpu" and options.calibrate != "off"


def _of_products(graph: Graph) -> list[DType]:
    """The types of float32 and 16-bit factors, each once."""
    factors = (left_operand(n).buffer for n in graph.nodes if is_product(n))
    kinds = dict.fromkeys(graph.buffers[name].dtype for name in factors)
    return [kind for kind in kinds if kind == dtypes.f32 or kind.is_low_precision]


def _has_convolution(graph: Graph) -> bool:
    """Whether rates decide about one."""
    return any(has_two_ways(n, graph) for n in graph.nodes)

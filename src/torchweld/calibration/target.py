"""The target of the device at hand, with rates that were measured on it."""

from __future__ import annotations

from dataclasses import replace

from torchweld.calibration.convolutions import measured_convolutions
from torchweld.calibration.gemm import measured_rates
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import Graph
from torchweld.plan.convolutions import has_two_ways
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import is_product


def calibrated(target: Target, graph: Graph, options: Options) -> Target:
    """`target` with measured rates in the place of the priors that it comes with, if `graph`, as
    lowered, has anything that they decide: float32 products and convolutions on a CPU."""
    if target.kind != "cpu" or options.calibrate == "off":
        return target
    found = {**target.rates}
    if _has_product(graph):
        found |= measured_rates(target, options) or {}
    if "avx512" in target.features and _has_convolution(graph):
        found |= measured_convolutions(target, options) or {}
    return replace(target, rates=found)


def _has_product(graph: Graph) -> bool:
    return any(
        is_product(n) and graph.buffers[n.outputs[0]].dtype == dtypes.f32 for n in graph.nodes
    )


def _has_convolution(graph: Graph) -> bool:
    """Whether rates decide about one."""
    return any(has_two_ways(n, graph) for n in graph.nodes)

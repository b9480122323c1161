"""The target of the device at hand, with rates that were measured on it."""

from __future__ import annotations

from dataclasses import replace

from torchweld.calibration.gemm import measured_rates
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import Graph
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import is_product


def calibrated(target: Target, graph: Graph, options: Options) -> Target:
    """`target` with measured rates in the place of the priors that it comes with, if `graph`, as
    lowered, has anything that they decide: float32 products on a CPU."""
    if target.kind != "cpu" or options.calibrate == "off" or not _has_product(graph):
        return target
    rates = measured_rates(target, options)
    return replace(target, rates={**target.rates, **rates}) if rates else target


def _has_product(graph: Graph) -> bool:
    return any(
        is_product(n) and graph.buffers[n.outputs[0]].dtype == dtypes.f32 for n in graph.nodes
    )

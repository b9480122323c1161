"""What a kernel should take, and what limits it: from its work and the device's roofline."""

from __future__ import annotations

from dataclasses import replace

from torchweld.observe.predict.flops import SCATTERED, TURNED
from torchweld.observe.predict.work import GENERATED, Work, rate_name
from torchweld.observe.record.profile import Roofline
from torchweld.targets.target import Target
from torchweld.templates.gemm.price import Work as Gemm
from torchweld.templates.gemm.price import library_s
from torchweld.templates.pointwise_reduce.price import cost

_SIXTEEN_BITS = ("bfloat16", "float16")


def limits_us(work: Work, line: Roofline) -> dict[str, float]:
    """The least time that each limit of the device allows, by the regime's name."""
    cached = work.bytes <= line.cache_bytes
    rate = line.cache_bytes_per_s if cached else line.memory_bytes_per_s
    flops_per_s = line.flops_per_s(work.dtype, work.product)
    return {
        "launch": launch_us(work, line),
        "memory": work.bytes / rate * 1e6,
        "compute": work.flops / flops_per_s * 1e6,
    }


def launch_us(work: Work, line: Roofline) -> float:
    """What the call costs before it does anything."""
    if work.operator.startswith(GENERATED):
        return line.generated_launch_us
    return line.operator_us.get(work.operator, line.launch_us)


def regime_of(work: Work, line: Roofline) -> str:
    """launch, memory or compute: the limit that takes the longest."""
    limits = limits_us(work, line)
    return max(limits, key=limits.get)


def least_us(work: Work, line: Roofline) -> float:
    """The least time of `work`: the largest of its limits."""
    return max(limits_us(work, line).values())


def predict_us(work: Work, line: Roofline, table: Target) -> float:
    """What one call should take. `table`: the planner's row with the roofline's rates. The
    planner's own model prices what it knows; products and library calls are launched and then run
    at the roofline. Both at the rate of their operator, where that was measured."""
    limits = limits_us(work, line)
    start_us = limits["launch"] + work.fresh_bytes / 1e6 * line.fresh_us_per_mb
    rate = _rate(work, line)
    if work.comps:
        table = replace(table, fma_per_s=rate / 2) if rate else table
        busy = [cost(c, g.buffers, g.hints, table).seconds - table.launch_s for c, g in work.comps]
        return start_us + max(sum(busy), _apart_s(work, line)) * 1e6
    if work.gemm and table.kind == "cuda" and work.dtype in _SIXTEEN_BITS:
        return start_us + _in_tiles_us(work, line, table)
    compute_us = work.flops / rate * 1e6 if rate else limits["compute"]
    return start_us + max(limits["memory"], compute_us)


def _rate(work: Work, line: Roofline) -> float | None:
    """Of its operator; for a product's gradient, where that is not measured, the product's."""
    rates, name = line.operator_flops_per_s, rate_name(work)
    forward = name.replace("_backward", "") if work.product else name
    return rates.get(name) or rates.get(forward)


def _apart_s(work: Work, line: Roofline) -> float:
    """Of results whose operands lie in memory otherwise than they do."""
    rates = line.operator_flops_per_s
    slow = (SCATTERED, work.scattered), (TURNED, work.turned)
    return max(count / rates.get(f"{name} {work.dtype}", float("inf")) for name, count in slow)


def _in_tiles_us(work: Work, line: Roofline, table: Target) -> float:
    """Of a product on a GPU's tensor cores, which work on tiles: the last wave is seldom full, and
    short depths do not fill the pipeline. A convolution with its channels last is one."""
    fastest = line.flops_per_s(work.dtype, True)
    device = replace(table, tensor_fma_per_s=fastest / 2, launch_s=0.0)
    return max(library_s(Gemm(*work.gemm), device), work.flops / fastest) * 1e6

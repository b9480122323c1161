"""What a kernel should take, and what limits it: from its work and the device's roofline."""

from __future__ import annotations

from torchweld.core.device import DeviceTable
from torchweld.plan.cost import cost
from torchweld.profiling.data import Roofline
from torchweld.profiling.work import Work

_IN_CACHE = 2  # a kernel whose bytes are so many times below the cache's finds them there


def limits_us(work: Work, line: Roofline) -> dict[str, float]:
    """The least time that each limit of the device allows, by the regime's name."""
    cached = work.bytes * _IN_CACHE <= line.cache_bytes
    rate = line.cache_bytes_per_s if cached else line.memory_bytes_per_s
    flops_per_s = line.flops_per_s(work.dtype, work.product)
    return {
        "launch": line.product_launch_us if work.product else line.launch_us,
        "memory": work.bytes / rate * 1e6,
        "compute": work.flops / flops_per_s * 1e6,
    }


def regime_of(work: Work, line: Roofline) -> str:
    """launch, memory or compute: the limit that takes the longest."""
    limits = limits_us(work, line)
    return max(limits, key=limits.get)


def least_us(work: Work, line: Roofline) -> float:
    return max(limits_us(work, line).values())


def predict_us(work: Work, line: Roofline, table: DeviceTable) -> float:
    """What one call should take. `table`: the planner's row with the roofline's rates. The
    planner's own model prices what it knows; a library call is launched and then runs at the
    roofline."""
    if work.comps:
        busy = [cost(c, g.buffers, g.hints, table).seconds - table.launch_s for c, g in work.comps]
        return line.launch_us + sum(busy) * 1e6
    limits = limits_us(work, line)
    return limits["launch"] + max(limits["memory"], limits["compute"])

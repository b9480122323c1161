"""What varies along the lane of a pointwise kernel alone is worked out once for each thread.

    for pixels: for channels: (x - mean) * rsqrt(var + eps)
    ->  for channels: H = rsqrt(var + eps);   for pixels: for channels: (x - mean) * H

Images with channels innermost have short lanes, along which a norm's factors are the same for every
pixel; roots and divisions there take longer than all else.
"""

from __future__ import annotations

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.ir.nodes import Value, needed, operands, store_operands
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.phases import told
from torchweld.templates.pointwise_reduce.cpu.stages import own_cost
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define

MOST_BYTES = 1 << 14  # of an array on the stack
_WORTH = 1.5  # multiply-adds; loading the result again is one


def emit_fixed(k: Kernel, e: Emitter, texts: Texts) -> None:
    """Arrays of such values, in `texts` from then on."""
    values = fixed_values(k)
    if not values:
        return
    lane = k.schedule.nest[-1]
    name, local = k.names[lane], dict(texts)
    for value in values:
        kind = x.array_type(k.body[value].dtype)
        e.line(f"alignas(64) {kind} h{value}[{k.comp.extent(lane)}];")
    e.line("#pragma omp simd")
    with e.block(f"for (int64_t {name} = 0; {name} < {k.extent(lane)}; ++{name})"):
        for value in sorted(needed(k.body, values)):
            define(k, e, value, local)
        for value in values:
            e.line(f"h{value}[{name}] = v{value};")
    texts.update({v: x.from_memory(f"h{v}[{name}]", k.body[v].dtype) for v in values})


def fixed_values(k: Kernel) -> list[Value]:
    """Those that are worth an array, and that something else uses."""
    if not _has_fixed_lane(k):
        return []
    alone = {frozenset(), frozenset(k.schedule.nest[-1:])}
    fixed = {v for v, axes in enumerate(k.stages.axes) if axes in alone}
    others = (v for v in range(len(k.body)) if v not in fixed)
    used = {u for v in others for u in operands(k.body[v])}
    used |= {u for s in k.comp.stores for u in store_operands(s)}
    wanted = sorted(v for v in used & fixed - told(k) if k.stages.axes[v])
    return [v for v in wanted if _cost(k, v) >= _WORTH]


def _has_fixed_lane(k: Kernel) -> bool:
    """Whether each thread goes along a lane of known length again and again."""
    schedule = k.schedule
    if k.frame.columns or not schedule.nest or schedule.distribute != "rows":
        return False
    *across, lane = schedule.nest
    extent, blocks = k.comp.extent(lane), dict(schedule.outer)
    short = isinstance(extent, int) and extent * 8 <= MOST_BYTES
    return short and bool(blocks) and (bool(across) or lane not in blocks)


def _cost(k: Kernel, value: Value) -> float:
    return sum(own_cost(k.body[v]) for v in needed(k.body, (value,)))

"""The loop over turns of a pattern (phases.py).

    for w: { i = 2 * w: v = row_inside ? g[row][w] : 0 } ...
    ->  const float* g0 = row_inside ? &g[row][0] : zeros;   for w: { v = g0[w] } ...

Guards that are the same along the lane choose a pointer before it, as in cases.py: copies of the
loop for each answer would be too many, as rows have phases too.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir.nodes import Index, Load, Op, Reduce, Scan, Value, needed
from torchweld.templates.pointwise_reduce.cpu.cases import MOST_BYTES, declare_fill
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.phases import TURN, Phases, phases
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define_with_parts, element


def declare_turns(k: Kernel, e: Emitter) -> None:
    """What guarded loads leave where their guard is false, for a whole lane."""
    pattern = phases(k)
    if pattern is None:
        return
    for name, load in {_fill(k, v, pattern): k.body[v] for v in _chosen(k, pattern)}.items():
        declare_fill(e, name, load, str(pattern.high))


def turns_of_block(e: Emitter, pattern: Phases, low: str, high: str) -> tuple[str, str]:
    """First and last + 1 of the turns that are wholly within a block of the lane."""
    count = pattern.count
    first, last = f"({low} + {count - 1}) / {count}", f"{high} / {count}"
    e.line(f"int64_t from = {first}, to = {last};")
    e.line(f"from = from > {pattern.low} ? from : {pattern.low};")
    e.line(f"to = to < {pattern.high} ? to : {pattern.high};")
    e.line("to = to > from ? to : from;")
    return "from", "to"


def known_in(k: Kernel, e: Emitter, pattern: Phases, phase: int, texts: Texts) -> Texts:
    """Texts of what is known in a phase, guarded loads among them; declares their pointers."""
    known = dict(pattern.known[phase])
    for value in _chosen(k, pattern):
        load = k.body[value]
        if _never(k, load.guard, known):
            known[value] = x.literal(load.fill, load.dtype)
            continue
        name, local = f"g{value}_{phase}", texts | pattern.known[phase]
        e.line(f"const {x.memory_type(load.dtype)}* {name};")
        with e.block():
            define_with_parts(k, e, load.guard, local)
            place = f"&{_start(k, value, pattern, phase, local)}"
            e.line(f"{name} = {local[load.guard]} ? {place} : {_fill(k, value, pattern)};")
        known[value] = f"{name}[{TURN}]"
    return known


def name_loads(k: Kernel, e: Emitter, texts: Texts) -> None:
    """Within the loop: what pointers read as values, read whether a choice takes it or not."""
    for value in k.accesses.loads:
        if texts.get(value, "").startswith("g"):
            e.line(f"const {x.ctype(k.body[value].dtype)} v{value} = {texts[value]};")
            texts[value] = f"v{value}"


def _start(k: Kernel, value: Value, pattern: Phases, phase: int, texts: Texts) -> str:
    """The element that a load would read in turn 0."""
    return element(k, k.accesses.loads[value], texts | pattern.first[phase])


def _chosen(k: Kernel, pattern: Phases) -> list[Value]:
    """Guarded loads whose guard is the same along the lane in each phase, of elements that are
    adjacent from turn to turn; of lanes of which a row of fill values is short."""
    loads = ((v, k.body[v]) for v in k.accesses.loads)
    return [
        v
        for v, load in loads
        if load.guard is not None
        and load.dtype != dtypes.b1
        and pattern.high * load.dtype.bytes <= MOST_BYTES
        and _stays(k, load.guard, pattern)
        and _is_adjacent(k, v, pattern)
    ]


def _stays(k: Kernel, guard: Value, pattern: Phases) -> bool:
    """Whether it follows from what is the same along the lane."""
    lane = k.schedule.nest[-1]
    for value in needed(k.body, (guard,), stop=pattern.steady):
        instr = k.body[value]
        if lane not in k.stages.axes[value] or value in pattern.steady:
            continue
        if isinstance(instr, (Index, Load, Reduce, Scan)):
            return False
    return True


def _is_adjacent(k: Kernel, value: Value, pattern: Phases) -> bool:
    """One place that the position decides goes on by one element from turn to turn."""
    access, lane = k.accesses.loads[value], k.schedule.nest[-1]
    along = [(place, step) for place, step in access.refs if lane in k.stages.axes[place]]
    if access.offset.coefficient(lane) != 0 or len(along) != 1:
        return False
    ((place, step),) = along
    return step == 1 and place in pattern.by_one


def _never(k: Kernel, guard: Value, known: Mapping[Value, str]) -> bool:
    if guard in known:
        return known[guard] == "false"
    instr = k.body[guard]
    both = isinstance(instr, Op) and instr.name == "bit_and"
    return both and any(_never(k, v, known) for v in instr.args)


def _fill(k: Kernel, value: Value, pattern: Phases) -> str:
    load, others = k.body[value], _chosen(k, pattern)
    like = (v for v in others if (k.body[v].fill, k.body[v].dtype) == (load.fill, load.dtype))
    return f"f{next(like)}"

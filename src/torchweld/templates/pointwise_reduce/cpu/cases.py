"""Conditions that do not change along the lane, decided before it.

    for i: v = in_x ? x[..i] : 0;  w = in_z ? z[..i] : 0;  y[..i] = in_x ? v : w
    ->  if (in_x) for i: y[..i] = x[..i];   else for i: ...
    for i: inside = 0 < i && i < 9 && 0 < row && row < 9;  v = inside ? x[..i] : 0;  y[..i] = v
    ->  if (0 < row && row < 9) for i: inside = 0 < i && i < 9; ...   else for i: y[..i] = 0

What concatenates images, or reads them beside their edges, asks where it is in rows and channels,
not in the lane. gcc takes guarded loads one by one unless it knows the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir.affine import axis
from torchweld.ir.nodes import Load, Op, Value, needed, operands
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.phases import phases
from torchweld.templates.pointwise_reduce.cpu.segments import segments
from torchweld.templates.pointwise_reduce.cpu.values import Texts, element

MOST = 4  # each case is another copy of the loop
MOST_BYTES = 1 << 14  # of a lane of fill values on the stack
_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_LOGIC: Mapping[str, Callable[..., bool]] = {
    "bit_and": lambda a, b: a and b,
    "bit_or": lambda a, b: a or b,
    "logical_not": lambda a: not a,
}


@dataclass(frozen=True, slots=True)
class Case:
    """`asked`: what a few conditions are here; `known`: what all are that follow from them. Nothing
    is asked where too much would have to be."""

    asked: dict[Value, bool]
    known: dict[Value, bool]


def declare_fills(k: Kernel, e: Emitter) -> None:
    """A lane of each value that guarded loads leave where nothing is known."""
    if not k.schedule.nest or phases(k) or all(case.asked for case in _all_cases(k)):
        return
    lane = k.schedule.nest[-1]
    for name, load in {_fill(k, v): k.body[v] for v in _fillable(k)}.items():
        declare_fill(e, name, load, k.extent(lane))


def declare_fill(e: Emitter, name: str, load: Load, length: str) -> None:
    """So many elements of what a guarded load leaves where its guard is false."""
    e.line(f"alignas(64) {x.memory_type(load.dtype)} {name}[{length}];")
    value = x.literal(load.fill, load.dtype)
    e.line(f"for (int64_t l = 0; l < {length}; ++l) {name}[l] = {value};")


def filled_loads(k: Kernel, e: Emitter, values: tuple[Value, ...], texts: Texts) -> Texts:
    """Loads among `values` as reads of where a guard says: their buffer, or a lane of the fill."""
    lane, found = k.schedule.nest[-1], {}
    for value in (v for v in values if v in _fillable(k)):
        load, access = k.body[value], k.accesses.loads[value]
        start = replace(access, offset=access.offset + axis(lane) * -1)
        place = f"{texts[load.guard]} ? &{element(k, start, texts)} : {_fill(k, value)}"
        e.line(f"const {x.memory_type(load.dtype)}* const g{value} = {place};")
        found[value] = f"g{value}[{k.names[lane]}]"
    return found


def _all_cases(k: Kernel) -> list[Case]:
    return [case for loop in k.stages.loops for case in cases(k, loop)]


def _fillable(k: Kernel) -> list[Value]:
    """Guarded loads of adjacent elements, of a lane of known length, whose guard is the same along
    it."""
    lane = k.schedule.nest[-1]
    extent, found = k.comp.extent(lane), []
    for value, access in k.accesses.loads.items():
        load, adjacent = k.body[value], access.offset.coefficient(lane) == 1
        if load.guard is None or _changes(k, load.guard) or load.dtype == dtypes.b1:
            continue
        short = isinstance(extent, int) and extent * load.dtype.bytes <= MOST_BYTES
        if short and adjacent and not access.refs and k.schedule.abreast is None:
            found.append(value)
    return found


def _fill(k: Kernel, value: Value) -> str:
    load = k.body[value]
    same = [v for v in _fillable(k) if (k.body[v].fill, k.body[v].dtype) == (load.fill, load.dtype)]
    return f"f{same[0]}"


def cases(k: Kernel, values: tuple[Value, ...]) -> tuple[Case, ...]:
    """Copies of the loop that computes `values`; none if no load in it has such a guard, or one
    whose other conditions the segments of the lane know (segments.py)."""
    guards = {
        i.guard for v in values if isinstance(i := k.body[v], Load) and i.guard is not None
    }
    fixed = any(not _changes(k, g) for g in guards)
    told = _told(k)
    parts = {g: _conjuncts(k, g, told) for g in guards if _changes(k, g)}
    left = (all(v in told or _is_fixed(k, v) for v in leaves) for leaves in parts.values())
    if not guards or not (fixed or any(left)):
        return ()
    wanted = {u for v in values for u in operands(k.body[v]) if _is_fixed(k, u)}
    order = [v for v in sorted(needed(k.body, wanted)) if _is_fixed(k, v)]
    asked = [v for v in order if _derived(k, v, order) is None]
    if not asked:
        return ()
    if 2 ** len(asked) > MOST:  # within an image, and anywhere else
        outside = {g: False for g, leaves in parts.items() if leaves.issuperset(asked)}
        return _case(k, dict.fromkeys(asked, True), order), Case({}, outside)
    return tuple(
        _case(k, dict(zip(asked, answer)), order)
        for answer in itertools.product((True, False), repeat=len(asked))
    )


def _conjuncts(k: Kernel, value: Value, told: frozenset[Value]) -> frozenset[Value]:
    """The conditions that must all hold for `value` to hold, those of `told` as they are."""
    instr = k.body[value]
    if value not in told and isinstance(instr, Op) and instr.name == "bit_and":
        return frozenset().union(*(_conjuncts(k, a, told) for a in instr.args))
    return frozenset((value,))


def _told(k: Kernel) -> frozenset[Value]:
    """The conditions that each segment of the lane knows."""
    known = [frozenset(piece.known) for piece in segments(k)]
    return frozenset.intersection(*known) if known else frozenset()


def _is_fixed(k: Kernel, value: Value) -> bool:
    return k.body[value].dtype == dtypes.b1 and not _changes(k, value)


def _changes(k: Kernel, value: Value) -> bool:
    """Whether a value varies within the innermost loop."""
    return not k.stages.axes[value].isdisjoint((k.schedule.nest[-1], k.schedule.abreast))


def _case(k: Kernel, answers: dict[Value, bool], order: list[Value]) -> Case:
    known = dict(answers)
    for value in order:
        if value not in known:
            rule, args = _derived(k, value, order)
            known[value] = rule(*(known[a] for a in args))
    return Case(answers, known)


def _derived(k: Kernel, value: Value, order: list[Value]):
    """How a condition follows from earlier ones in `order`: (rule, them), or None."""
    instr = k.body[value]
    if not isinstance(instr, Op):
        return None
    if instr.name in _LOGIC and set(instr.args) <= set(order):
        return _LOGIC[instr.name], instr.args
    for other in itertools.takewhile(lambda v: v < value, order):
        same = isinstance(k.body[other], Op) and k.body[other].args == instr.args
        if same and _OPPOSITE.get(instr.name) == k.body[other].name:
            return _LOGIC["logical_not"], (other,)
    return None

"""Values, loads and stores of a kernel as C++ statements. `texts`: how known values are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir.access import Access
from torchweld.ir.nodes import (
    Cast,
    Const,
    Instr,
    Load,
    Op,
    Reduce,
    Scan,
    Value,
    needed,
    operands,
)
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.phases import is_told, phases
from torchweld.templates.pointwise_reduce.cpu.schedule import jumps

Texts = dict[Value, str]
_LEAST_NORMAL = 2.0**-126
# (outer, inner): both as one function, faster than one after the other; `add` is that of 1
_JOINED = {
    ("add", "erf"): "tw_1_plus_erf({})",
    ("add", "tanh"): "tw_1_plus_tanh({})",
    ("log1p", "exp"): "tw_log1p_exp({})",
}
_ANSWERS = ("true", "false")
_MOST_POWER = 16  # that multiplications make
_CHOOSING = frozenset(("where", "maximum", "minimum", "neg", "abs"))  # exact results


def define(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    """Computes a value where its arguments are known; `texts` gains its name."""
    instr = k.body[value]
    if isinstance(instr, Scan):
        _advance(k, e, value, instr, texts)
    e.line(f"const {x.ctype(instr.dtype)} v{value} = {_expression(k, value, instr, texts)};")
    texts[value] = f"v{value}"


def define_with_parts(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    """Computes a value, and before it what it is made of and `texts` has not, in order."""
    for part in sorted(needed(k.body, (value,), stop=texts) - texts.keys()):
        define(k, e, part, texts)


def total(k: Kernel, value: Value) -> str:
    """The running accumulator of a reduction or scan. Along a lane of rows it is an array, all of
    one value where rows do not differ."""
    return f"A{value}{_of_lane(k, value)}"


def rest(k: Kernel, value: Value) -> str:
    """What `logaddexp` runs with beside its maximum, which is its total: see vectors.h."""
    return f"R{value}{_of_lane(k, value)}"


def _of_lane(k: Kernel, value: Value) -> str:
    if not k.row_lane:
        return ""
    return f"[{k.lane_position if k.row_lane in k.stages.axes[value] else '0'}]"


def result(k: Kernel, value: Value) -> str:
    """A finished reduction, or a scan so far, in its dtype."""
    dtype, text = k.body[value].dtype, total(k, value)
    kind = x.ctype(dtypes.compute(dtype))
    if k.body[value].monoid == "logaddexp":
        text = f"({text} + tw_log1p(({kind}){rest(k, value)}))"
    return x.narrowed(f"({kind}){text}", dtype)


def widened(k: Kernel, value: Value, texts: Texts) -> str:
    return x.widened(texts[value], k.body[value].dtype)


def store(k: Kernel, e: Emitter, position: int, texts: Texts) -> None:
    item, access = k.comp.stores[position], k.accesses.stores[position]
    target, value, dtype = element(k, access, texts), texts[item.value], k.kinds[item.buffer]
    if k.tiles and position in k.tiles.stores:
        target = _in_tile(k, f"o{position}")
    target = k.turned.get(position, target)
    if item.combine is not None:
        monoid = {"add": "sum", "mul": "prod"}.get(item.combine, item.combine)
        value = x.narrowed(
            x.merge(monoid, x.widened(target, dtype), x.widened(value, dtype)), dtype
        )
    guard = "" if item.guard is None else f"if ({texts[item.guard]}) "
    e.line(f"{guard}{target} = {value};")


def emit_lane(
    k: Kernel,
    e: Emitter,
    header: str,
    total: tuple[Value, str],
    values: Iterable[Value],
    texts: Texts,
    position: str = "",
) -> None:
    """A vectorised loop over sums that are there (`total`: the value, its text), over what follows
    them, and over all stores. `position`: a line that says where the loop is."""
    value, text = total
    e.line("#pragma omp simd")
    with e.block(header):
        if position:
            e.line(position)
        e.line(f"const float v{value} = {text};")
        texts[value] = f"v{value}"
        for following in values:
            if following not in texts:
                define(k, e, following, texts)
        for number in range(len(k.comp.stores)):
            store(k, e, number, texts)


def _advance(k: Kernel, e: Emitter, value: Value, scan: Scan, texts: Texts) -> None:
    state, arg = total(k, value), widened(k, scan.arg, texts)
    if scan.monoid == "logaddexp":
        e.line(f"tw_log_add({state}, {rest(k, value)}, {arg});")
        return
    e.line(f"{state} = {k.merged(value, state, arg)};")


def _expression(k: Kernel, value: Value, instr: Instr, texts: Texts) -> str:
    if isinstance(instr, Load):
        return _load(k, value, instr, texts)
    if isinstance(instr, Scan):
        return result(k, value)
    if shorter := _power(k, instr, texts) or _joined(k, instr, texts):
        return shorter
    args = [texts[v] for v in operands(instr)]
    if isinstance(instr, Cast) and instr.dtype == dtypes.bf16 and is_bf16(k.body, instr.arg):
        return f"tw_exact_bf16({args[0]})"
    if (wide := _rounded_f16(k, instr)) is not None and wide in texts:
        return f"tw_round_f16({texts[wide]})"
    if _chooses_by_row(k, instr, texts):
        return f"tw_choose({', '.join(args)})"
    kinds = [k.body[v].dtype for v in operands(instr)]
    return x.pure(instr, args, kinds, k.names, _is_shifted_exp(k, instr))


def _chooses_by_row(k: Kernel, instr: Instr, texts: Texts) -> bool:
    """Whether all points of the lane, or of a phase of it, make the same choice, which is not known
    here: gcc 12 makes no vectors of a loop with such a `? :`."""
    if not isinstance(instr, Op) or (instr.name, instr.dtype) != ("where", dtypes.f32):
        return False
    condition, nest = instr.args[0], k.schedule.nest
    varies = nest[-1:] and nest[-1] in k.stages.axes[condition] and not phases(k)
    return bool(nest) and not varies and texts[condition] not in _ANSWERS


def _rounded_f16(k: Kernel, instr: Instr) -> Value | None:
    """The float32 value that `instr` is the float16 rounding of; None if it is none."""
    if not isinstance(instr, Cast) or instr.dtype != dtypes.f32:
        return None
    narrow = k.body[instr.arg]
    is_rounding = isinstance(narrow, Cast) and narrow.dtype == dtypes.f16
    return narrow.arg if is_rounding and k.body[narrow.arg].dtype == dtypes.f32 else None


def _power(k: Kernel, instr: Instr, texts: Texts) -> str:
    """A power of float32 whose exponent is known: a whole one by multiplications. Empty if it is
    none, and for large whole ones."""
    if not isinstance(instr, Op) or instr.name != "pow" or instr.dtype != dtypes.f32:
        return ""
    base, exponent = instr.args[0], k.body[instr.args[1]]
    if not isinstance(exponent, Const) or not math.isfinite(exponent.value):
        return ""
    if not float(exponent.value).is_integer():
        return f"tw_broken_power({texts[base]}, {texts[instr.args[1]]})"
    few = abs(exponent.value) <= _MOST_POWER
    return f"tw_power({texts[base]}, {int(exponent.value)})" if few else ""


def _joined(k: Kernel, instr: Instr, texts: Texts) -> str:
    """Two operations of float32 or float64 as one function; empty if they are not of _JOINED. A
    sum with 1 of what has other readers, too, is no such function: it would be more exact than
    they are, where errors of both cancel (1 + t, and a gradient's 1 - t * t)."""
    if not isinstance(instr, Op) or not instr.dtype.is_float or instr.dtype.is_low_precision:
        return ""
    ones = [v for v in instr.args if k.body[v] == Const(1.0, instr.dtype)]
    others = [v for v in instr.args if v not in ones]
    inner = k.body[others[0]] if len(others) == 1 else None
    if not isinstance(inner, Op) or len(ones) != (instr.name == "add"):
        return ""
    if instr.name == "add" and k.uses[others[0]] > 1:
        return ""
    spelling = _JOINED.get((instr.name, inner.name), "")
    return spelling.format(texts[inner.args[0]]) if inner.args[0] in texts else ""


def is_bf16(body: Sequence[Instr], value: Value) -> bool:
    """Whether a float32 value is always a bfloat16 one: of such, a maximum needs no rounding."""
    seen, todo = set(), [value]
    while todo:
        instr = body[todo.pop()]
        if _chooses(instr):
            arms = instr.args[1:] if instr.name == "where" else instr.args
            todo.extend(v for v in arms if v not in seen)
            seen.update(arms)
        elif not _fits_bf16(body, instr):
            return False
    return True


def _chooses(instr: Instr) -> bool:
    """Whether a float32 value is one of others."""
    return isinstance(instr, Op) and instr.name in _CHOOSING and instr.dtype == dtypes.f32


def _fits_bf16(body: Sequence[Instr], instr: Instr) -> bool:
    """Whether a widened bfloat16, or a constant that is one."""
    if isinstance(instr, Cast):
        return body[instr.arg].dtype == dtypes.bf16 and instr.dtype == dtypes.f32
    if not isinstance(instr, Const) or instr.dtype != dtypes.f32:
        return False
    digits = math.frexp(instr.value)[0] * 2.0**8
    return digits.is_integer() and not 0 < abs(instr.value) < _LEAST_NORMAL


def _is_shifted_exp(k: Kernel, instr: Instr) -> bool:
    """exp(x - m) where m is the maximum of x over the row, or 0 where that is -inf (but not where
    it is inf: exp(inf) is asked for then)."""
    if not isinstance(instr, Op) or instr.name != "exp":
        return False
    shifted = k.body[instr.args[0]]
    if not isinstance(shifted, Op) or shifted.name != "sub":
        return False
    top = k.body[shifted.args[1]]
    if isinstance(top, Op) and top.name == "where" and _is_lowest(k, top.args[0], top.args[2]):
        top = k.body[top.args[2]]
    return isinstance(top, Reduce) and top.monoid == "max" and top.args == shifted.args[:1]


def _is_lowest(k: Kernel, condition: Value, value: Value) -> bool:
    """Whether `condition` is value == -inf."""
    instr = k.body[condition]
    if not isinstance(instr, Op) or instr.name != "eq" or value not in instr.args:
        return False
    others = [k.body[v] for v in instr.args if v != value]
    return any(isinstance(o, Const) and o.value == -math.inf for o in others)


def with_own_pointers(k: Kernel, e: Emitter) -> Kernel:
    """`k` with a pointer of its own, declared here, for each guarded load of elements that are some
    apart along the lane, and for each point that the lane writes out. Two such loads of neighbours,
    whose results are stored beside each other, gcc 12 makes one of vectors with the wrong mask, at
    any level that vectorises (`cat` of parts too short to cut a lane at, before an axis of two).
    Through pointers of which it cannot tell that they are the same it reads each apart."""
    lane = k.schedule.nest[-1] if k.schedule.nest else None
    if lane is None:
        return k
    alone = frozenset(v for v in k.accesses.loads if _is_alone(k, v, lane))
    for value in sorted(alone):
        kind, pointer = x.memory_type(k.body[value].dtype), k.pointers[k.body[value].buffer]
        for point in range(k.comp.extent(k.schedule.abreast) if k.schedule.abreast else 1):
            name = f"q{value}_{point}"
            e.line(f'const {kind}* {name} = {pointer}; asm("" : "+r"({name}));')
    return replace(k, alone=alone)


def _point(k: Kernel) -> str:
    """The number of the point that is written out, 0 where none is."""
    name = k.names[k.schedule.abreast] if k.schedule.abreast else ""
    return name if name.isdigit() else "0"


def _is_alone(k: Kernel, value: Value, lane: str) -> bool:
    """Not of a buffer that is written too: what `restrict` is said of has no other pointer."""
    instr = k.body[value]
    guarded = instr.guard is not None and instr.buffer not in k.comp.writes
    return guarded and jumps(k.accesses.loads[value], lane)


def _load(k: Kernel, value: Value, instr: Load, texts: Texts) -> str:
    access = k.accesses.loads[value]
    if value in k.alone and texts[instr.guard] not in _ANSWERS:
        k = replace(k, pointers={**k.pointers, access.buffer: f"q{value}_{_point(k)}"})
    text = element(k, access, texts)
    if instr.dtype.is_float and instr.dtype.bits == 16 and _gathers(k, access, texts):
        text = f"tw_at16({k.pointers[access.buffer]}, {_offset(k, access, texts)})"
    if k.tiles and value in k.tiles.loads:
        text = _in_tile(k, f"t{value}")
    if value in k.staged:
        across, lane = (k.names[a] for a in k.schedule.nest)
        text = f"t{value}[{across} - low_{across}][{lane} - low_{lane}]"
    text = x.from_memory(text, instr.dtype)
    guards = [texts[instr.guard]] if instr.guard is not None and value not in k.staged else []
    if k.row_mask and k.schedule.nest[-1] in k.stages.axes[value]:
        guards.append(k.row_mask)
    fill = x.literal(instr.fill, instr.dtype)
    return f"{' & '.join(guards)} ? {text} : {fill}" if guards else text


def _in_tile(k: Kernel, name: str) -> str:
    """The element of the current column and row."""
    return f"{name}[{k.names[k.tiles.column]}][{k.lane_position}]"


def _gathers(k: Kernel, access: Access, texts: Texts) -> bool:
    """Whether neighbours along a lane of some length read at places computed one by one."""
    if not access.refs or not k.schedule.nest:
        return False
    lane = k.schedule.nest[-1]
    extent = k.comp.extent(lane)
    along = (v for v, _ in access.refs if lane in k.stages.axes[v])
    computed = not all(is_told(k, v, texts[v]) for v in along)
    return computed and not (isinstance(extent, int) and extent < k.lanes)


def element(k: Kernel, access: Access, texts: Texts) -> str:
    return f"{k.pointers[access.buffer]}[{_offset(k, access, texts)}]"


def _offset(k: Kernel, access: Access, texts: Texts) -> str:
    parts = [x.affine_text(access.offset, k.names)]
    parts += [f"(int64_t){texts[v]} * {x.size_text(s)}" for v, s in access.refs]
    return " + ".join(parts)

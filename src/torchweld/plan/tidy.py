"""What is left to do after bodies were concatenated: unused values go, and roundings that nobody
asked for."""

from __future__ import annotations

from dataclasses import replace

from torchweld.core.dtypes import DType
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Cast, Comp, Instr, Load, Op, Value, value_axes
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, with_operands


def tidy(comp: Comp, eager: bool = False) -> Comp:
    """`comp` without unused values; unless `eager`, without narrowings that are widened at once.

        %2 = cast %1 : bf16;  %3 = cast %2 : f32;  use %3                   ->    use %1
        %4 = where %g %2 %x : bf16;  %5 = cast %4 : f32;  use %5   ->    use where %g %1 (cast %x)

    A narrowing stays where it is `must_round`, or stored (what is saved equals what is used); and
    in exp(%3 - %r), where %r is a row's value that was narrowed: its maximum, say. If only one of
    the two were, their difference would be off by the last place of 16 bits.
    """
    return drop_dead(comp) if eager else _drop_roundings(drop_dead(comp))


def _drop_roundings(comp: Comp) -> Comp:
    widenings = (i for i in comp.body if isinstance(i, Cast) and not i.must_round)
    if not any(comp.body[i.arg].dtype.is_low_precision for i in widenings):
        return comp
    stored = {s.value for s in comp.stores}
    kept = _beside_narrowed_rows(comp.body, stored)
    to, at = BodyBuilder(), []
    for value, instr in enumerate(comp.body):
        widened = None if value in kept else _widened(comp.body, value, stored)
        if widened is None:
            at.append(to.emit(with_operands(instr, at.__getitem__)))
        else:
            at.append(_emit_widened(to, comp.body, instr.arg, instr.dtype, at, stored))
    stores = tuple(move_store(s, at.__getitem__, {}) for s in comp.stores)
    return drop_dead(replace(comp, body=to.body, stores=stores))


_LINEAR = ("add", "sub", "mul", "div", "neg")


def _beside_narrowed_rows(body: tuple[Instr, ...], stored: set[Value]) -> frozenset[Value]:
    """Widenings from which a narrowed value of the row is taken before exp."""
    exponents: set[Value] = set()
    pairs: list[tuple[Value, ...]] = []
    for value, instr in reversed(list(enumerate(body))):
        if isinstance(instr, Cast) and value in exponents:
            exponents.add(instr.arg)
        if not isinstance(instr, Op):
            continue
        if instr.name in ("exp", "exp2") or (value in exponents and instr.name in _LINEAR):
            exponents.update(instr.args)
        if value in exponents and instr.name == "sub" and _is_narrowed(body, instr.args[1], stored):
            pairs.append(instr.args)
    axes = value_axes(body) if pairs else ()
    return frozenset(each for each, row in pairs if axes[row] < axes[each])


def _is_narrowed(body: tuple[Instr, ...], value: Value, stored: set[Value]) -> bool:
    """Whether a value was stored in 16 bits, or will be, before it was widened."""
    instr = body[value]
    if not isinstance(instr, Cast) or not body[instr.arg].dtype.is_low_precision:
        return False
    return isinstance(body[instr.arg], Load) or instr.arg in stored


def _widened(body: tuple[Instr, ...], value: Value, stored: set[Value]) -> Value | None:
    """What instruction `value` widens, if a narrowing behind it may go."""
    instr = body[value]
    if not isinstance(instr, Cast) or instr.must_round:
        return None
    return instr.arg if _has_idle_narrowing(body, instr.arg, instr.dtype, stored) else None


def _has_idle_narrowing(body, value: Value, dtype: DType, stored: set[Value]) -> bool:
    """Whether `value` is narrowed from `dtype` for nothing, itself or in an arm of a choice."""
    instr = body[value]
    if value in stored:
        return False
    if isinstance(instr, Cast):
        idle = instr.dtype.is_low_precision and not instr.must_round
        return idle and body[instr.arg].dtype == dtype
    if isinstance(instr, Op) and instr.name == "where" and instr.dtype.is_low_precision:
        return any(_has_idle_narrowing(body, v, dtype, stored) for v in instr.args[1:])
    return False


def _emit_widened(to: BodyBuilder, body, value: Value, dtype: DType, at, stored) -> Value:
    """`value` in `dtype`, past narrowings that may go."""
    instr = body[value]
    if not _has_idle_narrowing(body, value, dtype, stored):
        return to.cast(at[value], dtype)
    if isinstance(instr, Cast):
        return at[instr.arg]
    arms = (_emit_widened(to, body, v, dtype, at, stored) for v in instr.args[1:])
    return to.op("where", at[instr.args[0]], *arms)

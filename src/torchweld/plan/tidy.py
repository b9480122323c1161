"""What is left to do after bodies were concatenated: unused values go, and roundings that nobody
asked for."""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Cast, Comp, Instr, Value
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, with_operands


def tidy(comp: Comp, eager: bool = False) -> Comp:
    """`comp` without unused values; unless `eager`, without narrowings that are widened at once.

        %2 = cast %1 : bf16;  %3 = cast %2 : f32;  use %3    ->    use %1

    A narrowing stays where it is `must_round`, or stored (what is saved equals what is used).
    """
    return drop_dead(comp) if eager else _drop_roundings(drop_dead(comp))


def _drop_roundings(comp: Comp) -> Comp:
    stored = {s.value for s in comp.stores}
    sources = {v: _unrounded(comp.body, i, stored) for v, i in enumerate(comp.body)}
    if all(s is None for s in sources.values()):
        return comp
    to, at = BodyBuilder(), []
    for value, instr in enumerate(comp.body):
        source = sources[value]
        moved = to.emit(with_operands(instr, at.__getitem__)) if source is None else at[source]
        at.append(moved)
    stores = tuple(move_store(s, at.__getitem__, {}) for s in comp.stores)
    return _drop_roundings(drop_dead(replace(comp, body=to.body, stores=stores)))


def _unrounded(body: tuple[Instr, ...], instr: Instr, stored: set[Value]) -> Value | None:
    """The value that `instr` widens again, if the narrowing before it may go."""
    if not isinstance(instr, Cast) or instr.must_round or instr.arg in stored:
        return None
    narrow = body[instr.arg]
    if not isinstance(narrow, Cast) or narrow.must_round or not narrow.dtype.is_low_precision:
        return None
    return narrow.arg if body[narrow.arg].dtype == instr.dtype else None

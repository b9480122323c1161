"""One computation made several: for reductions that fit no frame, or where a whole row leaves the
device idle.

   comp batch_norm [c, n] { mean over n; ...; store y[c, n] }
-> comp [c, n] { mean over n; store m[c] }    comp [c, n] { load m[c]; ...; store y[c, n] }
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.core.errors import InvalidIR
from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.frame import frame_of
from torchweld.ir.monoid import TABLE
from torchweld.ir.nodes import (
    Buffer,
    Comp,
    Load,
    Reduce,
    Scan,
    Store,
    Value,
    map_axes,
    operands,
    reduced_axes,
    store_operands,
    value_axes,
)
from torchweld.ir.size import Size, product
from torchweld.plan.evaluate import Evaluator
from torchweld.plan.inline import Place, copy_instr, copy_store
from torchweld.plan.tidy import tidy

_MOST_PIECES = 8


def cut_until_framed(comp: Comp, device: str) -> tuple[list[Comp], list[Buffer]] | None:
    """Pieces that all have frames, in order, and the buffers between them; None if no cut helps."""
    pieces, buffers = [], []
    while frame_of(comp) is None:
        parts = cut(comp, device, len(pieces))
        if parts is None or len(pieces) > _MOST_PIECES or frame_of(parts[0]) is None:
            return None
        pieces.append(parts[0])
        buffers += parts[2]
        comp = parts[1]
    return [*pieces, comp], buffers


def cut(comp: Comp, device: str, number: int = 0) -> tuple[Comp, Comp, list[Buffer]] | None:
    """The first group of reductions over the same axes, and the rest; None if nothing is left for
    one side."""
    group = _first_group(comp)
    if not group:
        return None
    axes = value_axes(comp.body)
    early = [s for s in comp.stores if not s.combine and _is_early(comp, s, group, axes)]
    late = [s for s in comp.stores if s not in early]
    frontier = _frontier(comp, late, group, axes)
    if not late or not frontier:
        return None
    extents = comp.extents
    saved = {
        v: _buffer(f"{comp.name}_part{number}_{k}", comp, v, axes, extents, device)
        for k, v in enumerate(frontier)
    }
    stores = tuple(early) + tuple(
        Store(b.name, tuple(axis(n) for n in _ordered(comp, axes[v])), v) for v, b in saved.items()
    )
    first = _only_used_axes(
        tidy(replace(comp, name=f"{comp.name}_part{number}", stores=stores), eager=True)
    )
    rest = _with_loads(replace(comp, stores=tuple(late)), saved, axes)
    return first, _only_used_axes(tidy(rest, eager=True)), list(saved.values())


def _first_group(comp: Comp) -> set[Value]:
    """Reductions over one set of axes that wait for no reduction over another."""
    group: set[Value] = set()
    over: frozenset[str] | None = None
    blocked: set[Value] = set()
    for value, instr in enumerate(comp.body):
        waits = any(v in blocked for v in operands(instr))
        if isinstance(instr, Reduce) and not waits and over in (None, frozenset(instr.axes)):
            over = frozenset(instr.axes)
            group.add(value)
        elif waits or isinstance(instr, (Reduce, Scan)):
            blocked.add(value)
    return group


def _frontier(
    comp: Comp, late: list[Store], group: set[Value], axes: list[frozenset[str]]
) -> list[Value]:
    """Row values that follow from the group and that the rest needs."""
    inside = _row_values(comp, group, axes)
    used_outside = {v for s in late for v in store_operands(s)}
    for value, instr in enumerate(comp.body):
        if value not in inside:
            used_outside.update(operands(instr))
    return sorted(v for v in inside if v in used_outside and not _is_tuple(comp, v))


def _row_values(comp: Comp, group: set[Value], axes) -> set[Value]:
    """The group and what is computed from it without varying along the reduced axes or reading
    anything wider."""
    reduced = frozenset(comp.body[min(group)].axes)
    inside: set[Value] = set()
    for value, instr in enumerate(comp.body):
        if value in group:
            inside.add(value)
            continue
        follows = any(v in inside for v in operands(instr))
        reduces = isinstance(instr, (Reduce, Scan))
        if follows and not reduces and not axes[value] & reduced and not isinstance(instr, Load):
            inside.add(value)
    return inside


def _is_early(comp: Comp, store: Store, group: set[Value], axes) -> bool:
    """Whether the first piece can do this store: it waits for no other reduction and lives on the
    same axes."""
    reduced = frozenset(comp.body[min(group)].axes)
    needed, todo = set(), list(store_operands(store))
    while todo:
        value = todo.pop()
        if value not in needed:
            needed.add(value)
            todo += operands(comp.body[value])
    reductions = {v for v in needed if isinstance(comp.body[v], (Reduce, Scan))}
    return bool(reductions) and reductions <= group and not axes[store.value] & reduced


def _with_loads(comp: Comp, saved: dict[Value, Buffer], axes) -> Comp:
    to, at = BodyBuilder(), []
    place = Place({}, comp.extents)
    for value, instr in enumerate(comp.body):
        if value in saved:
            index = tuple(axis(n) for n in _ordered(comp, axes[value]))
            at.append(to.load(saved[value].name, index, saved[value].dtype, exact=True))
        else:
            at.append(copy_instr(to, instr, at, place))
    return replace(
        comp, body=to.body, stores=tuple(copy_store(to, s, at, place) for s in comp.stores)
    )


def _only_used_axes(comp: Comp) -> Comp:
    used = frozenset().union(*value_axes(comp.body), *(map_axes(s.index) for s in comp.stores))
    used |= reduced_axes(comp)
    return replace(comp, axes=tuple(a for a in comp.axes if a.name in used))


def _buffer(
    name: str, comp: Comp, value: Value, axes, extents: dict[str, Size], device: str
) -> Buffer:
    shape = tuple(extents[n] for n in _ordered(comp, axes[value]))
    strides = tuple(product(shape[k + 1 :]) for k in range(len(shape)))
    return Buffer(name, shape, comp.body[value].dtype, strides, device)


def _ordered(comp: Comp, names: frozenset[str]) -> list[str]:
    return [a.name for a in comp.axes if a.name in names]


def _is_tuple(comp: Comp, value: Value) -> bool:
    """Tuple reductions are read through Picks, which are saved instead."""
    instr = comp.body[value]
    return isinstance(instr, Reduce) and TABLE[instr.monoid].results > 1


def cut_if_better(
    comp: Comp, prices: Evaluator, device: str, allowed: bool = True
) -> tuple[list[Comp], list[Buffer], float]:
    """`comp` as kernels, the buffers between them, and the seconds that the cut is predicted to
    save.

    Raises InvalidIR where no cut gives every piece a frame.
    """
    if frame_of(comp) is None:
        pieces = cut_until_framed(comp, device)
        if pieces is None:
            raise InvalidIR(f"{comp.name} cannot be cut into kernels", where=str(comp.origins[:1]))
        return *pieces, 0.0
    if not allowed:
        return [comp], [], 0.0
    saved = prices.memo.of("cut", (comp,), lambda: _saved_s(comp, prices, device))
    if saved <= 0:
        return [comp], [], 0.0
    first, rest, between = cut(comp, device)
    return [first, rest], between, saved


def _saved_s(comp: Comp, prices: Evaluator, device: str) -> float:
    """By two kernels in the place of one; 0 where there are no two."""
    parts = cut(comp, device)
    if parts is None or any(frame_of(p) is None for p in parts[:2]):
        return 0.0
    first, rest, between = parts
    local = prices.with_buffers(between)
    return local.cost(comp).seconds - local.cost(first).seconds - local.cost(rest).seconds

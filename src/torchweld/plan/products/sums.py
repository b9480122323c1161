"""Sums over the rows of what a product has become (the gradient of a bias), made beside it: tiles
are added up by the product's kernel, and what is done with the sums follows.

    comp p [m, n] { y = ..; store Y[m, n] y; s = sum over m of y; store G[n] round(s) }
 -> comp   [m, n] { y = ..; store Y[m, n] y; store.add S[n] y init 0.0 }
    comp   [n]    { s = load S[n]; store G[n] round(s) }
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchweld.core import dtypes
from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Graph,
    IndexMap,
    Instr,
    Reduce,
    Scan,
    Store,
    Value,
    operands,
    store_axes,
    store_operands,
    value_axes,
)
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, with_operands
from torchweld.ir.views import contiguous_strides
from torchweld.plan.products.apart import Halves
from torchweld.templates.pointwise_reduce.gpu.partials import dependents


@dataclass(frozen=True, slots=True)
class _Sums:
    """`values`: Reduces of a Comp, all of them sums over one set of axes; `kept`: the other axes;
    `stores`: what follows them, along those alone."""

    values: tuple[Value, ...]
    kept: tuple[Axis, ...]
    stores: tuple[Store, ...]

    @property
    def place(self) -> IndexMap:
        return tuple(axis(a.name) for a in self.kept)


def with_room(graph: Graph) -> Graph:
    """`graph` with buffers for sums over rows, which nothing writes yet."""
    room: dict[str, Buffer] = {}
    for comp in (n for n in graph.nodes if isinstance(n, Comp)):
        sums = _sums_of(comp)
        for value in sums.values if sums else ():
            shape = tuple(a.extent for a in sums.kept)
            device = graph.buffers[comp.stores[0].buffer].device
            name = _name(comp, value)
            room[name] = Buffer(name, shape, dtypes.f32, contiguous_strides(shape), device)
    return replace(graph, buffers={**graph.buffers, **room}) if room else graph


def sums_apart(comp: Comp) -> Halves | None:
    """`comp` with its sums over rows as stores that add up, then what is done with the sums; None
    if it is anything else than pointwise with such sums."""
    sums = _sums_of(comp)
    if sums is None:
        return None
    early = tuple(s for s in comp.stores if s not in sums.stores)
    added = (comp.body[v].args[0] for v in sums.values)
    adding = tuple(
        Store(_name(comp, v), sums.place, arg, "add", 0.0) for v, arg in zip(sums.values, added)
    )
    first = drop_dead(replace(comp, stores=(*early, *adding)))
    return Halves(first, _rest(comp, sums))


def _sums_of(comp: Comp) -> _Sums | None:
    """None for a Comp with other reductions, with stores that are not plain, or with more than
    sums after its sums."""
    values = tuple(v for v, i in enumerate(comp.body) if isinstance(i, (Reduce, Scan)))
    kinds = {_kind(comp.body[v]) for v in values}
    if len(kinds) != 1 or None in kinds:
        return None
    if any(s.combine or s.init is not None or s.guard is not None for s in comp.stores):
        return None
    (reduced,) = kinds
    late, axes = dependents(comp.body, values), value_axes(comp.body)
    stores = tuple(s for s in comp.stores if late.intersection(store_operands(s)))
    again = any(late.intersection(operands(comp.body[v])) for v in values)
    if again or any(reduced & store_axes(comp, s, axes) for s in stores):
        return None
    return _Sums(values, tuple(a for a in comp.axes if a.name not in reduced), stores)


def _kind(instr: Instr) -> frozenset[str] | None:
    """The axes of a sum in float32."""
    is_sum = isinstance(instr, Reduce) and (instr.monoid, instr.dtype) == ("sum", dtypes.f32)
    return frozenset(instr.axes) if is_sum else None


def _rest(comp: Comp, sums: _Sums) -> Comp:
    """What follows the sums, which are read."""
    to, at = BodyBuilder(), []
    for value, instr in enumerate(comp.body):
        if value in sums.values:
            at.append(to.load(_name(comp, value), sums.place, instr.dtype))
        else:
            at.append(to.emit(with_operands(instr, at.__getitem__)))
    stores = tuple(move_store(s, at.__getitem__, {}) for s in sums.stores)
    return drop_dead(replace(comp, axes=sums.kept, body=to.body, stores=stores))


def _name(comp: Comp, value: Value) -> str:
    return f"{comp.name}_sum{value}"

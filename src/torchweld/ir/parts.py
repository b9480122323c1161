"""Kernels side by side in one Comp: what has no axis in common is a part of its own.

    comp c [i:8, j:6] { store x[i] 2 * x[i]; store y[j] 2 * y[j] }     has two parts

A Comp of several parts is made of planned kernels by passes/side_by_side.py, and each of them does
what it would do alone: the parts read nothing that another writes.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Comp, Reduce, Store, needed, store_axes, store_operands, value_axes
from torchweld.ir.simplify import drop_dead


def parts(comp: Comp) -> tuple[Comp, ...]:
    """The kernels that `comp` is made of, in the order of their first stores; `comp` itself if that
    is one. Values without axes are in each part that uses them."""
    if _is_one(comp):
        return (comp,)
    groups = _groups(comp)
    return tuple(_part(comp, stores) for stores in groups) if len(groups) > 1 else (comp,)


def _is_one(comp: Comp) -> bool:
    """Seen at a glance: some value has all axes, or there is one at most."""
    every = len(comp.axes)
    return every <= 1 or any(len(axes) == every for axes in value_axes(comp.body))


def _groups(comp: Comp) -> list[list[Store]]:
    """Stores that have axes in common, directly or through others."""
    axes = value_axes(comp.body)
    groups: list[tuple[set[str], list[Store]]] = []
    for store in comp.stores:
        touched = set(store_axes(comp, store, axes)) | _behind(comp, store, axes)
        met = [g for g in groups if g[0] & touched or not touched]
        groups = [g for g in groups if g not in met]
        joined = set(touched).union(*(g[0] for g in met))
        groups.append((joined, [*(s for g in met for s in g[1]), store]))
    return [stores for _, stores in groups]


def _behind(comp: Comp, store: Store, axes) -> set[str]:
    """Axes of what a store's value is made of, those that are reduced included."""
    found: set[str] = set()
    for value in needed(comp.body, store_operands(store)):
        instr = comp.body[value]
        found |= axes[value] | set(instr.axes if isinstance(instr, Reduce) else ())
    return found


def _part(comp: Comp, stores: list[Store]) -> Comp:
    part = drop_dead(replace(comp, stores=tuple(stores)))
    axes = value_axes(part.body)
    used = set().union(*(_behind(part, s, axes) | store_axes(part, s, axes) for s in part.stores))
    return replace(part, axes=tuple(a for a in part.axes if a.name in used))

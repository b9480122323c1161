"""What follows a product cut in two: first what is done to each element, which may join the
product, then what reduces it.

    comp p [m, n] { t = load T[m, n]; y = t + R[m, n]; store Y[m, n] y; store S[n] sum over m of y }
 -> comp   [m, n] { t = load T[m, n]; y = t + R[m, n]; store Y[m, n] y }
    comp   [m, n] { y = load Y[m, n]; store S[n] sum over m of y }

The cut goes through values that are stored anyhow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import (
    Comp,
    Reduce,
    Scan,
    Store,
    Value,
    map_axes,
    operands,
    store_operands,
    value_axes,
)
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, with_operands


@dataclass(frozen=True, slots=True)
class Halves:
    """`first` is pointwise; `rest` reads what it stores, and none of the buffers that were to be
    read first."""

    first: Comp
    rest: Comp


def is_elementwise(comp: Comp) -> bool:
    """Whether it does the same to each element, though it may store some alone (where an index into
    a cache is in range)."""
    return not any(isinstance(i, (Reduce, Scan)) for i in comp.body) and not any(
        s.combine or s.init is not None for s in comp.stores
    )


def halves(comp: Comp, products: Iterable[str]) -> Halves | None:
    """`comp` cut so that the buffers `products` are read in the first half alone; None where a
    value that the second half needs is not stored."""
    waits = _waiting(comp)
    early = tuple(s for s in comp.stores if not waits.intersection(store_operands(s)))
    late = tuple(s for s in comp.stores if s not in early)
    if not early or not late:
        return None
    first = drop_dead(replace(comp, stores=early))
    saved = {s.value: s for s in early if _is_whole(comp, s)}
    rest = drop_dead(_with_loads(replace(comp, stores=late), saved))
    if set(rest.reads).intersection(products) or frame_of(rest) is None:
        return None
    return Halves(first, rest)


def _waiting(comp: Comp) -> set[Value]:
    """The values that follow from a reduction or scan."""
    found: set[Value] = set()
    for value, instr in enumerate(comp.body):
        if isinstance(instr, (Reduce, Scan)) or found.intersection(operands(instr)):
            found.add(value)
    return found


def _is_whole(comp: Comp, store: Store) -> bool:
    """Whether the stored value can be read back at every point."""
    plain = store.combine is None and store.guard is None
    axes = value_axes(comp.body)[store.value]
    affine = all(isinstance(entry, Affine) for entry in store.index)
    return plain and affine and map_axes(store.index) == axes


def _with_loads(comp: Comp, saved: Mapping[Value, Store]) -> Comp:
    to, at = BodyBuilder(), []
    for value, instr in enumerate(comp.body):
        if value in saved:
            store = saved[value]
            at.append(to.load(store.buffer, store.index, instr.dtype))
        else:
            at.append(to.emit(with_operands(instr, at.__getitem__)))
    stores = tuple(move_store(s, at.__getitem__, {}) for s in comp.stores)
    return replace(comp, body=to.body, stores=stores)

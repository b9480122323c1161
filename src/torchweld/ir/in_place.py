"""Kernels that overwrite what they read, point by point.

    x[i, j] = x[i, j] - g[i, j]        and not   x[i, j] = x[j, i],   x[i, j] = x[0, j] - 1

Whatever order points run in, and on however many threads, each reads its element before it writes
it, and no other point reads it. Generators load what a point needs before they store.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir.nodes import Buffer, Comp, Load, Reduce, Ref, Scan, Store
from torchweld.ir.parts import parts
from torchweld.ir.substitute import rename_buffers


def written_elsewhere(comp: Comp) -> frozenset[str]:
    """The buffers that `comp` writes and must not read: all but those that it updates in place."""
    if not set(comp.reads).intersection(comp.writes):
        return frozenset(comp.writes)
    found: set[str] = set()
    split = parts(comp)
    for part in split:
        others = {b for p in split if p is not part for b in (*p.reads, *p.writes)}
        found |= {s.buffer for s in part.stores if not is_in_place(part, s)}
        found |= others.intersection(part.writes)
    return frozenset(found)


def is_in_place(comp: Comp, store: Store) -> bool:
    """Whether `comp`, which also reads the buffer of `store`, is pointwise, reads it only where the
    same point overwrites it, and writes each place once."""
    if store.combine or store.init is not None or store.guard is not None:
        return False
    if any(isinstance(i, (Reduce, Scan)) for i in comp.body) or not _is_own_place(comp, store):
        return False
    loads = (i for i in comp.body if isinstance(i, Load) and i.buffer == store.buffer)
    return all(i.index == store.index and i.guard is None for i in loads)


def _is_own_place(comp: Comp, store: Store) -> bool:
    """Whether every point of all axes stores to a place of its own: each axis is a dimension."""
    if any(isinstance(entry, Ref) for entry in store.index):
        return False
    named = [entry.as_axis for entry in store.index if entry.axes]
    long = {a.name for a in comp.axes if a.extent != 1}
    return None not in named and len(set(named)) == len(named) and long <= set(named)


def overwritable(comp: Comp, buffers: Mapping[str, Buffer]) -> tuple[str, ...]:
    """What a Comp reads and its only result might be written over."""
    if len(comp.stores) != 1:
        return ()
    result = comp.stores[0].buffer
    layout = _layout(buffers[result])
    alike = [n for n in comp.reads if n != result and _layout(buffers[n]) == layout]
    return tuple(n for n in alike if _is_pointwise_on(comp, n, result))


def _is_pointwise_on(comp: Comp, operand: str, result: str) -> bool:
    over = rename_buffers(comp, {operand: result})
    return is_in_place(over, over.stores[0])


def _layout(buffer: Buffer) -> tuple:
    return buffer.shape, buffer.strides, buffer.dtype.bytes, buffer.device

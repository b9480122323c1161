"""How much further a Comp could read its buffers: what was found out of one step of a loop holds
for another that reads further on, but a read that stays inside a buffer needs no guard, and further
on it may not stay there."""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Load
from torchweld.ir.size import Size
from torchweld.plan.unify import bounds

Room = Mapping[str, tuple[tuple[int, int], ...]]  # (least, most) elements, along each dimension

_NONE = 0, 0


def room_of(comp: Comp, buffers: Mapping[str, Buffer]) -> Room:
    """Of each buffer that `comp` reads."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for load in (i for i in comp.body if isinstance(i, Load)):
        shape = buffers[load.buffer].shape
        room = tuple(_along(e, n, comp, load.guard is not None) for e, n in zip(load.index, shape))
        known = found.get(load.buffer, room)
        found[load.buffer] = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(known, room))
    return found


def _along(entry, size: Size, comp: Comp, guarded: bool) -> tuple[int, int]:
    """Of one read; none where it is not known, nor for a computed place, of which where it begins
    is a part. A guard leaves out what is outside."""
    if not isinstance(entry, Affine) or not isinstance(size, int):
        return _NONE
    low, high = bounds(entry, comp.extents)
    if guarded:
        return -size, size
    known = isinstance(low, int) and isinstance(high, int)
    return (-low, size - 1 - high) if known else _NONE


def has_room(room: Room, moves: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether all reads may be moved so far."""
    return all(
        least <= n <= most
        for name, move in moves.items()
        for n, (least, most) in zip(move, room.get(name, ()))
    )

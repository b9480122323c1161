"""A kernel over rows that takes in what else is done with the same rows.

    comp a [m, k, h] { s = sum over k of x[m, k] * W1[k, h]; store T[m, h] relu s }
    comp b [m', k', n] { store Y[m', n] sum over k' of T[m', k'] * W2[k', n] }
 -> comp   [m, k, h, n] { t = relu (sum over k ...); store Y[m, n] sum over h of t * W2[h, n] }

The axes of `b` become those of `a` where both name the same element of a buffer: one that `a`
stores, or one that both load. The others are new. Values are rounded as they were stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from torchweld.core.once import once
from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Load,
    map_axes,
)
from torchweld.ir.simplify import simplify
from torchweld.ir.substitute import move_store
from torchweld.plan.inline import Place, apart, copy_instr, copy_store, split_in_two
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.unify import Mismatch, Split, covered, solve

_MOST_SPLITS = 6
_AT_ONCE = 256  # nodes of a graph that are offered to each other again and again
Images = Mapping[str, Affine]


def absorbed(comp: Comp, other: Comp, keep: Collection[str]) -> Comp | Refusal:
    """`comp`, and in it `other`, which may read what it stores. Of `comp`'s stores, others need
    those to `keep`."""
    comp, other = prepared(comp), prepared(other)
    for _ in range(_MOST_SPLITS):
        found = _images(comp, apart(other, comp))
        if not isinstance(found, Split):
            break
        cut = split_in_two(comp, found.axis, found.inner)
        if cut is None:
            return Refusal(Reason.MAPS, f"{found.axis} cannot be split")
        comp = cut
    if isinstance(found, dict):
        return _merged(comp, apart(other, comp), found, keep)
    return found if isinstance(found, Refusal) else Refusal(Reason.MAPS, "too many splits")


@once(_AT_ONCE)
def prepared(comp: Comp) -> Comp:
    """`comp` for who reads its results in it: what it stores stays rounded, and an element that is
    read twice is loaded once."""
    to, at = BodyBuilder(), []
    stored = {s.value for s in comp.stores}
    for value, instr in enumerate(comp.body):
        if isinstance(instr, Load) and instr.guard is None:
            instr = replace(instr, fill=0, exact=False)
        if isinstance(instr, Cast) and value in stored:
            instr = replace(instr, must_round=True)
        at.append(copy_instr(to, instr, at, Place({}, comp.extents)))
    stores = tuple(move_store(s, at.__getitem__, {}) for s in comp.stores)
    return replace(comp, body=to.body, stores=stores)


def _images(comp: Comp, other: Comp) -> dict[str, Affine] | Split | Refusal:
    """What axes of `other` are in `comp`: told by the results that it reads, then by matrices that
    both read."""
    made = {s.buffer: s for s in comp.stores}
    images: dict[str, Affine] = {}
    for load in (i for i in other.body if isinstance(i, Load) and i.buffer in made):
        store = made[load.buffer]
        if store.combine or store.guard is not None or load.guard is not None:
            return Refusal(Reason.PARTIAL_WRITE, load.buffer)
        found = solve(load.index, store.index, other.extents, comp.extents)
        if isinstance(found, Mismatch):
            return Refusal(Reason.MAPS, f"{load.buffer}: {found.evidence}")
        if isinstance(found, Split):
            return found
        if any(images.setdefault(n, i) != i for n, i in found.items()):
            return Refusal(Reason.ROWS, f"{load.buffer} is read at several places")
    for load in _loads(other):
        for shared in (one for one in _loads(comp) if one.buffer == load.buffer):
            if len(map_axes(shared.index)) < 2:
                continue
            found = solve(load.index, shared.index, other.extents, comp.extents)
            if isinstance(found, dict) and _agree(images | found, images, comp, other):
                images |= found
                break
    return images or Refusal(Reason.ROWS, "they share no element")


def _loads(comp: Comp) -> Iterator[Load]:
    return (i for i in comp.body if isinstance(i, Load) and i.guard is None)


def _agree(found: Images, known: Images, comp: Comp, other: Comp) -> bool:
    """Whether images say the same of the axes of both, and no two axes are one."""
    same = all(found[n] == i for n, i in known.items())
    return same and covered(found, other.extents, comp.extents) is not None


def _merged(
    comp: Comp, other: Comp, images: dict[str, Affine], keep: Collection[str]
) -> Comp | Refusal:
    if covered(images, other.extents, comp.extents) is None:
        return Refusal(Reason.ROWS, "axes of one are no axes of the other")
    fresh = tuple(a for a in other.axes if a.name not in images)
    axes = (*comp.axes, *fresh)
    place = Place(images, {a.name: a.extent for a in axes})
    to, here, there = BodyBuilder(), [], []
    for instr in comp.body:
        here.append(copy_instr(to, instr, here, Place({}, comp.extents)))
    made = {s.buffer: here[s.value] for s in comp.stores}
    for instr in other.body:
        if isinstance(instr, Load) and instr.buffer in made:
            there.append(made[instr.buffer])
        else:
            there.append(copy_instr(to, instr, there, place))
    own = (move_store(s, here.__getitem__, {}) for s in comp.stores if s.buffer in keep)
    new = (copy_store(to, s, there, place) for s in other.stores)
    origins = tuple(dict.fromkeys(comp.origins + other.origins))
    return simplify(Comp(other.name, axes, to.body, (*own, *new), origins))

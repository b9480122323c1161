"""Score nests that walk over the same scores, in one: the gradients of keys and values.

    comp dv [b, l, e, i, d]    { s = sum[d] q * k; ...; store dv sum[i] p * do }
    comp dk [b, l, x, i, d, e] { s = sum[d] q * k; dp = sum[e] do * v; ...; store dk sum[i] ds * q }
 -> comp [b, l, e0, x, i, d, e] { s and dp once; both stores }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Comp, Graph, IndexMap, Load
from torchweld.ir.simplify import simplify
from torchweld.ir.substitute import inline, move_store, rename_axes
from torchweld.plan.inline import fresh
from torchweld.plan.scores.offer import Desk
from torchweld.templates.attention.nest import Inner, Nest, nest_of

Names = dict[str, str]


def join_nests(
    graph: Graph, roots: Sequence[str], desk: Desk
) -> Iterator[tuple[str, str, Comp]]:
    """Pairs of nests of `graph`, by name, and the one that could take the place of both."""
    nests = {n.name: n for n in graph.nodes if n.name in roots and isinstance(n, Comp)}
    for one, other in combinations(nests, 2):
        merged = _joined(nests[one], nests[other])
        if merged is not None and _is_better(nests[one], nests[other], merged, desk):
            yield one, other, merged


def _is_better(one: Comp, other: Comp, merged: Comp, desk: Desk) -> bool:
    priced = [desk.kernel(c) for c in (one, other, merged)]
    if any(isinstance(p, str) for p in priced):
        return False
    return priced[2][1] < priced[0][1] + priced[1][1]


def _joined(one: Comp, other: Comp) -> Comp | None:
    """Both over the axes of `one`; None where they do not share a product of scores."""
    a, b = nest_of(one), nest_of(other)
    if a is None or b is None or set(one.writes) & set(other.reads):
        return None
    if set(other.writes) & set(one.reads):
        return None
    names = _shared(one, a, other, b)
    if names is None:
        return None
    taken, axes = set(one.extents), list(one.axes)
    for axis in other.axes:
        if axis.name not in names:
            names[axis.name] = fresh(axis.name, taken)
            axes.append(Axis(names[axis.name], axis.extent))
    moved, to = rename_axes(other, names), BodyBuilder()
    at, there = (inline(to, c.body, {}) for c in (one, moved))
    stores = [move_store(s, at.__getitem__, {}) for s in one.stores]
    stores += [move_store(s, there.__getitem__, {}) for s in moved.stores]
    origins = tuple(dict.fromkeys(one.origins + other.origins))
    merged = simplify(Comp(one.name, tuple(axes), to.body, tuple(stores), origins))
    found = nest_of(merged)
    return merged if found and len(found.inners) == max(len(a.inners), len(b.inners)) else None


def _shared(one: Comp, a: Nest, other: Comp, b: Nest) -> Names | None:
    """The axes of `one` for those of `other` by which their products of scores agree."""
    names: Names = {}
    for left, right in product(a.inners, b.inners):
        found = _matched(one, left, other, right, names)
        names |= found or {}
    same = all(
        {names.get(n) for n in theirs} == set(ours)
        for ours, theirs in ((a.batch, b.batch), (a.rows, b.rows), (a.keys, b.keys))
    )
    return names if same else None


def _matched(one: Comp, left: Inner, other: Comp, right: Inner, known: Names) -> Names | None:
    found = dict(known)
    for ours, theirs in ((left.row, right.row), (left.key, right.key)):
        a, b = one.body[ours], other.body[theirs]
        if not isinstance(a, Load) or not isinstance(b, Load) or a.buffer != b.buffer:
            return None
        if not _matches(a.index, b.index, found):
            return None
    same = all(one.extent(new) == other.extent(old) for old, new in found.items())
    return found if same and len(set(found.values())) == len(found) else None


def _matches(ours: IndexMap, theirs: IndexMap, names: Names) -> bool:
    """Whether two maps are the same by other names, which are added to `names`."""
    for a, b in zip(ours, theirs):
        if not isinstance(a, Affine) or not isinstance(b, Affine) or a.const != b.const:
            return False
        mine: Mapping[object, str] = {repr(c): n for n, c in a.terms}
        if len(mine) != len(a.terms) or {repr(c) for _, c in b.terms} != mine.keys():
            return False
        if any(names.setdefault(n, mine[repr(c)]) != mine[repr(c)] for n, c in b.terms):
            return False
    return True


def without(graph: Graph, one: str, other: str, merged: Comp) -> Graph:
    """`graph` with `merged` in the place of the later of two nodes."""
    nodes = [n for n in graph.nodes if n.name != one]
    return replace(graph, nodes=tuple(merged if n.name == other else n for n in nodes))

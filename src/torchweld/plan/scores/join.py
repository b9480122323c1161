"""Score nests that walk over the same scores, in one: the gradients of keys and values.

    comp dv [b, l, e, i, d]    { s = sum[d] q * k; ...; store dv sum[i] p * do }
    comp dk [b, l, x, i, d, e] { s = sum[d] q * k; dp = sum[e] do * v; ...; store dk sum[i] ds * q }
 -> comp [b, l, e0, x, i, d, e] { s and dp once; both stores }
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    graph: Graph, roots: Collection[str], desk: Desk, tried: Collection[tuple[str, str]]
) -> dict[tuple[str, str], Comp]:
    """Pairs of nests of `graph`, by name, each nest in one pair at most, and the nest that could
    take the place of both; none that was `tried`."""
    comps = {n.name: n for n in graph.nodes if n.name in roots and isinstance(n, Comp)}
    candidates = ((name, nest_of(comp)) for name, comp in comps.items())
    nests = {name: nest for name, nest in candidates if nest is not None}
    found: dict[tuple[str, str], Comp] = {}
    taken: set[str] = set()
    for pair in _with_common_scores(comps, nests):
        one, other = (comps[name] for name in pair)
        if pair in tried or not taken.isdisjoint(pair):
            continue
        merged = _joined(one, nests[one.name], other, nests[other.name])
        if merged is not None and _is_better(one, other, merged, desk):
            found[pair] = replace(merged, name=other.name)
            taken.update(pair)
    return found


def _with_common_scores(
    comps: Mapping[str, Comp], nests: Mapping[str, Nest]
) -> list[tuple[str, str]]:
    """Pairs of nests with a product of the same two buffers, in the order of both."""
    place = {name: k for k, name in enumerate(nests)}
    having: dict[tuple[str, str], dict[str, None]] = {}
    for name, nest in nests.items():
        for inner in nest.inners:
            factors = [comps[name].body[v] for v in (inner.row, inner.key)]
            if all(isinstance(f, Load) for f in factors):
                key = factors[0].buffer, factors[1].buffer
                having.setdefault(key, {})[name] = None
    pairs = {pair for names in having.values() for pair in combinations(names, 2)}
    return sorted(pairs, key=lambda pair: (place[pair[0]], place[pair[1]]))


def _is_better(one: Comp, other: Comp, merged: Comp, desk: Desk) -> bool:
    priced = [desk.kernel(c) for c in (one, other, merged)]
    if any(isinstance(p, str) for p in priced):
        return False
    return priced[2][1] < priced[0][1] + priced[1][1]


def _joined(one: Comp, a: Nest, other: Comp, b: Nest) -> Comp | None:
    """Both over the axes of `one`; None where they do not share a product of scores."""
    if set(one.writes) & set(other.reads) or set(other.writes) & set(one.reads):
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


def with_joined(graph: Graph, joined: Mapping[tuple[str, str], Comp]) -> Graph:
    """`graph` with each of `joined` in the place of the later of its two nodes."""
    gone, merged = {one for one, _ in joined}, {other: c for (_, other), c in joined.items()}
    nodes = (n for n in graph.nodes if n.name not in gone)
    return replace(graph, nodes=tuple(merged.get(n.name, n) for n in nodes))

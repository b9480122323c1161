"""Axes of one computation identified with axes of another, one to one.

Where both read the same buffer, the identification under which they read the same elements comes
first: it saves the most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product as pairs

from torchweld.ir.affine import Affine, axis
from torchweld.ir.nodes import Comp, Load, map_axes
from torchweld.ir.size import divide, product
from torchweld.plan.unify import Extents, Image, Split, covered, flatten, solve

_MOST_SHARED_READS = 8

Images = dict[str, Affine]


def alignments(
    names: tuple[str, ...],
    rest: tuple[str, ...],
    known: Mapping[str, Image],
    one: Comp,
    other: Comp,
) -> Iterator[Images | Split]:
    """Bijections from the axes `names` of `one` to the axes `rest` of `other`, best first, that
    agree with `known`; at the end, splits of `other`'s axes after which there may be more."""
    inner, outer = one.extents, other.extents
    tried: list[Images] = []
    splits: list[Split] = []
    for images in _from_shared_reads(known, one, other, inner, outer):
        if isinstance(images, Split):
            splits.append(images)
            continue
        full = _complete({n: images[n] for n in names if n in images}, names, rest, inner, outer)
        if full is not None and full not in tried:
            tried.append(full)
            yield full
    by_order = _by_order(names, rest, inner, outer)
    if isinstance(by_order, Split):
        splits.append(by_order)
    elif by_order is not None and by_order not in tried:
        yield by_order
    yield from splits


def embeddings(one: Comp, other: Comp) -> Iterator[Images | Split]:
    """Images of all axes of `one` among those of `other`, which may have more, under which both
    read the same elements."""
    inner, outer = one.extents, other.extents
    for images in _from_shared_reads({}, one, other, inner, outer):
        whole = isinstance(images, dict) and images.keys() == inner.keys()
        apart = whole and covered(images, inner, outer) is not None
        if apart or isinstance(images, Split):
            yield images


def _from_shared_reads(known, one: Comp, other: Comp, inner: Extents, outer: Extents):
    """What follows from reading the same elements, widest reads first."""
    shared = [
        (a, b)
        for a, b in pairs(_loads(one), _loads(other))
        if a.buffer == b.buffer and map_axes(a.index)
    ]
    shared.sort(key=lambda pair: -len(map_axes(pair[0].index)))
    for a, b in shared[:_MOST_SHARED_READS]:
        images = solve(a.index, b.index, inner, outer)
        if isinstance(images, Split) or (isinstance(images, dict) and _agree(images, known)):
            yield images


def _loads(comp: Comp) -> list[Load]:
    return [i for i in comp.body if isinstance(i, Load)]


def _agree(images: Mapping[str, Image], known: Mapping[str, Image]) -> bool:
    return all(isinstance(i, Affine) and known.get(n, i) == i for n, i in images.items())


def _complete(partial: Images, names, rest, inner: Extents, outer: Extents) -> Images | None:
    """`partial` extended in order over the axes that it leaves out."""
    used = covered(partial, inner, outer)
    if used is None or not used <= set(rest):
        return None
    left = _by_order(
        tuple(n for n in names if n not in partial),
        tuple(r for r in rest if r not in used),
        inner,
        outer,
    )
    return {**partial, **left} if isinstance(left, dict) else None


def _by_order(names, rest, inner: Extents, outer: Extents) -> Images | Split | None:
    """names -> rest in the same order: one to one, or one axis against the digits of it."""
    if len(names) == len(rest) and all(inner[n] == outer[r] for n, r in zip(names, rest)):
        return {n: axis(r) for n, r in zip(names, rest)}
    if product(inner[n] for n in names) != product(outer[r] for r in rest):
        return None
    if len(names) == 1:
        return {names[0]: flatten(tuple(rest), outer)}
    return _split_first(names, rest, inner, outer)


def _split_first(names, rest, inner: Extents, outer: Extents) -> Split | None:
    """The split that cuts the first axis of `names` out of `rest`."""
    if not names or not rest or inner[names[0]] == outer[rest[0]]:
        return None
    tail = divide(outer[rest[0]], inner[names[0]])
    return Split(rest[0], tail) if tail is not None else None

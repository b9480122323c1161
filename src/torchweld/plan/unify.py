"""Index maps of a producer and a consumer brought together.

A producer stores at S(p), a consumer reads at L(c). `solve` finds, for each producer axis that S
depends on, its image over the consumer's axes, so that S(image) = L:

    store t[64*h + d], load t[n]          n must be split first: n -> 64*n0 + n1
    store t[64*h + d], load t[64*k + e]   h -> k, d -> e
    store t[n],        load t[64*k + e]   n -> 64*k + e
    store t[i, j],     load t[r, j + 64]  i -> r, j -> j + 64

A read of an element that S does not write has no image: `solve` does not look for that, but
`writes_all` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Union

from torchweld.ir.affine import Affine, of
from torchweld.ir.nodes import IndexMap, Ref
from torchweld.ir.size import Size, divide, product

Image = Union[Affine, Ref]
Extents = Mapping[str, Size]


@dataclass(frozen=True, slots=True)
class Split:
    """The consumer's `axis` must become (outer, inner) with this inner extent before the maps can
    be unified."""

    axis: str
    inner: Size


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The maps do not unify; `evidence` says where."""

    evidence: str


def solve(
    store: IndexMap, load: IndexMap, inner: Extents, outer: Extents
) -> dict[str, Image] | Split | Mismatch:
    """Images of the axes of `store` (extents `inner`) over those of `load` (extents `outer`)."""
    images: dict[str, Image] = {}
    for at, wanted in zip(store, load):
        if not isinstance(at, Affine):
            return Mismatch("the store is indirect")
        found = _solve_dimension(at, wanted, inner, outer)
        if not isinstance(found, dict):
            return found
        for name, image in found.items():
            if images.setdefault(name, image) != image:
                return Mismatch(f"{name} would be both {images[name]!r} and {image!r}")
    return images


def covered(images: Mapping[str, Image], inner: Extents, outer: Extents) -> frozenset[str] | None:
    """The consumer axes that `images` runs over, if it does so one to one; else None."""
    seen: set[str] = set()
    for name, image in images.items():
        if not isinstance(image, Affine) or image.const != 0 or seen & image.axes:
            return None
        if not _is_mixed_radix(image, inner[name], outer):
            return None
        seen |= image.axes
    return frozenset(seen)


def writes_all(store: IndexMap, extents: Extents, shape: Sequence[Size]) -> bool:
    """Whether every element of a buffer of `shape` is among the places S(p), once. False where that
    is not seen."""
    seen: set[str] = set()
    for at, size in zip(store, shape):
        at = _forwards(at, extents) if isinstance(at, Affine) else None
        if at is None or at.const != 0 or seen & at.axes:
            return False
        if not _is_mixed_radix(at, size, extents):
            return False
        seen |= at.axes
    return True


def _forwards(at: Affine, extents: Extents) -> Affine:
    """The same places, in the order in which no axis runs backwards; axes of one point left out."""
    terms, const = {}, at.const
    for name, coefficient in at.terms:
        if extents[name] == 1:
            continue
        if isinstance(coefficient, int) and coefficient < 0:
            const = const + coefficient * (extents[name] - 1)
            coefficient = -coefficient
        terms[name] = coefficient
    return of(terms, const)


def flatten(names: tuple[str, ...], extents: Extents) -> Affine:
    """The mixed-radix number whose digits are the axes `names`, the last one fastest."""
    terms, weight = {}, 1
    for name in reversed(names):
        terms[name] = weight
        weight = weight * extents[name]
    return of(terms)


def _solve_dimension(at: Affine, wanted, inner: Extents, outer: Extents):
    if not at.terms:
        met = isinstance(wanted, Ref) or _is_always(wanted, at.const, outer)
        return {} if met else Mismatch(f"{wanted!r} is not always {at!r}")
    if isinstance(wanted, Ref):
        name = at.as_axis
        return {name: wanted} if name else Mismatch(f"indirect read of {at!r}")
    wanted = wanted + (-1 * at.const)
    if len(at.terms) == 1:
        return _solve_single(at, wanted)
    chain = _chain(at, inner)
    if chain is None:
        return Mismatch(f"{at!r} is not a mixed-radix number")
    return _digits(chain, wanted, inner, outer)


def _solve_single(at: Affine, wanted: Affine):
    ((name, coefficient),) = at.terms
    image = _divide_map(wanted, coefficient)
    return (
        Mismatch(f"{wanted!r} is no multiple of {coefficient!r}")
        if image is None
        else {name: image}
    )


def _chain(at: Affine, extents: Extents) -> list[tuple[str, Size]] | None:
    """(axis, weight) from the fastest axis on, where each weight is the product of the extents
    before it."""
    left, chain, weight = dict(at.terms), [], 1
    while left:
        name = next((n for n, c in left.items() if c == weight and extents[n] != 1), None)
        if name is None:
            return None
        chain.append((name, weight))
        weight = weight * extents[name]
        del left[name]
    return chain


def _digits(chain, wanted: Affine, inner: Extents, outer: Extents):
    """Each term of `wanted` given to the digit of `chain` that it lies in."""
    consts = _constant_digits(wanted.const, chain)
    if consts is None:
        return Mismatch(f"offset {wanted.const!r}")
    sums: list[dict[str, Size]] = [{} for _ in chain]
    for name, coefficient in wanted.terms:
        place = _place(name, coefficient, chain, inner, outer)
        if not isinstance(place, int):
            return place
        sums[place][name] = divide(coefficient, chain[place][1])
    images = {}
    for (name, _), terms, const in zip(chain, sums, consts):
        images[name] = of(terms, const)
    for name, _ in chain[:-1]:
        if not _in_range(images[name], inner[name], outer):
            return Mismatch(f"{images[name]!r} overflows {name}:{inner[name]!r}")
    return images


def _place(name: str, coefficient: Size, chain, inner: Extents, outer: Extents):
    reach = coefficient * outer[name]
    for k, (digit, weight) in enumerate(chain):
        if divide(coefficient, weight) is None:
            continue
        top = weight * inner[digit]
        if k == len(chain) - 1 or _reaches_below(reach, top):
            return k
        within = divide(top, coefficient)
        if within is not None and within != 1 and divide(outer[name], within) is not None:
            return Split(name, within)
    return Mismatch(f"{coefficient!r}*{name} lies across digits")


def _reaches_below(reach: Size, top: Size) -> bool:
    if isinstance(reach, int) and isinstance(top, int):
        return abs(reach) <= top
    return divide(top, reach) is not None


def _constant_digits(const: Size, chain) -> list[Size] | None:
    if const == 0:
        return [0] * len(chain)
    digits: list[Size] = []
    for _, weight in reversed(chain):
        exact = divide(const, weight)
        if exact is not None:
            digits.append(exact)
            const = 0
        elif isinstance(const, int) and isinstance(weight, int):
            digits.append(const // weight)
            const = const % weight
        else:
            digits.append(0)
    return digits[::-1] if const == 0 else None


def _divide_map(index: Affine, divisor: Size) -> Affine | None:
    if divisor == 1:
        return index
    terms = {n: divide(c, divisor) for n, c in index.terms}
    const = divide(index.const, divisor)
    if const is None or any(c is None for c in terms.values()):
        return None
    return of(terms, const)


def _in_range(image: Affine, extent: Size, outer: Extents) -> bool:
    """0 <= image < extent for all points."""
    if not image.terms and image.const == 0:
        return True
    if all(isinstance(s, int) for s in (image.const, extent, *(c for _, c in image.terms))):
        low, high = bounds(image, outer)
        return low is not None and low >= 0 and high < extent
    return image.const == 0 and _nested(image, outer) and _reach_divides(image, extent, outer)


def _is_always(index: Affine, const: Size, extents: Extents) -> bool:
    """Whether an index is `const` at every point."""
    return index.const == const and all(extents[name] == 1 for name in index.axes)


def bounds(index: Affine, extents: Extents) -> tuple[int | None, int | None]:
    """Smallest and largest value, or (None, None) if sizes are not known."""
    low = high = index.const
    for name, coefficient in index.terms:
        span = coefficient * (extents[name] - 1)
        if not isinstance(span, int):
            return None, None
        low, high = low + min(span, 0), high + max(span, 0)
    return (low, high) if isinstance(low, int) else (None, None)


def _nested(image: Affine, extents: Extents) -> bool:
    """The terms are digits of one number: no two points that differ below one term's weight
    coincide."""
    left = list(image.terms)
    ordered = sorted(left, key=lambda term: len(repr(term[1])))
    return all(divide(c2, c1 * extents[n1]) is not None for (n1, c1), (_, c2) in pairwise(ordered))


def _reach_divides(image: Affine, extent: Size, extents: Extents) -> bool:
    return all(divide(extent, c * extents[n]) is not None for n, c in image.terms)


def _is_mixed_radix(image: Affine, extent: Size, outer: Extents) -> bool:
    if not image.terms:
        return extent == 1
    chain = _chain(image, outer)
    return chain is not None and product(outer[n] for n, _ in chain) == extent

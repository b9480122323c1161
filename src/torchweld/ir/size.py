"""Sizes: integers, or polynomials with integer coefficients in shape symbols.

A size known at compile time is a plain `int`; anything else is a `Poly`. Arithmetic on either gives
whichever is simplest, so code that handles sizes is written once, with Python's operators.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import Union

Monomial = tuple[str, ...]  # symbol names, sorted, repeated for powers; () is the constant


@dataclass(frozen=True, slots=True)
class Poly:
    """sum of coefficient * product of symbols; never constant (that is an int). Terms are sorted,
    none is zero."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Size) -> Size:
        sums = dict(self.terms)
        for monomial, coefficient in _terms(other):
            sums[monomial] = sums.get(monomial, 0) + coefficient
        return _make(sums)

    def __mul__(self, other: Size) -> Size:
        sums: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in _terms(other):
                m = tuple(sorted(m1 + m2))
                sums[m] = sums.get(m, 0) + c1 * c2
        return _make(sums)

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + (-1 * other)

    def __rsub__(self, other: Size) -> Size:
        return -1 * self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        return "+".join(_monomial_text(m, c) for m, c in self.terms).replace("+-", "-")


Size = Union[int, Poly]


def symbol(name: str) -> Poly:
    return Poly((((name,), 1),))


def is_negative(size: Size) -> bool:
    """Whether it is below zero whatever the symbols, which are positive."""
    terms = size.terms if isinstance(size, Poly) else (((), size),)
    return all(coefficient < 0 for _, coefficient in terms)


def symbols(size: Size) -> frozenset[str]:
    """The names that `size` depends on."""
    return frozenset(name for monomial, _ in _terms(size) for name in monomial)


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The number that `size` stands for when each symbol has the given value."""
    if isinstance(size, int):
        return size
    return sum(c * reduce(lambda a, name: a * values[name], m, 1) for m, c in size.terms)


def product(sizes: Iterable[Size]) -> Size:
    found: Size = 1
    for size in sizes:
        found = found * size
    return found


def divide(size: Size, divisor: Size) -> Size | None:
    """size / divisor where it divides exactly whatever the symbols are (syntactically), else None.

    `divisor` must be an integer or a single monomial: enough for suffix products of shapes.
    """
    if size == divisor:
        return 1
    divided = _terms(divisor)
    if len(divided) != 1:
        return _divide_common(size, divisor)
    (over, factor), quotient = divided[0], {}
    if factor == 0:
        return None
    for monomial, coefficient in _terms(size):
        rest = _remove(monomial, over)
        if rest is None or coefficient % factor:
            return None
        quotient[rest] = coefficient // factor
    return _make(quotient)


def known_factor(size: Size) -> int:
    """The largest number known to divide a size."""
    return size if isinstance(size, int) else gcd(*(c for _, c in size.terms))


def hint(size: Size, values: Mapping[str, int], default: int = 8192) -> int:
    """A typical value, for cost estimates: symbols without a value count as `default`."""
    if isinstance(size, int):
        return size
    known = {name: values.get(name, default) for name in symbols(size)}
    return evaluate(size, known)


def _divide_common(size: Size, divisor: Size) -> Size | None:
    """(k * divisor) / divisor for an integer or monomial k."""
    if not isinstance(size, Poly) or len(size.terms) != len(divisor.terms):
        return None
    for monomial, coefficient in size.terms:
        candidate = divide(_make({monomial: coefficient}), _make(dict([divisor.terms[0]])))
        if candidate is not None and candidate * divisor == size:
            return candidate
    return None


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Poly) else (((), size),)


def _make(sums: dict[Monomial, int]) -> Size:
    terms = tuple(sorted((m, c) for m, c in sums.items() if c))
    if not terms:
        return 0
    if len(terms) == 1 and terms[0][0] == ():
        return terms[0][1]
    return Poly(terms)


def _remove(monomial: Monomial, over: Monomial) -> Monomial | None:
    rest = list(monomial)
    for name in over:
        if name not in rest:
            return None
        rest.remove(name)
    return tuple(rest)


def _monomial_text(monomial: Monomial, coefficient: int) -> str:
    if not monomial:
        return str(coefficient)
    text = "*".join(monomial)
    return text if coefficient == 1 else f"{coefficient}*{text}"

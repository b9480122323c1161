"""Affine index maps: sum(coefficient_i * axis_i) + constant, with sizes as coefficients."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchweld.ir.size import Size, evaluate


@dataclass(frozen=True, slots=True)
class Affine:
    """`terms` are (axis name, coefficient), sorted by name, no coefficient zero."""

    terms: tuple[tuple[str, Size], ...] = ()
    const: Size = 0

    def __add__(self, other: Affine | Size) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.terms, self.const + other)
        sums = dict(self.terms)
        for name, coefficient in other.terms:
            sums[name] = sums.get(name, 0) + coefficient
        return of(sums, self.const + other.const)

    def __mul__(self, factor: Size) -> Affine:
        return of({name: c * factor for name, c in self.terms}, self.const * factor)

    def coefficient(self, name: str) -> Size:
        for axis_name, coefficient in self.terms:
            if axis_name == name:
                return coefficient
        return 0

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.terms)

    @property
    def as_axis(self) -> str | None:
        """The name of the axis that this map is, exactly; None for anything else."""
        if len(self.terms) == 1 and self.const == 0 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def substitute(self, images: Mapping[str, Affine]) -> Affine:
        """Each axis replaced by its image; axes without one stay."""
        if not any(name in images for name, _ in self.terms):
            return self
        sums: dict[str, Size] = {}
        const = self.const
        for name, coefficient in self.terms:
            image = images.get(name)
            terms = ((name, 1),) if image is None else image.terms
            for own, factor in terms:
                sums[own] = sums.get(own, 0) + factor * coefficient
            if image is not None:
                const = const + image.const * coefficient
        return of(sums, const)

    def rename(self, names: Mapping[str, str]) -> Affine:
        return of({names.get(n, n): c for n, c in self.terms}, self.const)

    def __repr__(self) -> str:
        parts = [n if c == 1 else f"{_paren(c)}*{n}" for n, c in self.terms]
        if self.const != 0 or not parts:
            parts.append(repr(self.const))
        return "+".join(parts)


def of(sums: Mapping[str, Size], const: Size = 0) -> Affine:
    return Affine(tuple(sorted((n, c) for n, c in sums.items() if c != 0)), const)


def axis(name: str) -> Affine:
    return Affine(((name, 1),))


def constant(size: Size) -> Affine:
    return Affine((), size)


def value(index: Affine, axes: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """The number that `index` is at one point."""
    return evaluate(index.const, sizes) + sum(evaluate(c, sizes) * axes[n] for n, c in index.terms)


def _paren(size: Size) -> str:
    text = repr(size)
    return text if text.isalnum() else f"({text})"

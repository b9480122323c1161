"""Chains: products in a row, each of what the one before became, over the same rows.

    comp [m:rows, k, h, n]
      %5  = reduce.sum[k] x[m, k] * W1[k, h]          a link: depth k, columns h
      %9  = cast (maximum %5 0) : bf16                what follows it, pointwise over rows and h
      %13 = reduce.sum[h] %9 * W2[h, n]               the next: its depth is the columns before
      store Y[m, n] %13

The axes that are neither rows nor batch fall into groups, the widths: depths and columns of links.
Everything varies along the batch, the rows, and at most one width; only the right factors (weights)
lie along two widths, and not along the rows. Whole widths fit on chip, so nothing between two links
is in memory but what others read. Factors have 16 bits, and nothing is summed over the rows
(docs/design.md has the reasons).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchweld.core import dtypes
from torchweld.ir.contraction import factor
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Instr,
    Load,
    Op,
    Pick,
    Reduce,
    Scan,
    Value,
    needed,
    operands,
    store_axes,
    value_axes,
)
from torchweld.ir.size import Size, product

Axes = frozenset[str]
Width = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """`value`: the Reduce. `left`, `right`: its factors of 16 bits, before they are widened.
    `right` is a Load."""

    value: Value
    left: Value
    right: Value
    depth: Width
    columns: Width


@dataclass(frozen=True, slots=True)
class Chain:
    """Axis names in the Comp's order; links in the order of their computation."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    widths: tuple[Width, ...]
    links: tuple[Link, ...]


def chain_of(comp: Comp) -> Chain | None:
    """The chain that `comp` is; None if it is anything else."""
    found = chain_or_reason(comp)
    return found if isinstance(found, Chain) else None


def chain_or_reason(comp: Comp) -> Chain | str:
    """The chain that `comp` is, or why it is none."""
    body = comp.body
    if any(isinstance(i, (Scan, Pick)) for i in body):
        return "it has a scan, or a reduction with two results"
    reduces = tuple(v for v, i in enumerate(body) if isinstance(i, Reduce))
    if any((body[v].monoid, body[v].dtype) != ("sum", dtypes.f32) for v in reduces):
        return "it reduces by something else than a sum in float32"
    if any(s.combine or s.init is not None for s in comp.stores):
        return "a store combines with what is there"
    found = [_Finder(comp, rows, reduces).chain() for rows in _possible_rows(body, reduces)]
    chain = next((f for f in found if isinstance(f, Chain)), None)
    return chain or (found[0] if found else "it makes no product")


def products_of(comp: Comp) -> list[tuple[Value, Value]]:
    """The factors of each matrix product in `comp`: either has an axis that the other has not."""
    axes = value_axes(comp.body)
    reduces = (v for v, i in enumerate(comp.body) if isinstance(i, Reduce) and i.monoid == "sum")
    pairs = (p for p in (_factors(comp.body, v) for v in reduces) if len(p) == 2)
    return [(a, b) for a, b in pairs if axes[a] - axes[b] and axes[b] - axes[a]]


def loads_of_a_width(comp: Comp, chain: Chain) -> int:
    """The most tiles of rows that are loaded along one width."""
    axes, rows = value_axes(comp.body), set(chain.rows)
    tiles = [axes[v] for v, i in enumerate(comp.body) if isinstance(i, Load) and axes[v] & rows]
    return max(sum(bool(along & set(width)) for along in tiles) for width in chain.widths)


def extent(comp: Comp, axes: Iterable[str]) -> Size:
    """Points along `axes`."""
    return product(comp.extent(a) for a in axes)


def _possible_rows(body: tuple[Instr, ...], reduces: Iterable[Value]) -> list[Axes]:
    """What either factor of a product varies along, and the other does not."""
    axes, found = value_axes(body), []
    for pair in (_factors(body, v) for v in reduces):
        if len(pair) == 2:
            one, other = (axes[v] for v in pair)
            found += [one - other, other - one]
    return [rows for rows in dict.fromkeys(found) if rows]


def _factors(body: tuple[Instr, ...], value: Value) -> tuple[Value, ...]:
    """Of the product that a Reduce sums; its argument alone if that is no product."""
    made = body[body[value].args[0]]
    return made.args if isinstance(made, Op) and made.name == "mul" else body[value].args


@dataclass(frozen=True, slots=True)
class _Finder:
    """A Comp, which of its axes are to be the rows, and its Reduces."""

    comp: Comp
    rows: Axes
    reduces: tuple[Value, ...]

    def chain(self) -> Chain | str:
        links: list[Link] = []
        for value in self.reduces:
            found = self._link(value)
            if isinstance(found, str):
                return found
            links.append(found)
        widths = tuple(dict.fromkeys(w for one in links for w in (one.depth, one.columns)))
        weighed = frozenset().union(*(self.axes[one.right] for one in links))
        batch = weighed.difference(*widths)
        known = sorted([*batch, *self.rows, *(a for w in widths for a in w)])
        if known != sorted(self.comp.extents):
            return "its axes are not rows and whole widths"
        if not self._in_a_row(links):
            return "its products are side by side"
        chain = Chain(self._ordered(batch), self._ordered(self.rows), widths, tuple(links))
        return self._stray_value(chain) or self._bad_store(chain) or chain

    def _in_a_row(self, links: list[Link]) -> bool:
        """Whether a product is computed from another."""
        values = {one.value for one in links}
        return any(values & needed(self.comp.body, [one.left]) for one in links)

    @property
    def axes(self) -> tuple[Axes, ...]:
        return value_axes(self.comp.body)

    def _ordered(self, axes: Axes) -> tuple[str, ...]:
        return tuple(a.name for a in self.comp.axes if a.name in axes)

    def _link(self, value: Value) -> Link | str:
        body, depth = self.comp.body, frozenset(self.comp.body[value].axes)
        if depth & self.rows:
            return "a sum over the rows"
        pair = _factors(body, value)
        left = [v for v in pair if self.rows <= self.axes[v]]
        right = [v for v in pair if not self.rows & self.axes[v]]
        if len(left) != 1 or len(right) != 1:
            return "a sum that is no product of rows and a weight"
        own = self.axes[right[0]] - self.axes[left[0]]
        if not own or not depth <= self.axes[left[0]] & self.axes[right[0]]:
            return "a sum that is no product of rows and a weight"
        one, other = (factor(body, v) for v in (*left, *right))
        if one is None or other is None or body[one].dtype != body[other].dtype:
            return "the factors of a product are not of the same 16 bits"
        weight = body[other]
        if not isinstance(weight, Load) or weight.guard is not None or operands(weight):
            return "a weight is computed"
        return Link(value, one, other, self._ordered(depth), self._ordered(own))

    def _widths(self, value: Value, widths: tuple[Width, ...]) -> tuple[Width, ...]:
        """Those that a value varies along."""
        return tuple(w for w in widths if self.axes[value] & set(w))

    def _stray_value(self, chain: Chain) -> str | None:
        """Why something is no tile of rows and one width, and no weight."""
        body, weights = self.comp.body, {one.right for one in chain.links}
        widened = {v for v, i in enumerate(body) if isinstance(i, Cast) and i.arg in weights}
        inside = weights | widened | {body[one.value].args[0] for one in chain.links}
        for value, instr in enumerate(body):
            if value not in inside:
                if len(self._widths(value, chain.widths)) > 1:
                    return "a value varies along two widths"
                if inside.intersection(operands(instr)) and not isinstance(instr, Reduce):
                    return "a weight is also read otherwise"
        return None

    def _bad_store(self, chain: Chain) -> str | None:
        for store in self.comp.stores:
            along = store_axes(self.comp, store, self.axes)
            if not self.rows <= along or sum(bool(along & set(w)) for w in chain.widths) != 1:
                return "a store of something else than values of a row"
        return None

"""Chains: products in a row, each of what the one before became, over the same rows.

    comp [m:rows, k, h, n]
      %5  = reduce.sum[k] x[m, k] * W1[k, h]          a link: depth k, columns h
      %9  = cast (maximum %5 0) : bf16                what follows it, pointwise over rows and h
      %13 = reduce.sum[h] %9 * W2[h, n]               the next: its depth is the columns before
      %20 = reduce.sum[m] x[m, k] * %9[m, h]          a total: of products of two values of a row,
      %21 = reduce.sum[m] %9[m, h]                    or of one
      store ...

The axes that are neither rows nor batch fall into groups, the widths: depths and columns of links.
Everything varies along the batch, the rows, and at most one width; only the right factors (weights)
lie along two widths, and not along the rows. Whole widths fit on chip, so nothing between two links
is in memory. A training step's backward is a chain, too: its totals are the gradients of weights
and biases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchweld.core import dtypes
from torchweld.ir.contraction import TENSOR_DTYPES, factor
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
    store_operands,
    value_axes,
)
from torchweld.ir.size import Size, product
from torchweld.templates.pointwise_reduce.gpu.schedule import next_pow2

Axes = frozenset[str]
Width = tuple[str, ...]

_DTYPES = TENSOR_DTYPES | {dtypes.f32}


@dataclass(frozen=True, slots=True)
class Link:
    """`value`: the Reduce. `left`, `right`: its factors as they are multiplied: of 16 bits, before
    they are widened, or float32. `right` is a Load."""

    value: Value
    left: Value
    right: Value
    depth: Width
    columns: Width


@dataclass(frozen=True, slots=True)
class Total:
    """`value`: a Reduce over all rows, of one value of each row, or of the product of two;
    `factors` and `widths`: these, and what they vary along."""

    value: Value
    factors: tuple[Value, ...]
    widths: tuple[Width, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Axis names in the Comp's order; links in the order of their computation."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    widths: tuple[Width, ...]
    links: tuple[Link, ...]
    totals: tuple[Total, ...]

    @property
    def gradients(self) -> tuple[Total, ...]:
        """Totals that are products of matrices, whose depth is the rows."""
        return tuple(t for t in self.totals if len(t.factors) == 2)

    @property
    def pairs(self) -> tuple[tuple[Width, Width], ...]:
        """The widths of all products."""
        links = tuple((one.depth, one.columns) for one in self.links)
        return (*links, *(t.widths for t in self.gradients))


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
    chains = [f for f in found if isinstance(f, Chain)]
    if chains:
        return min(chains, key=lambda c: _across(comp, c))
    return found[0] if found else "it makes no product"


def _across(comp: Comp, chain: Chain) -> tuple[int, int, int, int]:
    """How many widths have no known size, the lanes of the widest other one, how many products sum
    over the rows, and the sizes of widths: what is short is a width."""
    sizes = [extent(comp, w) for w in chain.widths]
    known = [n for n in sizes if isinstance(n, int)]
    lanes = max(map(next_pow2, known), default=1)
    return len(sizes) - len(known), lanes, len(chain.gradients), sum(known)


def products_of(comp: Comp) -> list[tuple[Value, Value]]:
    """The factors of each matrix product in `comp`: either has an axis that the other has not."""
    axes = value_axes(comp.body)
    reduces = (v for v, i in enumerate(comp.body) if isinstance(i, Reduce) and i.monoid == "sum")
    pairs = (p for p in (_factors(comp.body, v) for v in reduces) if len(p) == 2)
    return [(a, b) for a, b in pairs if axes[a] - axes[b] and axes[b] - axes[a]]


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


def _multiplied(body: tuple[Instr, ...], values: Iterable[Value]) -> tuple[Value, ...] | None:
    """What tensor cores take for factors: 16-bit values, or float32; None if they are neither, or
    differ."""
    narrow = [factor(body, v) for v in values]
    taken = tuple(v if n is None else n for v, n in zip(values, narrow))
    kinds = {body[v].dtype for v in taken}
    return taken if len(kinds) == 1 and kinds <= _DTYPES else None


@dataclass(frozen=True, slots=True)
class _Finder:
    """A Comp, which of its axes are to be the rows, and its Reduces."""

    comp: Comp
    rows: Axes
    reduces: tuple[Value, ...]

    def chain(self) -> Chain | str:
        links: list[Link] = []
        for value in (v for v in self.reduces if not self.rows & set(self.comp.body[v].axes)):
            found = self._link(value)
            if isinstance(found, str):
                return found
            links.append(found)
        sums = [v for v in self.reduces if self.rows & set(self.comp.body[v].axes)]
        widths = tuple(dict.fromkeys(w for one in links for w in (one.depth, one.columns)))
        weighed = frozenset().union(*(self.axes[one.right] for one in links))
        batch = weighed.difference(*widths)
        widths += self._more_widths(sums, batch.union(*widths))
        if sorted([*batch, *self.rows, *(a for w in widths for a in w)]) != sorted(
            self.comp.extents
        ):
            return "its axes are not rows and whole widths"
        totals = []
        for value in sums:
            found = self._total(value, widths)
            if isinstance(found, str):
                return found
            totals.append(found)
        chain = Chain(self._ordered(batch), self._ordered(self.rows), widths, tuple(links),
                      tuple(totals))  # fmt: skip
        if not chain.gradients and not self._in_a_row(links):
            return "its products are side by side"
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
        pair = _factors(body, value)
        left = [v for v in pair if self.rows <= self.axes[v]]
        right = [v for v in pair if not self.rows & self.axes[v]]
        if len(left) != 1 or len(right) != 1:
            return "a sum that is no product of rows and a weight"
        own = self.axes[right[0]] - self.axes[left[0]]
        if not own or not depth <= self.axes[left[0]] & self.axes[right[0]]:
            return "a sum that is no product of rows and a weight"
        taken = _multiplied(body, (*left, *right))
        if taken is None:
            return "the factors of a product are neither of 16 bits nor float32"
        weight = body[taken[1]]
        if not isinstance(weight, Load) or weight.guard is not None or operands(weight):
            return "a weight is computed"
        return Link(value, *taken, self._ordered(depth), self._ordered(own))

    def _more_widths(self, sums: list[Value], known: Axes) -> tuple[Width, ...]:
        """Of factors that only totals have."""
        factors = (v for s in sums for v in _factors(self.comp.body, s))
        own = (self.axes[v] - self.rows - known for v in factors)
        return tuple(dict.fromkeys(self._ordered(o) for o in own if o))

    def _total(self, value: Value, widths: tuple[Width, ...]) -> Total | str:
        body, of = self.comp.body, self.comp.body[value].args
        if frozenset(body[value].axes) != self.rows:
            return "a sum over some of the rows"
        pair = _factors(body, value)
        if len(self._widths(of[0], widths)) == 2 and len(pair) == 2:
            along = tuple(self._widths(v, widths) for v in pair)
            taken = _multiplied(body, pair)
            if taken is None:
                return "the factors of a product are neither of 16 bits nor float32"
            if all(len(w) == 1 and self.rows <= self.axes[v] for v, w in zip(pair, along)):
                return Total(value, taken, tuple(w[0] for w in along))
        along = self._widths(of[0], widths)
        if len(along) != 1 or not self.rows <= self.axes[of[0]]:
            return "a sum over the rows of something else than values of a row"
        return Total(value, of, along)

    def _widths(self, value: Value, widths: tuple[Width, ...]) -> tuple[Width, ...]:
        """Those that a value varies along."""
        return tuple(w for w in widths if self.axes[value] & set(w))

    def _stray_value(self, chain: Chain) -> str | None:
        """Why something is no tile of rows and one width, and no weight."""
        body, weights = self.comp.body, {one.right for one in chain.links}
        widened = {v for v, i in enumerate(body) if isinstance(i, Cast) and i.arg in weights}
        summed = [one.value for one in chain.links]
        summed += [t.value for t in chain.gradients]
        inside = weights | widened | {body[v].args[0] for v in summed}
        late = self.after_totals(chain)
        for value, instr in enumerate(body):
            used = set(operands(instr))
            if value in late:
                if self.axes[value] & self.rows:
                    return "a sum over the rows is used in every row"
            elif value not in inside:
                if len(self._widths(value, chain.widths)) > 1:
                    return "a value varies along two widths"
                if used & inside and not isinstance(instr, Reduce):
                    return "a weight is also read otherwise"
        return None

    def after_totals(self, chain: Chain) -> set[Value]:
        """Totals, and what is computed from them."""
        late = {t.value for t in chain.totals}
        for value, instr in enumerate(self.comp.body):
            if late.intersection(operands(instr)):
                late.add(value)
        return late

    def _bad_store(self, chain: Chain) -> str | None:
        late = self.after_totals(chain)
        for store in self.comp.stores:
            along = store_axes(self.comp, store, self.axes)
            if late.intersection(store_operands(store)):
                if along & self.rows:
                    return "a sum over the rows is stored in every row"
            elif not self.rows <= along or sum(bool(along & set(w)) for w in chain.widths) != 1:
                return "a store of something else than values of a row"
        return None


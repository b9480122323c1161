"""Sums of scores over a batch, the gradient of a bias: a score nest without values.

    comp [turns..., batch..., rows..., keys..., depth...]
      inner   s = reduce.sum[depth] row * key     two or more, over all turns (nest.py)
      scores  pointwise work over turns, batch, rows and keys
      total   o = reduce.sum[turns] score
      the rest pointwise over batch, rows and keys; stores

A tile of rows and keys takes one turn after the other, always in the same order. What is stored has
the size of the bias, and the scores of the batch are never in memory.
"""

from __future__ import annotations

from torchweld.ir.nodes import Comp, Pick, Reduce, Scan, Value, needed, store_axes, value_axes
from torchweld.ir.online import Walk
from torchweld.templates.attention.nest import (
    Axes,
    Inner,
    Nest,
    bound_where,
    factors_of,
    nest_of,
    stored,
)


def is_nest(comp: Comp) -> bool:
    """Whether a template for attention makes `comp`, of either form."""
    return nest_of(comp) is not None or sums_of(comp) is not None


def sums_of(comp: Comp) -> Nest | None:
    """The sums that `comp` is, as a nest with `turns`; None if it is anything else."""
    found = sums_or_reason(comp)
    return found if isinstance(found, Nest) else None


def sums_or_reason(comp: Comp) -> Nest | str:
    """The sums that `comp` is, or why it is none."""
    body, axes = comp.body, value_axes(comp.body)
    reduces = [v for v, i in enumerate(body) if isinstance(i, Reduce)]
    last = [v for v in reduces if len(needed(body, [v]).intersection(reduces)) > 1]
    if len(last) != 1 or any(isinstance(i, (Scan, Pick)) for i in body):
        return "it is no sum of scores"
    (total,) = last
    if body[total].monoid != "sum" or len(reduces) < 3:
        return "it is no sum of what is made of two products, as a gradient of scores is"
    turns = frozenset(body[total].axes)
    kept = frozenset(a for a in comp.extents if a in axes[total])
    inners = tuple(_inner(comp, axes, v, turns) for v in reduces if v != total)
    if None in inners:
        return "what is summed is not made of products of rows and keys"
    return _sorted(comp, axes, total, inners, kept)


def _sorted(comp: Comp, axes, total: Value, inners: tuple[Inner, ...], kept: Axes) -> Nest | str:
    """The axes of what is stored, by the factors of the products that vary along them."""
    sides = [(axes[i.row] & kept, axes[i.key] & kept) for i in inners]
    batch = frozenset.intersection(*(a & b for a, b in sides))
    rows, keys = (frozenset().union(*(s[n] for s in sides)) - batch for n in (0, 1))
    turns = frozenset(comp.body[total].axes)
    sides = zip(*((i.row, i.key) for i in inners))
    both = (frozenset().union(*(axes[v] for v in factors)) for factors in sides)
    if rows & keys or not rows or len(keys) != 1 or rows | keys | batch != kept:
        return "the factors do not vary along rows or keys alone"
    if not turns <= frozenset.intersection(*both):
        return "rows or keys are summed over"
    if any(store_axes(comp, s, axes) != kept or s.combine or s.guard is not None
           for s in comp.stores):  # fmt: skip
        return "a result does not vary along all rows and keys"
    if not axes[comp.body[total].args[0]] <= kept | frozenset(comp.body[total].axes):
        return "scores vary along more than rows and keys"

    def ordered(names: Axes) -> tuple[str, ...]:
        return tuple(a.name for a in comp.axes if a.name in names)

    bound = bound_where(comp, comp.body[total].args[0], keys, rows)
    return Nest(ordered(batch), ordered(rows), ordered(keys), inners, (total,), (),
                (Walk((total,)),), bound, ordered(turns))  # fmt: skip


def _inner(comp: Comp, axes, value: Value, turns: Axes) -> Inner | None:
    """A product; its key factor is the one along the axis that results have adjacent."""
    body, depth = comp.body, frozenset(comp.body[value].axes)
    factors = factors_of(body, body[value])
    if factors is None or depth & turns or not all(depth <= axes[v] for v in factors):
        return None
    near = comp.stores[0].index[-1].axes
    key = [v for v in factors if axes[v] & near]
    row = [v for v in factors if not axes[v] & near]
    if len(key) != 1:
        return None
    return Inner(value, stored(body, row[0]), stored(body, key[0]), body[value].axes)

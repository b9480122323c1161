"""Score nests: the form that the templates for attention fill.

    comp [batch..., rows..., keys..., depth..., columns...]
      inner       s = reduce.sum[depth] row * key     row over batch, rows, depth; key over batch,
                                                      keys, depth; one or more, each its own depth
      scores      pointwise work over batch, rows and keys: scale, mask, bias, exp
      statistics  reduce over keys of such values; zero or more
      outer       o = reduce.sum[keys] weight * key   weight: a score; key over batch, keys,
                                                      columns; one or more, each its own columns
      the rest    pointwise over batch, rows and columns; stores

The scores, rows x keys of them, are never in memory. Softmax attention has one inner, a maximum, a
sum and one outer. Its gradient of the queries has two inners (query * key, result gradient * value)
and one outer; that of keys and values two inners and two outers, with queries for keys. Other
values may live on fewer axes: statistics that were saved, document ids, slopes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Const,
    Index,
    Instr,
    Op,
    Pick,
    Reduce,
    Scan,
    Value,
    operands,
    store_axes,
    value_axes,
)
from torchweld.ir.online import Walk, walks

Axes = frozenset[str]


@dataclass(frozen=True, slots=True)
class Inner:
    """`value`: the Reduce. `row`, `key`: its factors as they are stored, before a cast that
    widens."""

    value: Value
    row: Value
    key: Value
    depth: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outer:
    """`value`: the Reduce. `weight`: a score in float32; `key`: the other factor as it is stored,
    before a cast that widens."""

    value: Value
    weight: Value
    key: Value
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """Keys that can count at all: low <= key < high along `axis`, both maps over rows (None: no
    bound). Others may count or not; those outside do not."""

    axis: str | None = None
    low: Affine | None = None
    high: Affine | None = None


@dataclass(frozen=True, slots=True)
class Nest:
    """Axis names in the Comp's order. `statistics`: reductions over keys that are no products.
    `walks`: in which order reductions over keys are done (ir/online.py). `turns`: axes that scores
    are summed over, of sums (sums.py)."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    keys: tuple[str, ...]
    inners: tuple[Inner, ...]
    statistics: tuple[Value, ...]
    outers: tuple[Outer, ...]
    walks: tuple[Walk, ...]
    bound: Bound
    turns: tuple[str, ...] = ()


def nest_of(comp: Comp) -> Nest | None:
    """The score nest that `comp`, in its normal form, is; None if it is anything else."""
    found = nest_or_reason(comp)
    return found if isinstance(found, Nest) else None


def nest_or_reason(comp: Comp) -> Nest | str:
    """The score nest that `comp` is, or why it is none."""
    body, axes = comp.body, value_axes(comp.body)
    if any(isinstance(i, (Scan, Pick)) for i in body):
        return "it has a scan, or a reduction with two results"
    keys = _keys(body)
    if keys is None:
        return "it does not sum products over one set of keys"
    reduces = {v: i for v, i in enumerate(body) if isinstance(i, Reduce)}
    inners = [_inner(body, axes, v, keys) for v, i in reduces.items() if frozenset(i.axes) != keys]
    if None in inners:
        return "a reduction over other axes than the keys is not a product of rows and keys"
    return _Finder(comp, axes, keys, tuple(inners)).nest()


def _keys(body: tuple[Instr, ...]) -> Axes | None:
    """The axes of all reductions that depend on another one, if these agree."""
    above: list[bool] = []
    found: set[Axes] = set()
    for instr in body:
        reduces = [isinstance(body[v], Reduce) or above[v] for v in operands(instr)]
        above.append(any(reduces))
        if isinstance(instr, Reduce) and above[-1]:
            found.add(frozenset(instr.axes))
    return next(iter(found)) if len(found) == 1 else None


def _inner(body: tuple[Instr, ...], axes, value: Value, keys: Axes) -> Inner | None:
    total, depth = body[value], frozenset(body[value].axes)
    factors = factors_of(body, total)
    if factors is None or depth & keys:
        return None
    key = [v for v in factors if axes[v] & keys]
    row = [v for v in factors if not axes[v] & keys]
    if len(key) != 1 or not depth <= axes[key[0]] & axes[row[0]]:
        return None
    return Inner(value, stored(body, row[0]), stored(body, key[0]), total.axes)


def factors_of(body: tuple[Instr, ...], total: Reduce) -> tuple[Value, Value] | None:
    if total.monoid != "sum" or total.dtype not in (dtypes.f32, dtypes.f64):
        return None
    product = body[total.args[0]]
    return product.args if isinstance(product, Op) and product.name == "mul" else None


def stored(body: tuple[Instr, ...], value: Value) -> Value:
    """What a factor is the widened value of, or the factor itself."""
    cast = body[value]
    if isinstance(cast, Cast) and body[cast.arg].dtype.is_low_precision:
        return cast.arg
    return value


@dataclass(frozen=True, slots=True)
class _Finder:
    """A Comp whose keys and inner products are known."""

    comp: Comp
    axes: tuple[Axes, ...]
    keys: Axes
    inners: tuple[Inner, ...]

    def nest(self) -> Nest | str:
        over_keys = [
            v for v, i in enumerate(self.comp.body)
            if isinstance(i, Reduce) and frozenset(i.axes) == self.keys
        ]  # fmt: skip
        outers = [self._outer(v) for v in over_keys]
        statistics = tuple(v for v, o in zip(over_keys, outers) if o is None)
        outers = tuple(o for o in outers if o is not None)
        columns = frozenset().union(*(o.columns for o in outers))
        batch = self._key_side(outers) - columns
        rows = frozenset(self.comp.extents) - batch - self.keys - self._depth() - columns
        why = self._refusal(batch, rows, statistics, outers)
        if why is not None:
            return why
        return Nest(
            self._ordered(batch), self._ordered(rows), self._ordered(self.keys), self.inners,
            statistics, outers, walks(self.comp, self.keys), bound_of(self.comp, self.keys, rows),
        )  # fmt: skip

    def _outer(self, value: Value) -> Outer | None:
        """The product that a reduction over keys is; None for a statistic."""
        body, scores = self.comp.body, self.keys | self._row_side() | self._key_side(())
        factors = factors_of(body, body[value])
        wide = [v for v in factors or () if self.axes[v] - scores]
        if len(wide) != 1:
            return None
        (weight,) = (v for v in factors if v != wide[0])
        columns = self._ordered(self.axes[wide[0]] - scores)
        return Outer(value, weight, stored(body, wide[0]), columns)

    def _depth(self) -> Axes:
        return frozenset().union(*(i.depth for i in self.inners))

    def _row_side(self) -> Axes:
        """Axes of the rows' factors, but for depth."""
        return frozenset().union(*(self.axes[i.row] for i in self.inners)) - self._depth()

    def _key_side(self, outers: tuple[Outer, ...]) -> Axes:
        found = frozenset().union(*(self.axes[p.key] for p in (*self.inners, *outers)))
        return found - self.keys - self._depth()

    def _ordered(self, names: Axes) -> tuple[str, ...]:
        return tuple(a.name for a in self.comp.axes if a.name in names)

    def _refusal(self, batch: Axes, rows: Axes, statistics, outers) -> str | None:
        """Why the parts do not make a nest: each value has a place that a template knows."""
        if not outers:
            return "scores are not multiplied with values"
        columns = [frozenset(o.columns) for o in outers]
        depth = [frozenset(i.depth) for i in self.inners]
        if any(a & b for k, a in enumerate(columns) for b in columns[:k] if a != b):
            return "columns of two products overlap"
        if not all(self.axes[i.key] <= batch | self.keys | d for i, d in zip(self.inners, depth)):
            return "a factor of the scores varies along both rows and keys"
        if not all(self.axes[o.key] <= batch | self.keys | c for o, c in zip(outers, columns)):
            return "a factor of the result varies along both rows and keys"
        score = batch | rows | self.keys
        if not all(self.axes[o.weight] <= score for o in outers):
            return "a weight varies along columns"
        if not all(self.axes[self.comp.body[s].args[0]] <= score for s in statistics):
            return "a statistic depends on more than the scores"
        return self._misplaced(batch, rows)

    def _misplaced(self, batch: Axes, rows: Axes) -> str | None:
        stored_axes = [store_axes(self.comp, s, self.axes) for s in self.comp.stores]
        if any(a & (self.keys | self._depth()) for a in stored_axes):
            return "something as large as the scores is stored"
        if any(s.combine or s.guard is not None for s in self.comp.stores):
            return "a store combines with what is there, or is conditional"
        if any(not batch | rows <= a for a in stored_axes):
            return "a result does not vary along all rows"
        return None


# -- which keys count at all --

Condition = tuple[Affine, int]  # affine <= number


def bound_of(comp: Comp, keys: Axes, rows: Axes) -> Bound:
    """The keys outside which every reduction over keys has nothing to reduce: those that a
    comparison of affine maps of rows and one axis of keys leaves."""
    deaths = _Deaths(comp)
    for value in range(len(comp.body)):  # in order: no question goes deep
        for kind in _NEUTRAL.values():
            deaths.of(value, kind)
    common: set[Condition] | None = None
    for instr in comp.body:
        if isinstance(instr, Reduce) and frozenset(instr.axes) == keys:
            found = deaths.of(instr.args[0], _NEUTRAL.get(instr.monoid))
            common = found if common is None else common & found
    return _bound(common or set(), keys, rows)


_NEUTRAL = {"max": "lowest", "sum": "zero"}


def bound_where(comp: Comp, value: Value, keys: Axes, rows: Axes) -> Bound:
    """The keys outside which a value is zero."""
    return _bound(_Deaths(comp).of(value, "zero"), keys, rows)


def _bound(conditions: set[Condition], keys: Axes, rows: Axes) -> Bound:
    """The first bounds of the first axis of keys that has any."""
    for axis in sorted(keys):
        low = high = None
        for index, most in sorted(conditions, key=repr):
            step = index.coefficient(axis)
            rest = index + affine.axis(axis) * -step
            if not rest.axes <= rows or step not in (1, -1):
                continue
            if step == 1 and high is None:  # axis + rest <= most
                high = rest * -1 + (most + 1)
            if step == -1 and low is None:  # rest - axis <= most
                low = rest + -most
        if low is not None or high is not None:
            return Bound(axis, low, high)
    return Bound()


class _Deaths:
    """Conditions without which a value is zero, or -inf."""

    def __init__(self, comp: Comp) -> None:
        self.body = comp.body
        self._known: dict[tuple[Value, str | None], set[Condition]] = {}

    def of(self, value: Value, kind: str | None) -> set[Condition]:
        key = value, kind
        if key not in self._known:
            self._known[key] = self._found(self.body[value], kind) if kind else set()
        return self._known[key]

    def _found(self, instr: Instr, kind: str) -> set[Condition]:
        if isinstance(instr, Cast):
            return self.of(instr.arg, kind) if self.body[instr.arg].dtype.is_float else set()
        if not isinstance(instr, Op):
            return set()
        if instr.name == "where":
            return self._chosen(instr, kind)
        if instr.name == "exp":
            return self.of(instr.args[0], "lowest") if kind == "zero" else set()
        rule = _RULES.get((instr.name, kind))
        return rule(self, instr.args) if rule else set()

    def _chosen(self, instr: Op, kind: str) -> set[Condition]:
        test, yes, no = instr.args
        if self._is(no, kind):
            return self._holds(test, True) | self.of(yes, kind)
        if self._is(yes, kind):
            return self._holds(test, False) | self.of(no, kind)
        return self.of(yes, kind) & self.of(no, kind)

    def _is(self, value: Value, kind: str) -> bool:
        instr = self.body[value]
        wanted = 0 if kind == "zero" else -float("inf")
        return isinstance(instr, Const) and instr.value == wanted

    def positive(self, value: Value) -> bool:
        instr = self.body[value]
        return isinstance(instr, Const) and instr.value > 0

    def _holds(self, value: Value, wanted: bool) -> set[Condition]:
        """Comparisons that hold where a truth is `wanted`."""
        found: set[Condition] = set()
        seen, todo = set(), [(value, wanted)]
        while todo:
            value, wanted = one = todo.pop()
            instr = self.body[value]
            if one in seen or not isinstance(instr, Op):
                continue
            seen.add(one)
            if instr.name == "logical_not":
                todo.append((instr.args[0], not wanted))
            elif instr.name == ("bit_and" if wanted else "bit_or"):
                todo += [(v, wanted) for v in instr.args]
            else:
                found |= self._compared(instr, wanted)
        return found

    def _compared(self, instr: Op, wanted: bool) -> set[Condition]:
        name = instr.name if wanted else _OPPOSITE.get(instr.name)
        if name not in _AT_MOST:
            return set()
        a, b = (self._index(v) for v in instr.args)
        if a is None or b is None:
            return set()
        signed = ((a + b * -1) * sign for sign, _ in _AT_MOST[name])
        return {
            (Affine(index.terms), most - index.const)
            for index, (_, most) in zip(signed, _AT_MOST[name])
            if all(isinstance(n, int) for n in (index.const, *(c for _, c in index.terms)))
        }

    def _index(self, value: Value) -> Affine | None:
        instr = self.body[value]
        if isinstance(instr, Index):
            return instr.map
        is_number = isinstance(instr, Const) and instr.dtype == dtypes.i64
        return affine.constant(int(instr.value)) if is_number else None


# a ? b as sign * (a - b) <= number
_AT_MOST = {
    "le": ((1, 0),), "lt": ((1, -1),), "ge": ((-1, 0),), "gt": ((-1, -1),),
    "eq": ((1, 0), (-1, 0)),
}  # fmt: skip
_OPPOSITE = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le", "ne": "eq"}


def _scaled(deaths: _Deaths, args: tuple[Value, ...]) -> set[Condition]:
    """-inf times a positive number."""
    for x, factor in (args, args[::-1]):
        if deaths.positive(factor):
            return deaths.of(x, "lowest")
    return set()


# What makes the result of an operation zero, or -inf. NaN and infinities in places that a mask
# excludes do not count: a kernel that skips these does not see them.
_RULES = {
    ("mul", "zero"): lambda d, args: d.of(args[0], "zero") | d.of(args[1], "zero"),
    ("div", "zero"): lambda d, args: d.of(args[0], "zero"),
    ("neg", "zero"): lambda d, args: d.of(args[0], "zero"),
    ("add", "zero"): lambda d, args: d.of(args[0], "zero") & d.of(args[1], "zero"),
    ("sub", "zero"): lambda d, args: d.of(args[0], "zero") & d.of(args[1], "zero"),
    ("mul", "lowest"): _scaled,
    ("div", "lowest"): lambda d, a: d.of(a[0], "lowest") if d.positive(a[1]) else set(),
    ("add", "lowest"): lambda d, args: d.of(args[0], "lowest") | d.of(args[1], "lowest"),
    ("sub", "lowest"): lambda d, args: d.of(args[0], "lowest"),
}

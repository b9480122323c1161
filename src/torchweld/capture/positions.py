"""Masks by what they say of positions, for sizes that are not known: integers that are linear in
their indices (`arange` and what is made of it), and conjunctions of comparisons of such integers.

    le(arange(s)[None, :], arange(s)[:, None])   ->   0 <= 1*i - 1*j
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchweld.capture.constant import example, inputs_first, name_of, written


@dataclass(frozen=True, slots=True)
class Form:
    """const + sum(coefs[d] * index along dimension d)."""

    coefs: tuple[int, ...]
    const: int

    @property
    def is_constant(self) -> bool:
        return not any(self.coefs)

    @property
    def never_negative(self) -> bool:
        return self.const >= 0 and all(c >= 0 for c in self.coefs)


@dataclass(frozen=True, slots=True)
class Truth:
    """True where every form is >= 0; `rank` dimensions."""

    forms: frozenset[Form]
    rank: int

    @property
    def conditions(self) -> frozenset[Form]:
        """The forms that may be negative somewhere."""
        return frozenset(f for f in self.forms if not f.never_negative)


Value = Form | Truth | None


class Positions:
    """Evaluates masks of one graph on demand; None is what it cannot say."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._written = written(graph)
        self._values: dict[torch.fx.Node, Value] = {}

    def mask(self, node) -> Truth | None:
        """What a boolean mask says, or None."""
        if not isinstance(node, torch.fx.Node):
            return None
        for pending in inputs_first(node, self._values):
            self._values[pending] = self._apply(pending)
        value = self._values[node]
        return value if isinstance(value, Truth) else None

    def _apply(self, node: torch.fx.Node) -> Value:
        rule = _RULES.get(name_of(node))
        if rule is None or node in self._written or example(node) is None:
            return None
        return _fitted(rule(self, node), example(node))

    def of(self, arg) -> Value:
        """The value of an argument: a node's, or an integer."""
        if isinstance(arg, torch.fx.Node):
            return self._values.get(arg)
        return Form((), arg) if type(arg) is int else None


def _fitted(value: Value, result: torch.Tensor) -> Value:
    """Padded on the left to the result's rank; along an extent of one an index is zero."""
    if isinstance(value, Truth):
        return Truth(frozenset(_fit(f, result) for f in value.forms), result.dim())
    return None if value is None else _fit(value, result)


def _fit(form: Form, result: torch.Tensor) -> Form:
    coefs = (0,) * (result.dim() - len(form.coefs)) + form.coefs
    sizes = result.shape
    return Form(tuple(0 if _is_one(s) else c for s, c in zip(sizes, coefs)), form.const)


def _is_one(size) -> bool:
    return isinstance(size, int) and size == 1


def _mapped(value: Value, change: Callable[[Form], Form]) -> Value:
    if isinstance(value, Truth):
        return Truth(frozenset(map(change, value.forms)), value.rank)
    return None if value is None else change(value)


def _arange(p: Positions, node: torch.fx.Node) -> Value:
    start = node.args[0] if len(node.args) == 2 else 0
    plain = len(node.args) <= 2 and not {"start", "end", "step"} & node.kwargs.keys()
    if not plain or type(start) is not int or example(node).dtype != torch.int64:
        return None
    return Form((1,), start)


def _ones(p: Positions, node: torch.fx.Node) -> Value:
    result = example(node)
    return Truth(frozenset(), result.dim()) if result.dtype == torch.bool else None


def _sum_of(sign: int) -> Callable:
    def rule(p: Positions, node: torch.fx.Node) -> Value:
        if len(node.args) != 2 or node.kwargs:
            return None
        return _combine(p.of(node.args[0]), p.of(node.args[1]), sign)

    return rule


def _combine(left: Value, right: Value, sign: int) -> Form | None:
    """left + sign * right, aligned on the right as broadcasting does."""
    if not isinstance(left, Form) or not isinstance(right, Form):
        return None
    rank = max(len(left.coefs), len(right.coefs))
    a, b = ((0,) * (rank - len(f.coefs)) + f.coefs for f in (left, right))
    return Form(tuple(x + sign * y for x, y in zip(a, b)), left.const + sign * right.const)


def _comparison(greater: bool, strict: bool) -> Callable:
    def rule(p: Positions, node: torch.fx.Node) -> Value:
        left, right = map(p.of, node.args[:2])
        form = _combine(left, right, -1) if greater else _combine(right, left, -1)
        if form is None:
            return None
        return Truth(frozenset({Form(form.coefs, form.const - strict)}), len(form.coefs))

    return rule


def _equality(wanted: bool) -> Callable:
    """Of two constants; anything else is no conjunction of inequalities."""

    def rule(p: Positions, node: torch.fx.Node) -> Value:
        form = _combine(*map(p.of, node.args[:2]), -1)
        if form is None or not form.is_constant:
            return None
        holds = (form.const == 0) == wanted
        return Truth(frozenset() if holds else frozenset({Form((), -1)}), len(form.coefs))

    return rule


def _and(p: Positions, node: torch.fx.Node) -> Value:
    left, right = map(p.of, node.args[:2])
    if not isinstance(left, Truth) or not isinstance(right, Truth):
        return None
    rank = max(left.rank, right.rank)
    forms = (
        Form((0,) * (rank - len(f.coefs)) + f.coefs, f.const) for f in left.forms | right.forms
    )
    return Truth(frozenset(forms), rank)


def _same(p: Positions, node: torch.fx.Node) -> Value:
    """A copy, or a conversion that keeps kind."""
    value, result = p.of(node.args[0]), example(node)
    kept = result.dtype == (torch.bool if isinstance(value, Truth) else torch.int64)
    return value if kept else None


def _unsqueeze(p: Positions, node: torch.fx.Node) -> Value:
    at = node.args[1] % example(node).dim()
    return _mapped(p.of(node.args[0]), lambda f: Form((*f.coefs[:at], 0, *f.coefs[at:]), f.const))


def _getitem(p: Positions, node: torch.fx.Node) -> Value:
    value, index = p.of(node.args[0]), node.args[1]
    index = index if isinstance(index, tuple) else (index,)
    if isinstance(value, Form) and value.is_constant:
        return Form((), value.const)
    if value is None or not all(i is None or _from_start(i) for i in index):
        return None

    def change(form: Form) -> Form:
        coefs = iter(form.coefs)
        return Form((*(0 if i is None else next(coefs) for i in index), *coefs), form.const)

    return _mapped(value, change)


def _from_start(index) -> bool:
    if not isinstance(index, slice) or index.start not in (None, 0) or index.step not in (None, 1):
        return False
    return index.stop is None or not isinstance(index.stop, int) or index.stop >= 0


def _slice(p: Positions, node: torch.fx.Node) -> Value:
    start, step = (*node.args, 0, None, None, 1)[2], node.args[4] if len(node.args) > 4 else 1
    return p.of(node.args[0]) if start in (None, 0) and step == 1 else None


def _index(p: Positions, node: torch.fx.Node) -> Value:
    value = p.of(node.args[0])
    return Form((), value.const) if isinstance(value, Form) and value.is_constant else None


def _diff(p: Positions, node: torch.fx.Node) -> Value:
    """diff(x, prepend=what x would be one before its start, dim=-1) is x's step."""
    value, before = p.of(node.args[0]), p.of(node.kwargs.get("prepend"))
    if (
        len(node.args) != 1
        or node.kwargs.get("dim", -1) != -1
        or set(node.kwargs) - {"prepend", "dim"}
    ):
        return None
    if not isinstance(value, Form) or not isinstance(before, Form) or not value.coefs:
        return None
    if not _is_one(example(node.kwargs["prepend"]).shape[-1]):
        return None
    *rest, step = value.coefs
    if before != Form((*rest, 0), value.const - step):
        return None
    return Form((0,) * len(value.coefs), step)


def _cumsum(p: Positions, node: torch.fx.Node) -> Value:
    """Of nothing but false: zero."""
    value = p.of(node.args[0])
    if not isinstance(value, Truth):
        return None
    never = any(f.is_constant and f.const < 0 for f in value.forms)
    return Form((), 0) if never else None


_RULES: dict[str, Callable[[Positions, torch.fx.Node], Value]] = {
    "arange": _arange,
    "add": _sum_of(1),
    "sub": _sum_of(-1),
    "le": _comparison(greater=False, strict=False),
    "lt": _comparison(greater=False, strict=True),
    "ge": _comparison(greater=True, strict=False),
    "gt": _comparison(greater=True, strict=True),
    "eq": _equality(True),
    "ne": _equality(False),
    "unsqueeze": _unsqueeze,
    "getitem": _getitem,
    "slice": _slice,
    "index": _index,
    "diff": _diff,
    "cumsum": _cumsum,
    **dict.fromkeys(("ones", "new_ones", "ones_like"), _ones),
    **dict.fromkeys(("and_", "bitwise_and", "logical_and"), _and),
    **dict.fromkeys(("to", "_to_copy", "contiguous", "clone", "detach", "alias"), _same),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to", "bool", "long"), _same),
}


def always(truth: Truth) -> bool:
    return not truth.conditions


def is_causal(truth: Truth) -> bool:
    """True exactly where the last index is at most the one before it."""
    if truth.rank < 2:
        return False
    return truth.conditions == {Form((*(0,) * (truth.rank - 2), 1, -1), 0)}

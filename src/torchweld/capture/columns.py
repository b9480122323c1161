"""Columns that are put beside scores and taken off again, computed apart.

    softmax(cat([s, c], -1))[..., :n]     a sink: attention to one learned column, without a value
 -> m = maximum(amax(s), c);  e = exp(s - m);  e / (sum(e) + exp(c - m))

So the softmax runs over the keys alone, and is one that plan/scores knows. In a joint graph the
gradients of both parts come apart, too; where a column is of no use, its gradient is zero. This is
done if all that is computed of the columns together is pointwise work, a softmax or a reduction
over them, and ends in slices of one part. A maximum that is subtracted before a softmax changes
nothing, and goes first (GPT-OSS in transformers).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch.fx import Graph, GraphModule, Node

from torchweld.capture import torch_private
from torchweld.capture.calls import filled
from torchweld.capture.captured import INNER_CAST
from torchweld.capture.scores import SHARE_SUM, VIEWS, call, last_dim, shape_of

aten = torch.ops.aten
_SOFTMAX, _GRADIENT = aten._softmax.default, aten._softmax_backward_data.default
_COMBINED = {aten.amax.default: aten.maximum.default, aten.sum.dim_IntList: aten.add.Tensor}
_LEADING = VIEWS - {aten.permute.default, aten.transpose.int, aten.slice.Tensor, aten.select.int}
_SHAPED = {aten.view.default, aten._unsafe_view.default, aten.expand.default}
_WIDE = (torch.float32, torch.float64)
_MOST = 8  # columns beside the scores: each is a computation of its own for a row


def compute_apart(gm: GraphModule) -> None:
    """Of a functional graph, in place."""
    for softmax in gm.graph.find_nodes(op="call_function", target=_SOFTMAX):
        _drop_shift(softmax)
    gm.graph.eliminate_dead_code()
    for cat in gm.graph.find_nodes(op="call_function", target=aten.cat.default):
        _split(cat)
    for pad in gm.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default):
        _split(pad)
    gm.graph.eliminate_dead_code()


# -- a maximum before a softmax --


def _drop_shift(softmax: Node) -> None:
    """softmax(x - max(x))  ->  softmax(x), whose own maximum is that. The gradient by the maximum
    is the sum of a softmax's gradient over a row, which is zero."""
    shifted = softmax.args[0]
    if shifted.target is not aten.sub.Tensor or not last_dim(softmax, softmax.args[1]):
        return
    x, top = shifted.args
    if not _is_maximum_of(top, x) or len(shifted.users) > 1:
        return
    softmax.replace_input_with(shifted, x)
    for gradient in (u for u in softmax.users if u.target is _GRADIENT):
        for none in list(_sums_of(gradient)):
            _drop_zero(none)


def _is_maximum_of(top, x) -> bool:
    if not isinstance(top, Node) or not isinstance(x, Node):
        return False
    if top.target is operator.getitem and top.args[0].target is aten.max.dim:
        source, position = top.args
        given, dim, *kept = source.args
        return position == 0 and given is x and last_dim(x, dim) and kept == [True]
    return top.target is aten.amax.default and top.args[0] is x and _is_rows(top)


def _is_rows(node: Node) -> bool:
    """A reduction over the last dimension, which stays as one of size one."""
    dims = node.args[1] if len(node.args) > 1 else ()
    whole = isinstance(dims, (list, tuple)) and len(dims) == 1
    return whole and last_dim(node.args[0], dims[0]) and node.args[2:] == (True,)


def _sums_of(gradient: Node) -> Iterator[Node]:
    for user in gradient.users:
        if user.target is aten.neg.default:
            yield from _sums_of(user)
        elif user.target is aten.sum.dim_IntList and _is_rows(user):
            yield user


_ZEROS = (aten.new_zeros.default, aten.zeros.default)  # the second in torch 2.11
_KEEP_ZERO = (aten.div.Tensor, aten.neg.default, aten.expand.default)


def _drop_zero(node: Node) -> None:
    """Replaces sums with a value that is zero by their other term."""
    for user in list(node.users):
        first = user.args[0] if user.args else None
        if user.target is aten.add.Tensor and not user.kwargs and node in user.args:
            other = user.args[1] if first is node else first
            if isinstance(other, Node) and shape_of(other) == shape_of(user):
                user.replace_all_uses_with(other)
        elif _is_zero(user, node):
            _drop_zero(user)


def _is_zero(node: Node, none: Node) -> bool:
    """Whether a value is zero where `none`, one that it is computed from, is."""
    first = node.args[0] if node.args else None
    if node.target is aten.scatter.src:
        is_full = first.target is aten.full.default and first.args[1] == 0
        return is_full or first.target in _ZEROS
    return node.target is aten.mul.Tensor or (node.target in _KEEP_ZERO and first is none)


# -- columns apart --


def _split(seed: Node) -> None:
    """Computes what the parts of `seed` are used for apart, if that can be done with all of it."""
    widths = _widths(seed)
    found = _Columns(widths).reached(seed) if widths else None
    if found:
        _Writer(seed.graph, widths, found).write()


def _widths(seed: Node) -> tuple[int, ...]:
    """Of the parts that a value is put together from, along its last dimension; () if it is not,
    or if these are not scores with few columns beside."""
    if seed.target is aten.cat.default:
        along = last_dim(seed, seed.args[1] if len(seed.args) > 1 else 0)
        widths = tuple(shape_of(a)[-1] for a in seed.args[0]) if along else ()
    else:
        before, after, *others = seed.args[1]
        least = min(seed.args[1])
        parts = (before, *shape_of(seed.args[0])[-1:], after)
        widths = tuple(w for w in parts if w != 0) if least >= 0 and not any(others) else ()
    known = len(widths) > 1 and all(isinstance(n, int) for n in (*shape_of(seed), *widths))
    return widths if known and sum(widths) - max(widths) <= _MOST < max(widths) else ()


class _Columns:
    """What is computed of columns together."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.widths, self.total = widths, sum(widths)
        self.ends = tuple(accumulate(widths))

    def reached(self, seed: Node) -> set[Node] | None:
        """All values with these columns that are computed from `seed` or with it; None if one of
        them has to be whole."""
        found: set[Node] = set()
        todo = [seed]
        while todo:
            node = todo.pop()
            if node in found:
                continue
            if not self._comes_apart(node) or not all(map(self._takes_apart, node.users)):
                return None
            found.add(node)
            todo += [n for n in (*node.users, *self.inputs(node)) if self._has(n)]
        return found

    def inputs(self, node: Node) -> list[Node]:
        """Those with all columns."""
        if self.parts_given(node) is not None:
            return []
        return [a for a in node.all_input_nodes if self._has(a)]

    def _has(self, node: Node) -> bool:
        return shape_of(node)[-1:] == (self.total,)

    def parts_given(self, node: Node) -> tuple[Node | None, ...] | None:
        """The parts that a value is put together from, None for a constant; None if it is not."""
        if node.target is aten.cat.default and _widths(node) == self.widths:
            return tuple(node.args[0])
        if node.target is aten.constant_pad_nd.default and _widths(node) == self.widths:
            wide = shape_of(node.args[0])[-1]
            return tuple(node.args[0] if w == wide else None for w in self.widths)
        if node.target is aten.slice_backward.default:
            part = self._part(node, node.args[2:])
            made = (node.args[0] if n == part else None for n in range(len(self.widths)))
            return None if part is None else tuple(made)
        return None

    def part_of(self, node: Node) -> int | None:
        """The part that a slice, or what is left without a padding, is."""
        if node.target is aten.constant_pad_nd.default:
            before, after, *others = node.args[1]
            cut = not any(others) and max(before, after) <= 0
            return self._at(-before, self.total + after) if cut else None
        return self._part(node.args[0], node.args[1:]) if node.target is aten.slice.Tensor else None

    def _part(self, whole: Node, bounds: Sequence) -> int | None:
        """The part of `whole` from a start to an end along its last dimension."""
        dim, start, end, step = (*bounds, *(0, None, None, 1)[len(bounds) :])
        if not last_dim(whole, dim) or step != 1:
            return None
        return self._at(*slice(start, end).indices(self.total)[:2])

    def _at(self, start: int, end: int) -> int | None:
        places = [(last - width, last) for last, width in zip(self.ends, self.widths)]
        return places.index((start, end)) if (start, end) in places else None

    def _comes_apart(self, node: Node) -> bool:
        if self.parts_given(node) is not None:
            return True
        if node.target in (_SOFTMAX, _GRADIENT):
            return last_dim(node, node.args[1 if node.target is _SOFTMAX else 2])
        if node.target in _LEADING:
            spread = node.target is aten.expand.default and shape_of(node.args[0])[-1:] == (1,)
            return spread or self._has(node.args[0])
        pointwise = isinstance(node.target, torch_private.OpOverload)
        pointwise = pointwise and torch.Tag.pointwise in node.target.tags
        shapes = [shape_of(a)[-1:] for a in node.all_input_nodes]
        return pointwise and all(s in ((), (1,), (self.total,)) for s in shapes)

    def _takes_apart(self, user: Node) -> bool:
        """Whether a reader has all columns itself, or reads one part, or reduces them."""
        if self._has(user):
            return True
        reduces = user.target in _COMBINED and _is_rows(user)
        return reduces or self.part_of(user) is not None


class _Writer:
    """Writes what `found` computes for each part."""

    def __init__(self, graph: Graph, widths: tuple[int, ...], found: set[Node]) -> None:
        self.graph, self.widths, self.found = graph, widths, found
        self.columns = _Columns(widths)
        self.parts: dict[Node, tuple[Node, ...]] = {}
        self.shares: dict[Node, tuple[Node, ...]] = {}  # of a softmax, in float32 at least
        self.zeros: set[Node] = set()

    def write(self) -> None:
        for node in [n for n in self.graph.nodes if n in self.found]:
            with self.graph.inserting_before(node):
                self.parts[node] = self._apart(node)
            for user in [u for u in node.users if u not in self.found]:
                self._end(user, node)

    def _end(self, user: Node, node: Node) -> None:
        part = self.columns.part_of(user)
        if part is not None:
            user.replace_all_uses_with(self.parts[node][part])
            return
        with self.graph.inserting_before(user):
            user.replace_all_uses_with(self._reduced(user.target, self.parts[node], user))

    def _reduced(self, target, parts, like: Node) -> Node:
        each = [p if w == 1 else call(self.graph, target, (p, [-1], True), like)
                for p, w in zip(parts, self.widths) if p is not None]  # fmt: skip
        total, *others = each
        for other in others:
            total = call(self.graph, _COMBINED[target], (total, other), like)
        return total

    def _apart(self, node: Node) -> tuple[Node, ...]:
        given = self.columns.parts_given(node)
        if given is not None:
            return tuple(self._constant(node, w) if p is None else p
                         for p, w in zip(given, self.widths))  # fmt: skip
        if node.target is _SOFTMAX:
            return self._softmax(node)
        if node.target is _GRADIENT:
            return self._gradient(node)
        return tuple(self._same(node, n) for n in range(len(self.widths)))

    def _constant(self, node: Node, width: int) -> Node:
        value = node.meta["val"]
        padding = node.target is aten.constant_pad_nd.default and node.args[2:]
        number = node.args[2] if padding else 0
        shape = [*value.shape[:-1], width]
        with value.fake_mode:
            made = value.new_full(shape, number)
        full = filled(self.graph, made, number)
        full.meta = {**node.meta, "val": made}
        if node.target is aten.slice_backward.default:
            self.zeros.add(full)
        return full

    def _same(self, node: Node, part: int) -> Node:
        def moved(arg):
            return self.parts[arg][part] if isinstance(arg, Node) and arg in self.parts else arg

        args = [moved(a) for a in node.args]
        if node.target in _SHAPED:
            args[1] = [*args[1][:-1], self.widths[part]]
            if not args[0].meta["val"].is_contiguous():  # a view of a part may be none
                layout = {"memory_format": torch.contiguous_format}
                args[0] = call(self.graph, aten.clone.default, (args[0],), node, **layout)
        kwargs = {k: moved(v) for k, v in node.kwargs.items()}
        return call(self.graph, node.target, tuple(args), node, **kwargs)

    def _softmax(self, node: Node) -> tuple[Node, ...]:
        """exp(x - max(x)) / sum"""
        wide = [self._cast(p, node) for p in self.parts[node.args[0]]]
        top = self._reduced(aten.amax.default, wide, node)
        below = [call(self.graph, aten.sub.Tensor, (x, top), node) for x in wide]
        exps = [call(self.graph, aten.exp.default, (x,), node) for x in below]
        total = self._reduced(aten.sum.dim_IntList, exps, node)
        shares = [call(self.graph, aten.div.Tensor, (e, total), node) for e in exps]
        self.shares[node] = tuple(shares)
        return tuple(self._narrow(s, node.meta["val"].dtype) for s in shares)

    def _gradient(self, node: Node) -> tuple[Node, ...]:
        """share * (g - sum(share * g))"""
        gradient, softmax = node.args[:2]
        wide = [p if p in self.zeros else self._cast(p, node) for p in self.parts[gradient]]
        terms = [None if g in self.zeros else call(self.graph, aten.mul.Tensor, (s, g), node)
                 for g, s in zip(wide, self.shares[softmax])]  # fmt: skip
        total = self._reduced(aten.sum.dim_IntList, terms, node)
        if node.args[3] not in _WIDE and total.target is aten.sum.dim_IntList:
            total.meta[SHARE_SUM] = True
        made = []
        for g, share in zip(wide, self.shares[softmax]):
            none = g in self.zeros
            less = (aten.neg.default, (total,)) if none else (aten.sub.Tensor, (g, total))
            rest = call(self.graph, *less, node)
            made.append(call(self.graph, aten.mul.Tensor, (share, rest), node))
        return tuple(self._narrow(m, node.args[3]) for m in made)

    def _cast(self, node: Node, like: Node) -> Node:
        if node.meta["val"].dtype in _WIDE:
            return node
        return self._converted(node, torch.float32)

    def _narrow(self, node: Node, dtype: torch.dtype) -> Node:
        return node if node.meta["val"].dtype == dtype else self._converted(node, dtype)

    def _converted(self, node: Node, dtype: torch.dtype) -> Node:
        made = call(self.graph, aten._to_copy.default, (node,), node, dtype=dtype)
        made.meta[INNER_CAST] = True
        return made

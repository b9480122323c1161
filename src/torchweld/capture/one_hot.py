"""Products with a matrix of ones at indices and zeros elsewhere, as reads and sums by index.

    one_hot(i, p).to(w.dtype) @ w      ->   w[i]              an embedding; a codebook's entries
    one_hot(i, p).to(x.dtype).T @ x    ->   zeros[i] += x     its gradient; sums of groups
    one_hot(i, p).sum(0)               ->   zeros[i] += 1     a histogram, by a GPU's atomics

A product also adds zero times all other elements: NaN where one of these is not finite, which is
told here from the smallest and the largest row that is not finite, in each column. Rows of an index
out of range are zero. Only where the ones and zeros are more than all that is read and made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.fx import GraphModule, Node

from torchweld.capture.scores import call

aten = torch.ops.aten
_CASTS = {aten._to_copy.default}
_VIEWS = {aten.view.default, aten._unsafe_view.default}
_SUMS = {aten.sum.dim_IntList, aten.mean.dim}
# Places and comparisons from which on a histogram's numbers are not compared with each place. By
# predictions for an H100, comparisons take the three launches' time at 60 million; not measured.
_PLACES, _COMPARISONS = 1024, 1 << 26
_COUNTED_ON = "cuda"
_ZEROS = {aten.zeros.default, aten.full.default}


@dataclass(frozen=True, slots=True)
class OneHot:
    """`index`: integers of any shape; the matrix has a row for each, of `count` columns."""

    index: Node
    count: int


def by_index(gm: GraphModule) -> None:
    """Of a functional graph, in place."""
    changed = False
    for target, first in ((aten.mm.default, 0), (aten.addmm.default, 1)):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            if len(node.args) == first + 2 and not node.kwargs:
                bias = node.args[0] if first else None
                changed |= _replace(node, bias, *node.args[first:])
    for target in _SUMS:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            changed |= _count(node)
    if changed:
        gm.graph.eliminate_dead_code()


def _replace(node: Node, bias: Node | None, a: Node, b: Node) -> bool:
    turned = a.target is aten.permute.default and list(a.args[1]) == [1, 0]
    value = b.meta["val"]
    if not value.is_floating_point() or a.meta["val"].dtype != value.dtype:
        return False
    found = _one_hot(a.args[0] if turned else a)
    if found is None or not _is_worth_it(node, b, found) or (turned and bias is not None):
        return False
    add = partial(call, node.graph, like=node)
    with node.graph.inserting_before(node):
        index = _flat(add, found.index)
        numbers = _fresh(node, aten.arange.default, found.count)
        if turned:
            made = _sums(add, index, numbers, b)
        else:
            made = _rows(add, index, numbers, b, bias)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return True


def _count(node: Node) -> bool:
    """A histogram, or a share of each place, from a sum or mean over the indices."""
    value, (x, dims, *kept) = node.meta["val"], node.args
    found = _one_hot(x) if list(dims or ()) in ([0], [-2]) and not any(kept) else None
    if found is None or found.count < _PLACES or value.device.type != _COUNTED_ON:
        return False
    points = found.index.meta["val"].numel()
    if not isinstance(points, int) or points * found.count < _COMPARISONS:
        return False
    add = partial(call, node.graph, like=node)
    with node.graph.inserting_before(node):
        index = _flat(add, found.index)
        inside = add(aten.squeeze.dim, (_inside(add, index, found.count), 1))
        ones = add(aten._to_copy.default, (inside,), dtype=torch.int64)
        none = _fresh(node, aten.full.default, [found.count], 0)
        at = _clamped(add, index, found.count)
        made = add(aten.scatter_add.default, (none, 0, at, ones))
        if node.target is aten.mean.dim:
            wide = torch.promote_types(value.dtype, torch.float32)
            made = add(aten.div.Tensor, (add(aten._to_copy.default, (made,), dtype=wide), points))
        if made.meta["val"].dtype != value.dtype:
            made = add(aten._to_copy.default, (made,), dtype=value.dtype)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return True


def _is_worth_it(node: Node, other: Node, found: OneHot) -> bool:
    points = found.index.meta["val"].numel()
    sizes = points, found.count, other.meta["val"].numel(), node.meta["val"].numel()
    if not all(isinstance(n, int) for n in sizes):
        return False
    return points * found.count > other.meta["val"].numel() + node.meta["val"].numel()


# -- the matrix --


def _one_hot(node) -> OneHot | None:
    """What a matrix is made of, whose last dimension is that of its ones."""
    if not isinstance(node, Node) or node.meta["val"].dim() != 2:
        return None
    count = node.meta["val"].shape[-1]
    while isinstance(node, Node) and node.target in _CASTS | _VIEWS:
        if node.meta["val"].shape[-1] != count:
            return None
        node = node.args[0]
    if not isinstance(node, Node) or not isinstance(count, int):
        return None
    index = _compared(node, count) if node.target is aten.eq.Tensor else _scattered(node)
    if index is None or index.meta["val"].is_floating_point():
        return None
    rows = (*node.meta["val"].shape[:-1], 1)
    return OneHot(index, count) if tuple(index.meta["val"].shape) == rows else None


def _compared(node: Node, count: int) -> Node | None:
    """i in `i[..., None] == arange(count)`."""
    for index, rows in (node.args, node.args[::-1]):
        if isinstance(rows, Node) and isinstance(index, Node) and _counts(rows, count):
            return index
    return None


def _counts(node: Node, count: int) -> bool:
    shape, args = tuple(node.meta["val"].shape), node.args
    if node.target is aten.arange.start_step:
        return shape == (count,) and args[0] == 0 and args[2:] in ((), (1,))
    if node.target is aten.arange.start:
        return shape == (count,) and args[0] == 0
    return node.target is aten.arange.default and shape == (count,)


def _scattered(node: Node) -> Node | None:
    """i in `zeros.scatter(-1, i, 1)`."""
    if node.target is not aten.scatter.value:
        return None
    zeros, d, index, value = node.args
    rank = node.meta["val"].dim()
    empty = zeros.target in _ZEROS and (len(zeros.args) < 2 or zeros.args[1] == 0)
    return index if empty and d in (-1, rank - 1) and value == 1 else None


# -- what takes its place --


def _flat(add: Callable, index: Node) -> Node:
    """[points] of int64."""
    if index.meta["val"].dtype != torch.int64:
        index = add(aten._to_copy.default, (index,), dtype=torch.int64)
    return add(aten.view.default, (index, [-1]))


def _fresh(node: Node, target, *args) -> Node:
    """A tensor of int64 on the device of `node` that is made of nothing: `target(*args)`."""
    value = node.meta["val"]
    how = {"dtype": torch.int64, "device": value.device}
    made = node.graph.call_function(target, args, how)
    with value.fake_mode:
        made.meta = {"val": target(*args, **how)}
    return made


def _rows(add: Callable, index: Node, numbers: Node, w: Node, bias: Node | None) -> Node:
    """w[index] + bias, [points, columns] of w [count, columns]."""
    count = w.meta["val"].shape[0]
    made = add(aten.embedding.default, (w, _clamped(add, index, count)))
    made = add(aten.where.ScalarOther, (_inside(add, index, count), made, 0))
    made = made if bias is None else add(aten.add.Tensor, (made, bias))
    return _spoiled(add, made, w, numbers, index)


def _sums(add: Callable, index: Node, numbers: Node, x: Node) -> Node:
    """[count, columns] of x [points, columns]."""
    count = numbers.meta["val"].shape[0]
    there = add(aten.where.ScalarOther, (_inside(add, index, count), x, 0))
    args = there, _clamped(add, index, count), count, -1, False
    made = add(aten.embedding_dense_backward.default, args)
    return _spoiled(add, made, x, index, numbers)


def _inside(add: Callable, index: Node, count: int) -> Node:
    """[points, 1]"""
    low, high = add(aten.ge.Scalar, (index, 0)), add(aten.lt.Scalar, (index, count))
    return add(aten.unsqueeze.default, (add(aten.logical_and.default, (low, high)), 1))


def _clamped(add: Callable, index: Node, count: int) -> Node:
    return add(aten.clamp.default, (index, 0, count - 1))


def _spoiled(add: Callable, made: Node, given: Node, at: Node, to: Node) -> Node:
    """`made` [n, columns], NaN where a row of `given` [m, columns] that is not finite has another
    number (`at` [m]) than the row has that is made (`to` [n])."""
    finite = add(aten.isfinite.default, (given,))
    at, to = (add(aten.unsqueeze.default, (n, 1)) for n in (at, to))
    none_low, none_high = 1 << 62, -(1 << 62)
    low = add(aten.amin.default, (add(aten.where.ScalarSelf, (finite, none_low, at)), [0]))
    high = add(aten.amax.default, (add(aten.where.ScalarSelf, (finite, none_high, at)), [0]))
    alone = add(aten.logical_and.default,
                (add(aten.eq.Tensor, (to, low)), add(aten.eq.Tensor, (to, high))))  # fmt: skip
    fine = add(aten.logical_or.default, (add(aten.gt.Tensor, (low, high)), alone))
    return add(aten.where.ScalarOther, (fine, made, math.nan))

"""Attention written by hand, in training: what is saved for its backward.

    s = q k^T;  p = softmax(f(s));  o = g(p) v          saved by itself: p, the mask of dropout
    now saved: q, k, v, o, and of each row the maximum and the sum of exponentials

The scores, their masks and their softmax are computed again in the backward, by kernels that never
hold them in memory (plan/scores), and so only where the target has a template for those: `Takes`
says. The gradient of the softmax is p * (dp - D) with D = sum(p * dp) for each row; where g only
multiplies (dropout), D = sum(do * o), which needs no scores (Dao et al. 2022, section B.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from torchweld.capture import torch_private
from torchweld.capture.captured import INNER_CAST
from torchweld.capture.random import UNIFORM
from torchweld.capture.wide_scores import NARROW, WIDE_PRODUCT, widen

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Scores:
    """One product of scores and values: `batch` of [rows, keys] times [keys, columns], of scores
    that are products over `depth`. `turns`: over so many of the batch their gradient is summed, for
    a bias. `again`: the backward would make them again, or read them where they are saved."""

    dtype: torch.dtype
    device: torch.device
    batch: int
    rows: int
    keys: int
    depth: int
    columns: int
    softmax: bool
    turns: int = 1
    again: bool = False


Takes = Callable[[Scores], bool]  # whether templates take the scores, forward and backward

MUST_SAVE, MUST_RECOMPUTE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE
VIEWS = {
    aten.view.default, aten.expand.default, aten.permute.default, aten._unsafe_view.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.transpose.int,
    aten.clone.default, aten._to_copy.default, aten.slice.Tensor, aten.select.int,
}  # fmt: skip
_MADE = {
    aten.arange.default, aten.arange.start_step, aten.full.default, aten.tril.default,
    aten.triu.default, aten.scalar_tensor.default, aten.ones.default, aten.zeros.default,
    UNIFORM, aten.index.Tensor,
    aten.embedding.default, aten.full_like.default, aten.ones_like.default,
    aten.zeros_like.default, torch.ops.prims.iota.default,
}  # fmt: skip
_SOFTMAX = aten._softmax.default
_SOFTMAX_BACKWARD = aten._softmax_backward_data.default
_WHOLE_ROWS = {aten.all.dim, aten.any.dim}  # rows that see nothing
EQUAL = {aten.eq.Tensor, aten.ne.Tensor}
_PRODUCTS = {aten.bmm.default, aten.baddbmm.default, WIDE_PRODUCT}
_ROW_REDUCTIONS = {aten.amax.default, aten.sum.dim_IntList, aten.logsumexp.default}


def recompute_scores(joint: torch.fx.GraphModule, takes: Takes | None) -> None:
    """Tags what lies between two products in the joint graph, where that pays."""
    if takes is None:
        return
    later = depends_on_tangents(joint.graph)
    for outer in joint.graph.find_nodes(op="call_function", target=aten.bmm.default):
        if outer not in later:
            region = _region(outer, later)
            if region is not None and takes(region.scores):
                region.recompute()
    joint.graph.lint()


def depends_on_tangents(graph: torch.fx.Graph) -> set[Node]:
    """Gradients; the rest of a joint graph or of a backward are values of the forward."""
    found: set[Node] = set()
    for node in graph.nodes:
        tangent = node.op == "placeholder" and "tangents" in str(node.target)
        if tangent or any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found


def _region(outer: Node, later: set[Node]) -> _Region | None:
    weight, value = outer.args[:2]
    sizes = (*shape_of(weight), *shape_of(value))
    if not all(isinstance(s, int) for s in sizes):
        return None
    batch, rows, keys = shape_of(weight)
    finder = _Finder(batch * rows * keys, rows * keys, later)
    if not finder.behind(weight):
        return None
    if not finder.only_used_by(outer) or not finder.gradients:
        return None
    scores = Scores(
        _value(weight).dtype, _value(weight).device, batch, rows, keys,
        max(_depth(i) for i in finder.inner), shape_of(value)[-1], finder.is_softmax,
        finder.turns, again=True,
    )  # fmt: skip
    softmaxes = tuple(n for n in finder.found if n.target is _SOFTMAX)
    gradients = tuple(n for n in finder.gradients if n.target is _SOFTMAX_BACKWARD)
    return _Region(
        outer, tuple(finder.found), softmaxes, gradients, tuple(finder.rows), scores)


def _value(node: Node) -> torch.Tensor | None:
    return node.meta.get("val") if isinstance(node, Node) else None


def shape_of(node: Node) -> tuple:
    value = _value(node)
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def last_dim(node: Node, dim: int) -> bool:
    """Whether a dimension of a value is its last."""
    return dim in (-1, len(shape_of(node)) - 1)


def _depth(inner: Node) -> int:
    return shape_of(inner.args[-2])[-1]


class _Finder:
    """What is as large as the scores: `found` in the forward, `gradients` in the backward."""

    def __init__(self, whole: int, least: int, later: set[Node]) -> None:
        self.whole, self.least, self.later = whole, least, later
        self.found: dict[Node, None] = {}
        self.inner: set[Node] = set()
        self.gradients: dict[Node, None] = {}
        self.rows: dict[Node, None] = {}
        self.turns = 1

    @property
    def is_softmax(self) -> bool:
        return bool(self.rows) or any(n.target is _SOFTMAX for n in self.found)

    def behind(self, weight: Node) -> bool:
        """Collects what the weights are made of; False where that is no pointwise work on
        products."""
        todo = [weight]
        while todo:
            node = todo.pop()
            if node in self.found or not self._is_large(node) or node.op == "placeholder":
                continue
            if node.target in _PRODUCTS:
                self.inner.add(node)
            elif not self._is_plain(node):
                if self._is_whole(node):
                    return False
                continue
            else:
                todo += node.all_input_nodes
            self.found[node] = None
        return bool(self.inner) and all(self._is_whole(i) for i in self.inner)

    def _is_large(self, node: Node) -> bool:
        """Of a number for each row and key, or for each row alone behind such."""
        shape = shape_of(node)
        if not all(isinstance(s, int) for s in shape):
            return False
        return prod(shape) >= self.least or node.target in _WHOLE_ROWS

    def _is_whole(self, node: Node) -> bool:
        return prod(shape_of(node)) == self.whole

    def _is_plain(self, node: Node) -> bool:
        target = node.target
        if target is _SOFTMAX:
            return last_dim(node, node.args[1])
        if target in VIEWS or target in _MADE or target in _WHOLE_ROWS:
            return True
        overload = isinstance(target, torch_private.OpOverload)
        return overload and torch.Tag.pointwise in target.tags

    def only_used_by(self, outer: Node) -> bool:
        """Whether the scores and their gradients, each as large, end in products and sums over
        keys: nothing else needs them."""
        scores = [n for n in self.found if self._is_whole(n)]
        todo = [u for n in scores for u in n.users if u is not outer]
        while todo:
            node = todo.pop()
            if node in self.gradients or node in self.found or node in self.rows:
                continue
            if node not in self.later and _reduces_rows(node):
                self.rows[node] = None
                continue
            if not self._may_use(node):
                return False
            if node not in self.later:  # a view for the backward
                self.found[node] = None
                todo += node.users
                continue
            if self._is_whole(node) and node.target is not aten.bmm.default:
                self.gradients[node] = None
                todo += node.users
                todo += [a for a in node.all_input_nodes if self._is_gradient_product(a)]
            elif self._is_gradient_product(node):
                self.gradients[node] = None
                todo += node.users
        return True

    def _is_gradient_product(self, node: Node) -> bool:
        return node.target is aten.bmm.default and node in self.later and self._is_whole(node)

    def _may_use(self, node: Node) -> bool:
        if node.target is aten.bmm.default:
            return node in self.later
        if node.target is aten.sum.dim_IntList and node in self.later:
            if not _reduces_batch(node):
                return _reduces_rows(node)
            self.turns = max(self.turns, prod(shape_of(node.args[0])) // prod(shape_of(node)))
            return True
        known = node.target is _SOFTMAX_BACKWARD or self._is_plain(node)
        return known and self._is_whole(node)


def _reduces_rows(node: Node) -> bool:
    """A reduction over the last dimension."""
    if node.target not in _ROW_REDUCTIONS or len(node.args) < 2:
        return False
    if not isinstance(node.args[1], (list, tuple)):
        return False
    return list(node.args[1]) in ([-1], [len(shape_of(node.args[0])) - 1])


def _reduces_batch(node: Node) -> bool:
    """A reduction over some of the dimensions before the last two."""
    dims, rank = node.args[1] if len(node.args) > 1 else None, len(shape_of(node.args[0]))
    return isinstance(dims, (list, tuple)) and all(d % rank < rank - 2 for d in dims)


@dataclass(frozen=True, slots=True)
class _Region:
    outer: Node
    found: tuple[Node, ...]
    softmaxes: tuple[Node, ...]
    gradients: tuple[Node, ...]  # of softmaxes
    rows: tuple[Node, ...]  # reductions by hand
    scores: Scores

    def recompute(self) -> None:
        for node in self.gradients:
            self._take_gradient_apart(node)
        for total in self._totals():
            self._by_rows(total)
        made = [new for node in self.softmaxes for new in self._taken_apart(node)]
        made += [new for node in self.rows if node.target is aten.logsumexp.default
                 for new in self._shares_of(node)]  # fmt: skip
        if _value(self.outer.args[0]).dtype in NARROW:
            for share in filter(_is_share, (*self.found, *made)):
                share.meta[_SHARE] = True
        copies = [c for p in (self.outer, *self.found) if p.target in _PRODUCTS
                  for arg in p.args for c in _copies(arg)]  # fmt: skip
        for node in (*self.found, *made, *copies):
            policy = MUST_SAVE if node.target in _WHOLE_ROWS else MUST_RECOMPUTE
            node.meta.setdefault("recompute", policy)
        self.outer.meta["recompute"] = MUST_SAVE
        for row in self.rows:
            hits = any(a.target in EQUAL for a in row.all_input_nodes)
            kept = self._total_is if row.target is aten.sum.dim_IntList else MUST_SAVE
            row.meta["recompute"] = MUST_RECOMPUTE if hits else kept
        left = {n for n in (*self.found, *made, *self.rows) if n not in self.softmaxes}
        widen(left, self.outer if self.rows else None)

    @property
    def _total_is(self) -> CheckpointPolicy:
        """What becomes of a row's sum of exponentials. Products of float32 have several kernels on
        a GPU, in parts on tensor cores and without, whose results differ in the last place: of
        scores of 500 by 3e-5. Shares of one's scores by the sum of the other's do not add up to
        one, which what a peaked softmax cancels in its gradient does not bear. Any maximum does."""
        differs = self.scores.device.type == "cuda" and self.scores.dtype not in NARROW
        return MUST_RECOMPUTE if differs else MUST_SAVE

    def _taken_apart(self, softmax: Node) -> list[Node]:
        made = self._share(softmax.args[0], softmax)
        softmax.replace_all_uses_with(made[-1])
        softmax.graph.erase_node(softmax)
        return made

    def _share(self, x: Node, before: Node) -> list[Node]:
        """e / sum(e) with e = exp(x - max(x)), in float32, whose maximum and sum are saved; last,
        in the type of `before`, in front of which it is made."""
        graph, result = x.graph, _value(before).dtype
        with graph.inserting_before(before):
            wide = self._wide(x)
            top = call(graph, aten.amax.default, (wide, [-1], True), before)
            below = call(graph, aten.sub.Tensor, (wide, top), before)
            exp = call(graph, aten.exp.default, (below,), before)
            total = call(graph, aten.sum.dim_IntList, (exp, [-1], True), before)
            share = call(graph, aten.div.Tensor, (exp, total), before)
            narrow = self._narrow(share, result)
        top.meta["recompute"], total.meta["recompute"] = MUST_SAVE, self._total_is
        return [wide, top, below, exp, total, share, narrow]

    def _shares_of(self, row: Node) -> list[Node]:
        """The same in the place of exp(x - logsumexp(x)). The forward's kernel makes that of it,
        and keeps the digits that a large logsumexp has lost; the backward must, too."""
        x = row.args[0]
        found = [n for n in self.found if n.target is aten.exp.default
                 and _is_difference(n.args[0], x, row)]  # fmt: skip
        if not found:
            return []
        made = self._share(x, row)
        for exp in found:
            exp.replace_all_uses_with(made[-1])
        return made

    def _take_gradient_apart(self, node: Node) -> None:
        """share * (g - D)"""
        graph, (grad, share) = node.graph, node.args[:2]
        with graph.inserting_before(node):
            wide, share = self._wide(grad), self._wide(share)
            total = self._row_products(*node.args[:2], node)
            if total is None:
                product = call(graph, aten.mul.Tensor, (share, wide), node)
                total = call(graph, aten.sum.dim_IntList, (product, [-1], True), node)
            rest = call(graph, aten.sub.Tensor, (wide, total), node)
            result = call(graph, aten.mul.Tensor, (share, rest), node)
            result = self._narrow(result, node.args[3])
        node.replace_all_uses_with(result)
        graph.erase_node(node)

    def _wide(self, node: Node) -> Node:
        is_wide = _value(node).dtype in (torch.float32, torch.float64)
        return node if is_wide else self._cast(node, torch.float32)

    def _narrow(self, node: Node, dtype: torch.dtype) -> Node:
        return node if _value(node).dtype == dtype else self._cast(node, dtype)

    def _cast(self, node: Node, dtype: torch.dtype) -> Node:
        """One that need not round, unless a sum by hand was taken of what is rounded: both come
        back in a gradient, where they may cancel."""
        made = call(node.graph, aten._to_copy.default, (node,), node, dtype=dtype)
        if not self.rows:
            made.meta[INNER_CAST] = True
        return made

    def _totals(self) -> list[Node]:
        """Sums of share * g that another pass has taken apart."""
        sums = self.outer.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)
        return [n for n in sums if SHARE_SUM in n.meta]

    def _by_rows(self, total: Node) -> None:
        share, grad = total.args[0].args
        with total.graph.inserting_before(total):
            again = self._row_products(grad, share, total)
        if again is not None:
            total.replace_all_uses_with(again)

    def _row_products(self, grad: Node, share: Node, node: Node) -> Node | None:
        """sum(do * o) over columns, if that is the sum of share * g over keys. Only where eager
        rounds to 16 bits in between: in float32, what a peaked softmax cancels in its gradient
        would be off by three times eager's error."""
        if _value(node).dtype not in NARROW and SHARE_SUM not in node.meta:
            return None
        forward = _chain(self.outer.args[0], lambda n: n is share)
        backward = _chain(grad, lambda n: n.target is aten.bmm.default)
        if forward is None or backward is None or forward[1] != backward[1]:
            return None
        product = backward[0]
        if not _is_transpose(product.args[1], self.outer.args[1]):
            return None
        graph = node.graph
        left, right = self._wide(product.args[0]), self._wide(self.outer)
        each = call(graph, aten.mul.Tensor, (left, right), node)
        total = call(graph, aten.sum.dim_IntList, (each, [-1], True), node)
        shape = [*shape_of(share)[:-1], 1]
        return call(graph, aten.view.default, (total, shape), node)


def _is_difference(node: Node, x: Node, row: Node) -> bool:
    """Whether it is `x` less a value for each of its rows, the last dimension kept or not."""
    if node.target is not aten.sub.Tensor or node.kwargs or node.args[0] is not x:
        return False
    less = node.args[1]
    while isinstance(less, Node) and less is not row and less.target in VIEWS:
        less = less.args[0] if prod(shape_of(less)) == prod(shape_of(row)) else None
    return less is row and shape_of(node.args[1]) == (*shape_of(x)[:-1], 1)


def _is_share(node: Node) -> bool:
    """Whether it is divided by one number for each row."""
    wide = node.target is aten.div.Tensor and _value(node).dtype is torch.float32
    return wide and isinstance(node.args[1], Node) and shape_of(node.args[1])[-1:] == (1,)


_SHARE = "torchweld_share"  # meta of exp(x - max) / sum, of which max and sum are saved
SHARE_SUM = "torchweld_share_sum"  # of sum(share * gradient) over keys, of a softmax of 16 bits
_OWN_META = ("recompute", INNER_CAST, _SHARE, SHARE_SUM)  # of one node, not of what is made for it


def divide_once(backward: torch.fx.GraphModule) -> None:
    """exp(x - max) / sum, made again from what was saved, as a product with 1 / sum: a division for
    each row, not for each score. (As exp(x - (max + log(sum))) it would be off by 2^-24 of that
    number, which scores of 10^5 see.)"""
    graph = backward.graph
    found = [n for n in graph.nodes if _SHARE in n.meta and n.args[1].op == "placeholder"]
    for share in found:
        exp, total = share.args
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            part = call(graph, aten.reciprocal.default, (total,), share)
        with graph.inserting_before(share):
            again = call(graph, aten.mul.Tensor, (exp, part), share)
        share.replace_all_uses_with(again)
    if found:
        graph.eliminate_dead_code()
        backward.recompile()


def _chain(node: Node, ends: Callable[[Node], bool]) -> tuple[Node, list] | None:
    """The node at which a chain of products and views of one value begins, and what it is
    multiplied by on the way, sorted."""
    factors, elements = [], prod(shape_of(node))
    while not ends(node):
        scales = _scaling(node)
        if prod(shape_of(node)) != elements:
            return None
        if _keeps_order(node):
            node = node.args[0]
        elif scales is not None:
            place = _which(node, ends)
            if place is None:
                return None
            factors += [(scales, repr(a)) for k, a in enumerate(node.args) if k != place]
            node = node.args[place]
        else:
            return None
    return node, sorted(factors)


def _keeps_order(node: Node) -> bool:
    """A view or a copy of a value, its elements in their order."""
    if node.target is aten.permute.default:
        return list(node.args[1]) == sorted(node.args[1])
    return node.target in VIEWS - {aten.transpose.int, aten.slice.Tensor, aten.select.int}


def _scaling(node: Node) -> str | None:
    """What a value is multiplied or divided by, or where it is zero."""
    if node.target in (aten.mul.Tensor, aten.mul.Scalar):
        return "mul"
    if node.target in (aten.div.Tensor, aten.div.Scalar):
        return "div"
    if node.target is aten.masked_fill.Scalar and node.args[2] == 0:
        return "masked_fill"
    return None


def _which(node: Node, ends: Callable[[Node], bool]) -> int | None:
    """The argument that the chain goes on with: one that leads to its beginning."""
    if node.target is aten.masked_fill.Scalar or _scaling(node) == "div":
        return 0
    found = [k for k, a in enumerate(node.args) if isinstance(a, Node) and _leads(a, ends)]
    return found[0] if len(found) == 1 else None


def _leads(node: Node, ends: Callable[[Node], bool]) -> bool:
    seen, todo = set(), [node]
    while todo:
        node = todo.pop()
        if ends(node):
            return True
        if node not in seen and (_keeps_order(node) or _scaling(node) is not None):
            seen.add(node)
            todo += [a for a in node.args if isinstance(a, Node)]
    return False


def _is_transpose(node: Node, other: Node) -> bool:
    """Whether `node` is `other` with its last two dimensions turned."""
    return node.target is aten.permute.default and node.args == (other, [0, 2, 1])


def _copies(node: Node) -> Iterable[Node]:
    """A factor's copies with repeated heads, which are made again."""
    chain = []
    while isinstance(node, Node) and node.target in VIEWS:
        chain.append(node)
        node = node.args[0]
    return chain if any(n.target is aten.expand.default for n in chain) else []


def call(graph: torch.fx.Graph, target, args: tuple, like: Node, **kwargs) -> Node:
    node = graph.call_function(target, args, kwargs)
    values = [_value(a) if isinstance(a, Node) else a for a in args]
    fake = next(v for v in values if isinstance(v, torch.Tensor))
    with fake.fake_mode:
        result = target(*values, **kwargs)
    node.meta = {k: v for k, v in like.meta.items() if k not in _OWN_META} | {"val": result}
    return node

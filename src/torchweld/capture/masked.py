"""What is done with the elements that a mask selects, done with all of them instead.

    y = index(x, [m]);  z = index_put(x, [m], exp(y));  s = sum(y)
 -> z = where(m, exp(x), x);  s = sum(where(m, x, 0))

How many elements a mask selects depends on data: such a graph is cut there. Pointwise work on them,
their sums and means, and what is written back by the same mask need no number. Everything else
reads the selected elements as before. On the graph after autograd: gradients of elements that are
not selected are chosen away as well, so that none of them is a product of zero and NaN.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torchweld.capture import torch_private
from torchweld.capture.calls import add_call

aten = torch.ops.aten
_INDEX, _PUT = aten.index.Tensor, aten.index_put.default
_SUM, _MEAN, _WHERE = aten.sum.default, aten.mean.default, aten.where.self
_COPIES = {aten.clone.default, aten.detach.default, aten.alias.default}
_BY_NUMBER = {aten.div.Scalar: aten.div.Tensor, aten.mul.Scalar: aten.mul.Tensor}
_FILLED = {aten.zeros.default: 0, aten.ones.default: 1}
_SHAPED = (aten.new_zeros.default, aten.new_ones.default, aten.new_full.default)
_QUOTIENTS = {aten.div, aten.floor_divide, aten.remainder, aten.fmod}
_ASSERT = aten._assert_scalar.default


@dataclass(frozen=True, slots=True)
class _Selected:
    """`full`: the elements and all others, of the mask's shape in front."""

    full: Node
    mask: Node


def choose_in_place(gm: GraphModule) -> None:
    """Of a functional graph, in place."""
    work = _Choices()
    for node in list(gm.graph.nodes):
        if node.op == "call_function":
            work.look_at(node)
    if work.found:
        _drop_asserts(work.found)
        gm.graph.eliminate_dead_code()


class _Choices:
    """`found`: of each node that holds selected elements. `_numbers`: of a node that says how many
    there are, or a multiple."""

    def __init__(self) -> None:
        self.found: dict[Node, _Selected] = {}
        self._numbers: dict[Node, tuple[_Selected, int]] = {}
        self._masks: dict[tuple, Node] = {}

    def look_at(self, node: Node) -> None:
        target, args = node.target, node.args
        if target is _INDEX:
            self._select(node)
        elif target is aten.sym_size.int and args[0] in self.found and args[1] == 0:
            self._numbers[node] = self.found[args[0]], 1
        elif target is operator.mul and any(n in self._numbers for n in node.all_input_nodes):
            self._multiply(node)
        elif target is _PUT and args[2] in self.found:
            self._put(node, self.found[args[2]])
        elif target in (_SUM, _MEAN) and args[0] in self.found:
            self._total(node, self.found[args[0]])
        elif target in _SHAPED and args[0] in self.found:
            node.args = (self.found[args[0]].full, *args[1:])  # of which the type alone counts
        elif target is aten.expand.default or target in _FILLED:
            self._spread(node)
        elif target in _BY_NUMBER and args[1] in self._numbers:
            self._by_number(node)
        elif target in _COPIES or _is_pointwise(node):
            self._pointwise(node)

    def _select(self, node: Node) -> None:
        x, places = node.args
        mask = places[0] if len(places) == 1 else None
        if not isinstance(mask, Node) or not _selects(mask.meta.get("val"), x.meta.get("val")):
            return
        plain = mask.op == "call_function" and not mask.kwargs
        if plain and not any(isinstance(a, (list, tuple)) for a in mask.args):
            mask = self._masks.setdefault((mask.target, mask.args), mask)  # of equal ones the first
        self.found[node] = _Selected(x, mask)

    def _pointwise(self, node: Node) -> None:
        selected = [self.found[n] for n in node.all_input_nodes if n in self.found]
        others = (n for n in node.all_input_nodes if n not in self.found)
        if not selected or not all(map(_is_number, others)):
            return
        one = selected[0]
        if any(i.mask is not one.mask or _shape(i) != _shape(one) for i in selected):
            return
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self._full)
        full = add_call(node, node.target, args, **kwargs)
        self.found[node] = _Selected(full, one.mask)

    def _full(self, node: Node) -> Node:
        return self.found[node].full if node in self.found else node

    def _spread(self, node: Node) -> None:
        """One number, or a constant, for each selected element."""
        sizes = node.args[1] if node.target is aten.expand.default else node.args[0]
        one, times = self._numbers.get(sizes[0] if sizes else None, (None, 0))
        if times != 1 or not all(isinstance(n, int) and n >= 0 for n in sizes[1:]):
            return
        shape = [*one.mask.meta["val"].shape, *sizes[1:]]
        if node.target is not aten.expand.default:
            full = _constant(node, shape, _FILLED[node.target])
            self.found[node] = _Selected(full, one.mask)
        elif not node.args[0].meta["val"].dim():
            full = add_call(node, aten.expand.default, (node.args[0], shape))
            self.found[node] = _Selected(full, one.mask)

    def _multiply(self, node: Node) -> None:
        numbers = [n for n in node.args if n in self._numbers]
        factors = [n for n in node.args if isinstance(n, int)]
        if len(numbers) == len(factors) == 1:
            selected, times = self._numbers[numbers[0]]
            self._numbers[node] = selected, times * factors[0]

    def _by_number(self, node: Node) -> None:
        """By how many there are."""
        x, number = node.args
        dtype = node.meta["val"].dtype
        if dtype not in (torch.float32, torch.float64) or x.meta["val"].dtype != dtype:
            return
        if x not in self.found and x.meta["val"].dim():
            return
        selected, times = self._numbers[number]
        count = _count(node, selected.mask, times, dtype)
        made = add_call(node, _BY_NUMBER[node.target], (self._full(x), count))
        if x in self.found:
            self.found[node] = _Selected(made, self.found[x].mask)
        else:
            node.replace_all_uses_with(made)

    def _put(self, node: Node, value: _Selected) -> None:
        x, places, _, *accumulates = node.args
        if len(places) != 1 or not _is_equal(places[0], value.mask):
            return
        if x.meta["val"].shape != _shape(value):
            return
        full = value.full
        if accumulates and accumulates[0]:
            full = add_call(node, aten.add.Tensor, (x, full))
        if full.meta["val"].dtype == x.meta["val"].dtype:
            mask = _over(node, value.mask, full)
            node.replace_all_uses_with(add_call(node, _WHERE, (mask, full, x)))

    def _total(self, node: Node, value: _Selected) -> None:
        """A sum or mean of all, in the type that eager adds up in."""
        dtype = node.meta["val"].dtype
        if len(node.args) > 1 or node.kwargs or dtype.is_complex:
            return
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        mask = _over(node, value.mask, value.full)
        zero = _constant(node, [], 0, value.full)
        chosen = add_call(node, _WHERE, (mask, value.full, zero))
        total = add_call(node, _SUM, (chosen,), dtype=wide)
        if node.target is _MEAN:
            rest = _shape(value)[value.mask.meta["val"].dim() :]
            count = _count(node, value.mask, prod(rest), wide)
            total = add_call(node, aten.div.Tensor, (total, count))
        if wide != dtype:
            total = add_call(node, aten._to_copy.default, (total,), dtype=dtype)
        node.replace_all_uses_with(total)


def _is_equal(node: Node | None, mask: Node) -> bool:
    if node is mask or not isinstance(node, Node) or node.op != "call_function":
        return node is mask
    return (node.target, node.args, node.kwargs) == (mask.target, mask.args, mask.kwargs)


def _selects(mask: torch.Tensor | None, x: torch.Tensor | None) -> bool:
    """Whether it is a mask of the first dimensions of `x`, all of whose sizes are numbers. What is
    an attribute of the graph is not known here."""
    if mask is None or x is None or mask.dtype != torch.bool or not mask.dim():
        return False
    return x.shape[: mask.dim()] == mask.shape and all(isinstance(n, int) for n in x.shape)


def _shape(selected: _Selected) -> torch.Size:
    return selected.full.meta["val"].shape


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.dim()


def _is_pointwise(node: Node) -> bool:
    """And defined for any numbers: a quotient of integers is not."""
    target = node.target
    if target is aten._to_copy.default:
        return True
    if not isinstance(target, torch_private.OpOverload) or target._schema.is_mutable:
        return False
    if torch.Tag.pointwise not in target.tags or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    divides = target.overloadpacket in _QUOTIENTS
    return not divides or node.meta["val"].is_floating_point()


def _constant(before: Node, shape: list[int], number: float, like: Node | None = None) -> Node:
    value = (like or before).meta["val"]
    how = {"dtype": value.dtype, "device": value.device}
    return add_call(before, aten.full.default, (shape, number), **how)


def _count(before: Node, mask: Node, times: int, dtype: torch.dtype) -> Node:
    """A multiple of how many elements a mask selects."""
    count = add_call(before, _SUM, (mask,))
    count = add_call(before, aten.mul.Tensor, (count, times)) if times != 1 else count
    return add_call(before, aten._to_copy.default, (count,), dtype=dtype)


def _over(before: Node, mask: Node, full: Node) -> Node:
    """The mask with the dimensions that it lacks."""
    for _ in range(full.meta["val"].dim() - mask.meta["val"].dim()):
        mask = add_call(before, aten.unsqueeze.default, (mask, -1))
    return mask


def _drop_asserts(found: dict[Node, _Selected]) -> None:
    """That there are not more of them than there are elements, which nothing else asks."""
    for node in [n for n in found if n.target is _INDEX]:
        for size in [u for u in node.users if u.target is aten.sym_size.int]:
            asked = [u for u in size.users if all(v.target is _ASSERT for v in u.users)]
            for compared in [u for u in asked if u.users]:
                for assertion in list(compared.users):
                    node.graph.erase_node(assertion)
                node.graph.erase_node(compared)

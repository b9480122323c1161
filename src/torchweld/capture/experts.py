"""Products whose matrices are chosen row by row, as products of groups of rows.

Mixtures of experts choose, for each row s, one of a table of matrices w. Written with a copy of the
matrix for each row, that is more memory than all else:

    bmm(index(w, [ids]), x[s, k, 1])                      y[s] = w[ids[s]] x[s]
        ->  index(grouped_mm(index(x, [order]), w, ends), [place])
    index_put(zeros_like(w), [ids], bmm(x[s, a, 1], y[s, 1, b]), accumulate)   its gradient
        ->  grouped_outer(index(x, [order]), index(y, [order]), ends)
        where order, place, ends = group_rows(ids)

The rows are put in order of their groups (capture/grouped.py), once for all products of one choice.
On CPUs; on a GPU the host would have to wait for the choice.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, GraphModule, Node

from torchweld.capture import grouped, torch_private
from torchweld.capture.constant import example

aten = torch.ops.aten
_ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default, aten.full.default)
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.clone.default)

# Operators of others, loops of products whose gradients torch.compile cannot trace.
_GROUPED = ("transformers.grouped_mm_fallback.default",)


def said_by_groups(gm: GraphModule) -> None:
    """Before autograd: operators with the meaning of grouped_mm become it, which has a gradient."""
    found = [n for n in gm.graph.nodes if n.op == "call_function" and _is_grouped(n)]
    for node in found:
        node.args, node.kwargs = (*node.args, *node.kwargs.values()), {}
        node.target = grouped.ops.grouped_mm.default
    if found:
        gm.recompile()


def _is_grouped(node: Node) -> bool:
    value = example(node)
    packet = str(node.target) if isinstance(node.target, torch_private.OpOverload) else ""
    packet = packet or f"{node.target!s}.default"
    on_cpu = value is not None and value.device.type == "cpu"
    in_order = list(node.kwargs) == ["input", "weight", "offs"][len(node.args) :]
    return on_cpu and packet in _GROUPED and in_order


def by_groups(gm: GraphModule) -> None:
    """Applies both rules to a functional ATen graph, in place."""
    rules = _Rules(gm.graph)
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.bmm.default)):
        rules.product(node)
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.index_put.default)):
        rules.gradient(node)
    if rules.changed:
        gm.graph.eliminate_dead_code()
        gm.graph.lint()
        gm.recompile()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A tensor [rows, a, b] that is table[ids] with the last two dimensions as they are, or
    `turned`."""

    table: Node
    ids: Node
    turned: bool


@dataclass
class _Rules:
    graph: Graph
    changed: bool = False
    orders: dict = field(default_factory=dict)

    def product(self, node: Node) -> None:
        """One factor is chosen, the other has one row or column for each."""
        for at, chosen in enumerate(map(_chosen, node.args)):
            other = node.args[1 - at]
            unit = 2 if at == 0 else 1  # the dimension of the other factor that is one
            if chosen is None or _shape(other)[unit] != 1 or not _suits(chosen, other):
                continue
            with self.graph.inserting_before(node):
                order, place, ends = self._order(chosen.ids, _shape(chosen.table)[0])
                rows = self._rows(other, unit, order)
                matrices = chosen.table
                if (at == 0) != chosen.turned:
                    matrices = self._call(aten.permute.default, matrices, [0, 2, 1])
                made = self._call(grouped.ops.grouped_mm.default, rows, matrices, ends)
                made = self._call(aten.index.Tensor, made, [place])
                self._replace(node, self._call(aten.unsqueeze.default, made, unit))
            return

    def gradient(self, node: Node) -> None:
        """What is added up by `ids` are outer products."""
        table, indices, values, *rest = node.args
        if rest != [True] or len(indices) != 1 or not _is_zero(table) or len(_shape(table)) != 3:
            return
        product, turned = _behind(values)
        ids = indices[0]
        if ids is None or product.target is not aten.bmm.default:
            return
        if _shape(product)[0] != _count(ids):
            return
        left, right = product.args
        alike = _value(left).dtype == _value(right).dtype == _value(table).dtype
        if _shape(left)[2] != 1 or not alike or not _suits(_Chosen(table, ids, False), left):
            return
        with self.graph.inserting_before(node):
            order, _, ends = self._order(ids, _shape(table)[0])
            first, second = self._rows(left, 2, order), self._rows(right, 1, order)
            factors = (second, first) if turned else (first, second)
            made = self._call(grouped.ops.grouped_outer.default, *factors, ends)
        self._replace(node, made)

    def _order(self, ids: Node, groups: int) -> tuple[Node, Node, Node]:
        """One for all products of one choice, behind it in the graph."""
        key = (ids, groups)
        if key not in self.orders:
            flat = self._last_input(ids)
            if len(_shape(ids)) > 1:
                with self.graph.inserting_after(flat):
                    flat = ids = self._call(aten.reshape.default, ids, [-1])
            with self.graph.inserting_after(flat):
                made = self._call(grouped.ops.group_rows.default, ids, groups)
            parts, after = [], made
            for k in range(3):
                with self.graph.inserting_after(after):
                    after = self._call(operator.getitem, made, k)
                parts.append(after)
            self.orders[key] = tuple(parts)
        return self.orders[key]

    def _last_input(self, node: Node) -> Node:
        """`node`, or the graph's last input if it is one."""
        inputs = list(self.graph.find_nodes(op="placeholder"))
        return inputs[-1] if node in inputs else node

    def _rows(self, node: Node, unit: int, order: Node) -> Node:
        """[s, k], in this order, of [s, k, 1] or [s, 1, k], whose dimension `unit` is one."""
        return self._call(aten.index.Tensor, self._call(aten.squeeze.dim, node, unit), [order])

    def _call(self, target, *args) -> Node:
        node = self.graph.call_function(target, args)
        given = torch.fx.node.map_arg(args, _value)
        node.meta["val"] = target(*given)
        return node

    def _replace(self, node: Node, made: Node) -> None:
        for name in ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "partitioner_tag"):
            if name in node.meta:
                made.meta[name] = node.meta[name]
        node.replace_all_uses_with(made)
        self.graph.erase_node(node)
        self.changed = True


def _chosen(node: Node) -> _Chosen | None:
    source, turned = _behind(node)
    if source.target is not aten.index.Tensor or len(source.args[1]) != 1:
        return None
    table, (ids,) = source.args
    plain = ids is not None and len(_shape(table)) == 3 and not _value(ids).dtype.is_floating_point
    fits = plain and _value(ids).dtype != torch.bool and _shape(node)[0] == _count(ids)
    return _Chosen(table, ids, turned) if fits else None


def _behind(node: Node) -> tuple[Node, bool]:
    """What a node [..., a, b] is a view of that keeps the last two dimensions, or turns them."""
    turned = False
    while True:
        if node.target is aten.permute.default:
            source, order = node.args
            *first, a, b = (d % len(order) for d in order)
            rank = len(order)
            if first != list(range(rank - 2)) or {a, b} != {rank - 2, rank - 1}:
                return node, turned
            turned ^= a > b
        elif node.target is aten.transpose.int:
            source, rank = node.args[0], len(_shape(node))
            if {d % rank for d in node.args[1:]} != {rank - 2, rank - 1}:
                return node, turned
            turned = not turned
        elif node.target in _VIEWS:
            source = node.args[0]
            if len(_shape(source)) < 3 or _shape(source)[-2:] != _shape(node)[-2:]:
                return node, turned
        else:
            return node, turned
        node = source


def _suits(chosen: _Chosen, other: Node) -> bool:
    """On a CPU, of one float dtype, a table of known sizes."""
    table, value, ids = _value(chosen.table), _value(other), _value(chosen.ids)
    known = all(isinstance(n, int) for n in table.shape) and math.prod(table.shape) > 0
    on_cpu = {t.device.type for t in (table, value, ids)} == {"cpu"}
    whole = ids.dtype in (torch.int64, torch.int32)
    return known and on_cpu and whole and table.is_floating_point() and table.dtype == value.dtype


def _is_zero(node: Node) -> bool:
    filled = node.target is not aten.full.default or node.args[1] == 0
    return node.target in _ZEROS and filled


def _value(node: Node) -> torch.Tensor:
    return node.meta["val"]


def _shape(node: Node) -> Sequence:
    return _value(node).shape


def _count(node: Node):
    return math.prod(_shape(node))

"""Losses on the large result of a product (logits): their gradients, ahead of the backward.

A scalar loss has gradients that are linear in one number, its tangent. So the gradients for a
tangent of one can be made in the forward, a few rows of the logits at a time, and scaled in the
backward: three products in all, and neither the logits nor their gradient are ever whole in memory
(the order of Hsu et al., "Liger Kernel", 2024, here for any loss that works row by row).

    forward:  L = x w;  loss = f(L)                     forward:  L = x w;  loss = f(L);  g1 = f'(L)
    backward: g = t f'(L);  dx = g w';  dw = g' x  ->             dx1 = g1 w';  dw1 = g1' x
                                                        backward: dx = t dx1;  dw = t dw1

Where that cannot be (several tangents, one for each row, or a factor that needs all rows: a
preference loss over sequences), the backward makes the logits again instead of keeping them.
`ir/row_region.py` says what works row by row: it is asked about the operations, lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import CheckpointPolicy

from torchweld.capture.calls import filled
from torchweld.capture.captured import Captured
from torchweld.capture.linear import is_linear
from torchweld.capture.lower import lower
from torchweld.core.errors import TorchweldError
from torchweld.core.options import Options
from torchweld.ir.row_map import NotByRows
from torchweld.ir.row_price import best_chunks
from torchweld.ir.row_region import find_region, product_operands
from torchweld.ir.row_seeds import LARGE, next_seeds
from torchweld.targets.find import target_of

aten = torch.ops.aten
Node = torch.fx.Node
_PRODUCTS = {aten.mm.default: 1, aten.addmm.default: 2}  # target -> the right operand's place
_LEAST_BYTES = 4 << 20  # of a result that is looked at: no chunks pay below


def take_ahead(joint: torch.fx.GraphModule, results: int) -> list[Node]:
    """Changes a joint graph of `results` forward outputs in these ways. The gradients that are to
    be made in the forward come back: nodes that the backward is to be given."""
    ahead: list[Node] = []
    for logits in _large_products(joint.graph):
        if logits in _unviewed(joint.graph.output_node().args[0][:results]):
            continue
        loss = _Loss.of(joint.graph, logits)
        made = loss.ahead() if loss is not None else None
        if made is not None:
            ahead += made
            joint.graph.eliminate_dead_code()
        elif loss is not None:
            loss.again()
    return ahead


def _large_products(graph: torch.fx.Graph) -> list[Node]:
    """Those of the forward whose results have many more columns than their operands."""
    late = _users(n for n in graph.find_nodes(op="placeholder") if n.name.startswith("tangents"))
    found = []
    for node in graph.nodes:
        place = _PRODUCTS.get(node.target)
        if place is None or node in late or node.kwargs:
            continue
        depth, columns = node.args[place].meta["val"].shape
        value = node.meta["val"]
        fixed = all(isinstance(n, int) for n in (depth, *value.shape))
        if fixed and columns >= LARGE * depth and value.nbytes >= _LEAST_BYTES:
            found.append(node)
    return found


@dataclass(frozen=True)
class _Loss:
    """What becomes of `logits`. `size`: their elements. `late`: all that depends on tangents.
    `ends`: gradients that are small again. `chain`: what makes those of the tangents."""

    graph: torch.fx.Graph
    logits: Node
    size: int
    late: frozenset[Node]
    ends: tuple[Node, ...]
    chain: tuple[Node, ...]

    @classmethod
    def of(cls, graph: torch.fx.Graph, logits: Node) -> _Loss | None:
        """None if no gradient of that size comes back."""
        size = logits.meta["val"].numel()
        tangents = [n for n in graph.find_nodes(op="placeholder") if n.name.startswith("tangents")]
        late = _users(tangents)
        wide = [n for n in graph.nodes if n in late and _elements(n) == size]
        if not wide or any(u.op == "output" for n in wide for u in n.users):
            return None
        ends = _ends(graph, wide, late, size)
        needed = _makers(ends)
        chain = tuple(n for n in graph.nodes if n in needed and n in late)
        return cls(graph, logits, size, late, ends, chain)

    def ahead(self) -> list[Node] | None:
        """The gradients `ends` for a tangent of one, by nodes of the forward; what used the old
        ones is given their multiples. None where that is not the same."""
        tangents = [n for n in self.chain if n.op == "placeholder"]
        if len(tangents) != 1 or _elements(tangents[0]) != 1 or not self._is_linear(tangents[0]):
            return None
        if not self._runs_by_rows({tangents[0]}, self.ends):
            return None
        copy = _Copy(self.graph, tangents[0])
        for node in self.chain:
            copy.add(node)
        return [copy.scaled(end) for end in self.ends]

    def again(self) -> None:
        """Nothing as large as the logits is kept for the backward."""
        if not self._runs_by_rows(set(), self.ends):
            return
        for node in _users([self.logits]) - self.late:
            if _elements(node) == self.size:
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE

    def _is_linear(self, tangent: Node) -> bool:
        """Half precision has too few exponents for gradients without their scale."""
        moving = set(self.chain)
        values = (n.meta["val"] for n in self.chain)  # of attention's gradient several
        narrow = any(getattr(v, "dtype", None) == torch.float16 for v in values)
        whole = all(_elements(end) > 1 for end in self.ends)
        rest = (n for n in self.chain if n is not tangent)
        return not narrow and whole and all(is_linear(n, moving) for n in rest)

    def _runs_by_rows(self, ones: set[Node], ends: Sequence[Node]) -> bool:
        """Whether the gradients can be made some rows at a time, and that pays. `ones`: tangents
        that are one; the forward's own use of the logits is then looked at too."""
        made = self._apart(ones, ends)
        device = self.logits.meta["val"].device
        try:
            graph = lower(Captured(made, "rows", "inference"), Options()).graph
            region = find_region(graph, next_seeds(graph, ()))
        except (TorchweldError, NotByRows):
            return False
        products = {n.name for n in graph.nodes if product_operands(n) is not None}
        return products <= region.names and bool(best_chunks(region, graph, target_of(device)))

    def _apart(self, ones: set[Node], ends: Sequence[Node]) -> torch.fx.GraphModule:
        """A graph of what makes `ends` of logits. Without `ones`, what is small in the forward is
        an input."""
        inside = {n for n in self._forward() if ones or _elements(n) == self.size}
        inside |= set(self.chain)
        graph, env = torch.fx.Graph(), {}
        for node in self.graph.nodes:
            if node in ones:
                env[node] = filled(graph, node.meta["val"], 1)
            elif node in inside and node.op == "call_function":
                env[node] = graph.node_copy(node, lambda n: _given(n, graph, env))
        graph.output([env[e] for e in ends if e in env])
        return torch.fx.GraphModule(torch.nn.Module(), graph)

    def _forward(self) -> frozenset[Node]:
        """Products as large as the logits, and all that the forward makes of them."""
        large = (n for n in self.graph.nodes if n.target in _PRODUCTS and n not in self.late)
        return _users(n for n in large if _elements(n) == self.size) - self.late


class _Copy:
    """The chain of a gradient, with one in the place of its tangent."""

    def __init__(self, graph: torch.fx.Graph, tangent: Node) -> None:
        self.graph, self.tangent = graph, tangent
        first = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(first):
            self.env = {tangent: filled(graph, tangent.meta["val"], 1)}

    def add(self, node: Node) -> None:
        if node not in self.env:
            with self.graph.inserting_before(node):
                copied = self.graph.node_copy(node, lambda n: self.env.get(n, n))
            copied.meta = {k: v for k, v in node.meta.items() if k != "partitioner_tag"}
            self.env[node] = copied

    def scaled(self, end: Node) -> Node:
        """The copy of `end`; its multiple takes the place of `end`."""
        made = self.env[end]
        with self.graph.inserting_after(end):
            multiple = self.graph.call_function(aten.mul.Tensor, (made, self.tangent))
        multiple.meta = dict(end.meta)
        end.replace_all_uses_with(multiple)
        return made


def _given(node: Node, graph: torch.fx.Graph, env: dict[Node, Node]) -> Node:
    """A node of another graph in this one: an input unless it is known."""
    if node not in env:
        first = next(iter(graph.nodes), None)
        with graph.inserting_before(first):
            env[node] = graph.placeholder(node.name)
        env[node].meta = dict(node.meta)
    return env[node]


def _ends(graph: torch.fx.Graph, wide: Iterable[Node], late, size: int) -> tuple[Node, ...]:
    """What is made of wide gradients, is small, and makes no wide one again."""
    wide = set(wide)
    feeds = _makers(wide)
    after = {u for n in wide for u in n.users if u.op == "call_function"} - wide - feeds
    return tuple(n for n in graph.nodes if n in after)


def _users(nodes: Iterable[Node]) -> frozenset[Node]:
    return _closure(nodes, lambda n: (u for u in n.users if u.op != "output"))


def _makers(nodes: Iterable[Node]) -> frozenset[Node]:
    return _closure(nodes, lambda n: n.all_input_nodes)


def _closure(nodes: Iterable[Node], following: Callable) -> frozenset[Node]:
    """`nodes`, and all that follows."""
    found, todo = set(), list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo.extend(following(node))
    return frozenset(found)


def _unviewed(nodes: Iterable) -> set[Node]:
    """`nodes`, and what they are views of."""
    return set(_closure((n for n in nodes if isinstance(n, Node)), _viewed))


def _viewed(node: Node) -> list[Node]:
    views = (aten.view.default, aten.alias.default, aten.detach.default, aten._to_copy.default)
    return [node.args[0]] if node.target in views else []


def _elements(node: Node) -> int:
    """Of the largest result."""
    value = node.meta.get("val")
    results = value if isinstance(value, (tuple, list)) else (value,)
    return max((v.numel() for v in results if isinstance(v, torch.Tensor)), default=0)

"""What follows a library's call that became a kernel of our own, in one kernel with it.

    before: comp t = sum of products;  comp y = relu(t), t used nowhere else
    after:  comp y = relu(sum of products)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchweld.ir.nodes import Comp, Graph, Node, views
from torchweld.plan.decisions import Plan
from torchweld.plan.merge import Rules, merge
from torchweld.plan.names import kernel_names
from torchweld.plan.products.told import Taken, decisions
from torchweld.plan.signature import Signatures
from torchweld.targets.target import Target
from torchweld.templates.gemm.price import Prices

Runs = Callable[[Comp, Graph], bool]


def with_readers(plan: Plan, made: Mapping[str, Comp], runs: Runs, table: Target) -> Plan:
    """`plan` with the Comps `made` in the place of the calls that they are named after, each inside
    the kernel that alone reads its result if `runs` takes the two together."""
    graph = replace(plan.graph, nodes=tuple(made.get(n.name, n) for n in plan.graph.nodes))
    prices, taken = Prices(graph, table), []
    for comp in reversed(made.values()):
        reader = Readers(graph).only(comp)
        fused = reader and _fused(comp, reader, graph, runs)
        if fused:
            before_s = prices.comp_s(comp) + prices.comp_s(reader)
            parts = (comp.name, reader.name)
            taken.append(Taken(fused, None, parts, before_s, prices.comp_s(fused)))
            graph = _joined(graph, comp, reader, fused)
    graph, taken = _named(graph, taken)
    return Plan(graph, decisions(plan, taken, {}, Prices(plan.graph, table)))


class Readers:
    """Who alone reads what a node of one graph makes, if the node might as well be there."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._signatures = graph, Signatures(graph.buffers)
        self._held = {v.buffer for v in views(graph.outputs)} | {n for n in graph.inputs if n}
        self._readers: dict[str, list[int]] = {}
        self._writers: dict[str, list[int]] = {}
        for place, node in enumerate(graph.nodes):
            for name in node.reads:
                self._readers.setdefault(name, []).append(place)
            for name in node.writes:
                self._writers.setdefault(name, []).append(place)
        self._joins: dict[tuple, bool] = {}

    def only(self, node: Node) -> Comp | None:
        """The Comp that alone reads the result of `node`."""
        (made, *others) = node.writes
        readers = self._readers.get(made, [])
        if others or made in self._held or len(readers) != 1:
            return None
        reader, (start, *_) = self._graph.nodes[readers[0]], self._writers[made]
        changes = (p for name in node.reads for p in self._writers.get(name, []))
        if not isinstance(reader, Comp) or any(start < p <= readers[0] for p in changes):
            return None
        return reader

    def joins(self, comp: Comp, runs: Runs) -> bool:
        """Whether `runs` takes `comp` and its only reader together; equal pairs are tried once."""
        reader = self.only(comp)
        if reader is None:
            return False
        one, other = self._signatures.of(comp), self._signatures.of(reader)
        key = one.number, other.number, other.buffers.index(comp.writes[0])
        if key not in self._joins:
            self._joins[key] = _fused(comp, reader, self._graph, runs) is not None
        return self._joins[key]


def _fused(comp: Comp, reader: Comp, graph: Graph, runs: Runs) -> Comp | None:
    shapes = {n: b.shape for n, b in graph.buffers.items()}
    fused = merge(comp, reader, Rules(shapes=shapes))
    return fused if isinstance(fused, Comp) and runs(fused, graph) else None


def _joined(graph: Graph, comp: Comp, reader: Comp, fused: Comp) -> Graph:
    nodes = [fused if n is reader else n for n in graph.nodes if n is not comp]
    return replace(graph, nodes=tuple(nodes))


def _named(graph: Graph, taken: Sequence[Taken]) -> tuple[Graph, list[Taken]]:
    """New kernels are named after what they do."""
    new = {t.comp: None for t in taken}
    others = [n.name for n in graph.nodes if n not in new]
    named = {c: replace(c, name=n) for c, n in zip(new, kernel_names(new, others))}
    nodes: tuple[Node, ...] = tuple(named.get(n, n) for n in graph.nodes)
    return replace(graph, nodes=nodes), [replace(t, comp=named[t.comp]) for t in taken]

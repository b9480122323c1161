"""What follows a library's call that became a kernel of our own, in one kernel with it.

    before: comp t = sum of products;  comp y = relu(t), t used nowhere else
    after:  comp y = relu(sum of products)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchweld.ir.memo import Memo
from torchweld.ir.nodes import Comp, Graph, Node, views
from torchweld.ir.nodes import readers as nodes_that_read
from torchweld.plan.decisions import Plan
from torchweld.plan.merge import Rules, merge
from torchweld.plan.names import kernel_names
from torchweld.plan.products.told import Taken, decisions, of_call
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target
from torchweld.templates.gemm.price import Prices

Runs = Callable[[Comp, Graph], bool]


def with_readers(plan: Plan, made: Mapping[str, Comp], runs: Runs, table: Target) -> Plan:
    """`plan` with the Comps `made` in the place of the calls that they are named after, each inside
    the kernel that alone reads its result if `runs` takes the two together."""
    graph = replace(plan.graph, nodes=tuple(made.get(n.name, n) for n in plan.graph.nodes))
    prices, taken, refused, readers = Prices(graph, table), [], {}, Readers(graph)
    read_by = nodes_that_read(graph.nodes)
    for comp in reversed(made.values()):
        reader = readers.only(comp)
        fused = readers.fused(comp, reader, runs) if reader else readers.refusal(comp)
        if isinstance(fused, Refusal):
            refused |= of_call(comp, read_by, fused)
        else:
            before_s = prices.comp_s(comp) + prices.comp_s(reader)
            parts = (comp.name, reader.name)
            taken.append(Taken(fused, None, parts, before_s, prices.comp_s(fused)))
            readers.join(comp, reader, fused)
    graph, taken = named(replace(graph, nodes=readers.nodes()), taken)
    return Plan(graph, decisions(plan, taken, refused, Prices(plan.graph, table)))


class Readers:
    """Who alone reads what a node of one graph makes, while some nodes are joined."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._memo = graph, Memo(graph.buffers)
        self._nodes: dict[int, Node] = dict(enumerate(graph.nodes))
        self._places = {node.name: place for place, node in self._nodes.items()}
        self._held = {v.buffer for v in views(graph.outputs)} | {n for n in graph.inputs if n}
        self._readers: dict[str, set[int]] = {}
        for place, node in self._nodes.items():
            self._reads(place, node)

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes.values())

    def only(self, node: Node) -> Comp | None:
        """The Comp that alone reads the result of `node`, if `node` might as well be there."""
        if self.refusal(node) is not None:
            return None
        (place,) = self._readers[node.writes[0]]
        return self._nodes[place]

    def refusal(self, node: Node) -> Refusal | None:
        """Why there is none."""
        readers = {p for made in node.writes for p in self._readers.get(made, ())}
        if len(node.writes) != 1 or self._held.intersection(node.writes) or len(readers) != 1:
            names = ", ".join(sorted({self._nodes[p].name for p in readers}))
            return Refusal(Reason.READERS, names or ", ".join(node.writes))
        (place,) = readers
        reader = self._nodes[place]
        if not isinstance(reader, Comp):
            return Refusal(Reason.EXTERN, reader.target)
        between = (self._nodes.get(p) for p in range(self._places[node.name] + 1, place + 1))
        written = {name for n in between if n is not None for name in n.writes}
        changed = sorted(written.intersection(node.reads))
        return Refusal(Reason.MUTATION, changed[0]) if changed else None

    def joins(self, comp: Comp, runs: Runs) -> bool:
        """Whether `runs` takes `comp` and its only reader together."""
        reader = self.only(comp)
        return reader is not None and isinstance(self.fused(comp, reader, runs), Comp)

    def fused(self, comp: Comp, reader: Comp, runs: Runs) -> Comp | Refusal:
        """Both as one Comp, if `runs` takes it; equal pairs are tried once."""
        graph = self._graph
        found = self._memo.named("fused", (comp, reader), lambda: _fused(comp, reader, graph, runs))
        if isinstance(found.answer, Refusal):
            return found.answer
        if found.answer is None:
            return Refusal(Reason.TEMPLATE, f"{comp.name} with {reader.name}")
        origins = tuple(dict.fromkeys(comp.origins + reader.origins))
        return replace(found.here(found.answer), name=reader.name, origins=origins)

    def join(self, comp: Comp, reader: Comp, fused: Comp) -> None:
        """`fused` in the place of `reader`, for both."""
        gone, place = self._places[comp.name], self._places[reader.name]
        for name in {*comp.reads, *reader.reads}:
            self._readers[name] -= {gone, place}
        del self._nodes[gone]
        self._nodes[place] = fused
        self._places[fused.name] = place
        self._reads(place, fused)

    def _reads(self, place: int, node: Node) -> None:
        for name in node.reads:
            self._readers.setdefault(name, set()).add(place)


def _fused(comp: Comp, reader: Comp, graph: Graph, runs: Runs) -> Comp | Refusal | None:
    """None where `runs` does not take what they are together."""
    touched = {*comp.reads, *comp.writes, *reader.reads, *reader.writes}
    shapes = {n: graph.buffers[n].shape for n in touched}
    fused = merge(comp, reader, Rules(shapes=shapes))
    return fused if isinstance(fused, Refusal) or runs(fused, graph) else None


def named(graph: Graph, taken: Sequence[Taken]) -> tuple[Graph, list[Taken]]:
    """New kernels are named after what they do."""
    new = {id(t.comp): t.comp for t in taken}
    others = [n.name for n in graph.nodes if id(n) not in new]
    names = kernel_names(new.values(), others)
    named = {key: replace(c, name=name) for (key, c), name in zip(new.items(), names)}
    nodes: tuple[Node, ...] = tuple(named.get(id(n), n) for n in graph.nodes)
    return replace(graph, nodes=nodes), [replace(t, comp=named[id(t.comp)]) for t in taken]

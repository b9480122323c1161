"""Weights that are kept in fewer bits, dequantised where a product on a CPU multiplies them.

    before:  comp w [n, k] { store w[n, k] (cast q[n, k]) * s[n] }
             t = mm(x, w.t()), w used nowhere else;  y = relu(t)
    after:   comp [m, n, k] { store y[m, n] relu(sum over k of x[m, k] * ((cast q[n, k]) * s[n])) }

Nothing is known here of formats: any pointwise computation counts that reads fewer bytes than it
makes. The plan has made one kernel of it by then, with its unpacking, groups and zero points.
Priced against writing the weight out whole and the library's call. In types for which no rate of
the library is known, it counts as fast as memory: then what is taken is faster for sure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from torchweld.core.options import Options
from torchweld.ir.nodes import Cast, Comp, Extern, Graph, Instr, Load, Node, Reduce, Value, views
from torchweld.ir.simplify import simplify
from torchweld.plan.decisions import Plan
from torchweld.plan.epilogues import Readers, named, with_readers
from torchweld.plan.merge import Rules, merge
from torchweld.plan.moves import is_pointwise
from torchweld.plan.products.told import Pair, Taken, decisions, explained
from torchweld.plan.refusals import Reason, Refusal
from torchweld.rewrite.flow import without_unused_buffers
from torchweld.targets.target import Target
from torchweld.templates.gemm.choice import choose
from torchweld.templates.gemm.comp import is_product, operands_of, product_comp
from torchweld.templates.gemm.cpu.price import reader_s, sizes_of, way_s
from torchweld.templates.gemm.dequantised.template import TEMPLATE
from torchweld.templates.gemm.price import Prices
from torchweld.templates.pointwise_reduce.price import bytes_of, bytes_per_s, cost
from torchweld.templates.template import Problem


def dequantised_weights(plan: Plan, target: Target, options: Options) -> Plan:
    """`plan` with weights that are dequantised inside their products, where that is faster."""
    desk = _Desk(plan.graph, target, options.numerics == "eager")
    taken: list[Taken] = []
    refused: dict[Pair, Refusal] = {}
    for producer, product in desk.pairs():
        offer = desk.offer(producer, product)
        if isinstance(offer, Refusal):
            refused[producer.name, product.name] = offer
        else:
            taken.append(offer)
    return _told(plan, taken, refused, desk)


def _told(plan: Plan, taken: list[Taken], refused: Mapping[Pair, Refusal], desk: _Desk) -> Plan:
    plan = explained(plan, refused)
    if not taken:
        return plan
    graph, new = named(_put_in(plan.graph, taken), taken)
    told = decisions(plan, new, {}, Prices(plan.graph, desk.target))
    made = {t.comp.name: t.comp for t in new}
    return with_readers(Plan(without_unused_buffers(graph), told), made, desk.runs, desk.target)


def _put_in(graph: Graph, taken: list[Taken]) -> Graph:
    """Each kernel in the place of its product, and the weight's computation gone."""
    places = {t.parts[1]: t.comp for t in taken}
    gone = {t.parts[0] for t in taken}
    kept = (n for n in graph.nodes if n.name not in gone)
    return replace(graph, nodes=tuple(places.get(n.name, n) for n in kept))


@dataclass
class _Desk:
    """Offers for the products of one graph."""

    graph: Graph
    target: Target
    eager: bool
    readers: Readers = field(init=False)

    def __post_init__(self) -> None:
        self.readers = Readers(self.graph)

    def pairs(self) -> Iterator[tuple[Comp, Extern]]:
        """Each product, and what makes one of its factors from fewer bytes."""
        writers = {name: n for n in self.graph.nodes for name in n.writes}
        for node in self.graph.nodes:
            if not is_product(node):
                continue
            factors = {v.buffer for v in operands_of(node)}
            found = [w for b in factors if self._widens(w := writers.get(b))]
            if len(factors) == 2 and len(found) == 1:
                yield found[0], node

    def _widens(self, node: Node | None) -> bool:
        if node is None or not is_pointwise(node) or len(node.writes) != 1:
            return False
        read = sum(self._bytes(b) for b in node.reads)
        return 0 < read < self._bytes(node.writes[0])

    def offer(self, producer: Comp, product: Extern) -> Taken | Refusal:
        """The kernel of both, if it is cheaper than one after the other."""
        apart = self._apart(producer, product)
        comp = apart or self._comp(producer, product)
        if isinstance(comp, Refusal):
            return comp
        problem = self._problem(comp)
        roles = TEMPLATE.match(problem)
        why = "its order in memory" if roles is None else TEMPLATE.supports(roles, problem)
        if why is not None:
            return Refusal(Reason.TEMPLATE, why)
        together_s, before_s = TEMPLATE.price(roles, roles, problem), self._before(producer, product)
        reader = self.readers.only(product)
        if reader is not None:
            joins = self.readers.joins(replace(comp, name=product.name), self.runs)
            together_s += self._reader_s(reader, product, joins)
            before_s += self._reader_s(reader, product, False)
        if together_s >= before_s:
            times = f"{before_s * 1e6:.1f} us apart, {together_s * 1e6:.1f} us together"
            return Refusal(Reason.SLOWER, times)
        return Taken(comp, None, (producer.name, product.name), before_s, together_s)

    def runs(self, comp: Comp, graph: Graph) -> bool:
        """Whether the template makes a kernel of `comp`."""
        problem = Problem(comp, graph.buffers, self.target, graph.hints, choose)
        roles = TEMPLATE.match(problem)
        return roles is not None and TEMPLATE.supports(roles, problem) is None

    def _apart(self, producer: Comp, product: Extern) -> Refusal | None:
        """Why the weight must be in memory."""
        (made,), nodes = producer.writes, self.graph.nodes
        held = {v.buffer for v in views(self.graph.outputs)} | set(self.graph.inputs)
        others = [n.name for n in nodes if made in n.reads and n is not product]
        if others or made in held:
            return Refusal(Reason.READERS, ", ".join(others) or made)
        between = nodes[nodes.index(producer) + 1 : nodes.index(product)]
        written = {name for n in between for name in n.writes}
        changed = sorted(written.intersection(producer.reads))
        return Refusal(Reason.MUTATION, changed[0]) if changed else None

    def _comp(self, producer: Comp, product: Extern) -> Comp | Refusal:
        """Both as one Comp."""
        graph = self.graph
        comp = product_comp(product, graph.buffers)
        if comp is None:
            return Refusal(Reason.TEMPLATE, "a product of windows, or of several types")
        touched = {*producer.reads, *producer.writes, *comp.reads, *comp.writes}
        shapes = {n: graph.buffers[n].shape for n in touched}
        fused = merge(producer, comp, Rules(shapes=shapes, eager=self.eager))
        if isinstance(fused, Refusal):
            return fused
        return _marked(simplify(fused), set(comp.reads) - set(producer.writes))

    def _problem(self, comp: Comp) -> Problem:
        return Problem(comp, self.graph.buffers, self.target, self.graph.hints, choose)

    def _before(self, producer: Comp, product: Extern) -> float:
        """Of the weight's computation and the library's call."""
        buffers, hints = self.graph.buffers, self.graph.hints
        sizes = sizes_of(product, buffers, hints)
        product_s = way_s("aten", sizes, self.target)
        if product_s is None:
            product_s = sizes.bytes / bytes_per_s(sizes.bytes, self.target)
        return cost(producer, buffers, hints, self.target).seconds + product_s

    def _reader_s(self, reader: Comp, product: Extern, joined: bool) -> float:
        graph = self.graph
        made = product.outputs[0]
        return reader_s(reader, made, graph.buffers, graph.hints, self.target, joined)

    def _bytes(self, name: str) -> int:
        return bytes_of(self.graph.buffers[name], self.graph.hints)


def _marked(comp: Comp, plain: set[str]) -> Comp:
    """`comp` with the mark that tells a library's product from a sum that a user wrote, on the
    factor that is read from one of the buffers `plain`."""
    total = next((i for i in comp.body if isinstance(i, Reduce)), None)
    if total is None:
        return comp
    factors = {_stored(comp.body, v) for v in getattr(comp.body[total.args[0]], "args", ())}
    body = (
        replace(i, exact=True) if v in factors and getattr(i, "buffer", None) in plain else i
        for v, i in enumerate(comp.body)
    )
    return replace(comp, body=tuple(body))


def _stored(body: tuple[Instr, ...], value: Value) -> Value:
    """The Load that a value is the widened value of, if it is one."""
    instr = body[value]
    widened = isinstance(instr, Cast) and isinstance(body[instr.arg], Load)
    return instr.arg if widened else value

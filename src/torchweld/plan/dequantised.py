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

from collections.abc import Iterator, Mapping, Sequence
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

_ORDER = "packed weights that are not adjacent along the depth, or of sizes known only at the call"


def dequantised_weights(plan: Plan, target: Target, options: Options) -> Plan:
    """`plan` with weights that are dequantised inside their products, where that is faster."""
    desk = _Desk(plan.graph, target, options.numerics == "eager")
    taken: list[Taken] = []
    refused: dict[Pair, Refusal] = {}
    for makers, product in desk.found():
        offer = desk.offer(makers, product)
        if isinstance(offer, Refusal):
            refused[makers[0].name, product.name] = offer
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
    places = {t.parts[-1]: t.comp for t in taken}
    gone = {name for t in taken for name in t.parts[:-1]}
    kept = (n for n in graph.nodes if n.name not in gone)
    return replace(graph, nodes=tuple(places.get(n.name, n) for n in kept))


@dataclass
class _Desk:
    """Offers for the products of one graph. `makers`: pointwise kernels that together make a
    factor, the last one first."""

    graph: Graph
    target: Target
    eager: bool
    readers: Readers = field(init=False)

    def __post_init__(self) -> None:
        self.readers = Readers(self.graph)
        self._writers = {name: n for n in self.graph.nodes for name in n.writes}
        self._users: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            for name in node.reads:
                self._users.setdefault(name, []).append(node)
        held = {v.buffer for v in views(self.graph.outputs)}
        self._held = held | {n for n in self.graph.inputs if n}

    def found(self) -> Iterator[tuple[tuple[Comp, ...], Extern]]:
        """Each product of which one factor is made from fewer bytes, and what makes it."""
        for node in self.graph.nodes:
            factors = {v.buffer for v in operands_of(node)} if is_product(node) else set()
            wide = [m for b in factors if (m := self._makers(b))]
            if len(factors) == 2 and len(wide) == 1:
                yield wide[0], node

    def _makers(self, factor: str) -> tuple[Comp, ...]:
        """What makes a factor, with what makes that and nothing else; () if it reads as much."""
        last = self._writers.get(factor)
        if last is None or not is_pointwise(last) or last.writes != (factor,):
            return ()
        makers: list[Comp] = [last]
        for maker in makers:
            makers += (n for b in maker.reads if self._serves(n := self._writers.get(b), makers))
        read = sum(map(self._bytes, _outside(makers)))
        return tuple(makers) if 0 < read < self._bytes(factor) else ()

    def _serves(self, node: Node | None, makers: list[Comp]) -> bool:
        """Whether a node is pointwise and made for `makers` alone."""
        if node is None or node in makers or not is_pointwise(node):
            return False
        used = (u for name in node.writes for u in self._users.get(name, ()))
        return self._held.isdisjoint(node.writes) and all(u in makers for u in used)

    def offer(self, makers: tuple[Comp, ...], product: Extern) -> Taken | Refusal:
        """One kernel, if it is cheaper than the weight written out and the library's call."""
        comp = self._apart(makers, product) or self._comp(makers, product)
        if isinstance(comp, Refusal):
            return comp
        problem = Problem(comp, self.graph.buffers, self.target, self.graph.hints, choose)
        roles = TEMPLATE.match(problem)
        why = _ORDER if roles is None else TEMPLATE.supports(roles, problem)
        if why is not None:
            return Refusal(Reason.TEMPLATE, why)
        before_s, together_s = self._before(makers, product), TEMPLATE.price(roles, roles, problem)
        reader = self.readers.only(product)
        if reader is not None:
            joins = self.readers.joins(comp, self.runs)
            together_s += self._reader_s(reader, product, joins)
            before_s += self._reader_s(reader, product, False)
        if together_s >= before_s:
            times = f"{before_s * 1e6:.1f} us apart, {together_s * 1e6:.1f} us together"
            return Refusal(Reason.SLOWER, times)
        parts = (*(m.name for m in reversed(makers)), product.name)
        return Taken(comp, None, parts, before_s, together_s)

    def runs(self, comp: Comp, graph: Graph) -> bool:
        """Whether the template makes a kernel of `comp`."""
        problem = Problem(comp, graph.buffers, self.target, graph.hints, choose)
        roles = TEMPLATE.match(problem)
        return roles is not None and TEMPLATE.supports(roles, problem) is None

    def _apart(self, makers: tuple[Comp, ...], product: Extern) -> Refusal | None:
        """Why the weight must be in memory."""
        (made,), nodes = makers[0].writes, self.graph.nodes
        others = [n.name for n in self._users[made] if n is not product]
        if others or made in self._held:
            return Refusal(Reason.READERS, ", ".join(others) or made)
        first = min(nodes.index(m) for m in makers)
        written = {name for n in nodes[first : nodes.index(product)] for name in n.writes}
        changed = sorted(written.intersection(_outside(makers)))
        return Refusal(Reason.MUTATION, changed[0]) if changed else None

    def _comp(self, makers: tuple[Comp, ...], product: Extern) -> Comp | Refusal:
        """All as one Comp."""
        buffers = self.graph.buffers
        comp = fused = product_comp(product, buffers)
        if comp is None:
            return Refusal(Reason.TEMPLATE, "a product of windows, or of several types")
        shapes = {n: b.shape for n, b in buffers.items()}
        for maker in makers:
            fused = merge(maker, fused, Rules(shapes=shapes, eager=self.eager))
            if isinstance(fused, Refusal):
                return fused
        return _marked(simplify(fused), set(comp.reads) - set(makers[0].writes))

    def _before(self, makers: tuple[Comp, ...], product: Extern) -> float:
        """Of the weight's computation and the library's call."""
        buffers, hints = self.graph.buffers, self.graph.hints
        sizes = sizes_of(product, buffers, hints)
        product_s = way_s("aten", sizes, self.target)
        if product_s is None:
            product_s = sizes.bytes / bytes_per_s(sizes.bytes, self.target)
        return product_s + sum(cost(m, buffers, hints, self.target).seconds for m in makers)

    def _reader_s(self, reader: Comp, product: Extern, joined: bool) -> float:
        graph = self.graph
        made = product.outputs[0]
        return reader_s(reader, made, graph.buffers, graph.hints, self.target, joined)

    def _bytes(self, name: str) -> int:
        return bytes_of(self.graph.buffers[name], self.graph.hints)


def _outside(makers: Sequence[Comp]) -> list[str]:
    """What they read and none of them makes."""
    made = {name for m in makers for name in m.writes}
    return [n for n in dict.fromkeys(b for m in makers for b in m.reads) if n not in made]


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

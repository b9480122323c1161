"""Merged Comps judged: whether a template makes a kernel of them, and how fast it is; and the graph
put together again from those that were taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torchweld.core import dtypes
from torchweld.core.tf32 import products_have_tf32
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.contraction import ACCUMULATED, TENSOR_DTYPES, Contraction, contraction_of
from torchweld.ir.frame import frame_of
from torchweld.ir.memo import Memo
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Node, View
from torchweld.ir.size import Size, product
from torchweld.plan.flow import Flow, NodeId
from torchweld.plan.legality import too_many_buffers
from torchweld.plan.names import kernel_names
from torchweld.plan.products.told import Taken
from torchweld.plan.refusals import Reason, Refusal
from torchweld.rewrite.flow import without_unused_buffers
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import call_of, convolution_comp
from torchweld.templates.gemm.comp import (
    is_integer_product,
    is_product,
    left_operand,
    product_comp,
)
from torchweld.templates.gemm.hopper.images import image_load
from torchweld.templates.gemm.price import Prices
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.template import Choose

MARGIN = 0.02  # of the time before, that a fusion must be predicted to save

# (accesses, buffers) -> the share of the time before that a kernel may be predicted to lose, and
# still be taken: there is better than a prediction, or there will be
Leeway = Callable[[Accesses, Mapping[str, Buffer]], float]


def no_leeway(accesses: Accesses, buffers: Mapping[str, Buffer]) -> float:
    """Predictions decide."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """`comp` as a template makes it. `left`: the buffers of its left factors; `sizes`: of batch,
    rows, columns and depth; `leeway`: see Leeway."""

    comp: Comp
    schedule: ProductSchedule
    seconds: float
    left: frozenset[str]
    sizes: tuple[Size, Size, Size, Size]
    leeway: float = 0.0

    @property
    def rows(self) -> Size:
        return self.sizes[1]


@dataclass(frozen=True, slots=True)
class Offer:
    """`comp`, and then `rest`, in the place of `nodes`."""

    nodes: tuple[NodeId, ...]
    comp: Comp
    rest: Comp | None
    before_s: float
    after_s: float
    leeway: float = 0.0

    @property
    def gain_s(self) -> float:
        return self.before_s - self.after_s

    def pays(self, margin: float) -> bool:
        """Whether it saves that share of the time before, as far as is known."""
        return self.gain_s > (margin - self.leeway) * self.before_s

    def refusal(self, margin: float) -> Refusal:
        """Of one that was not taken: it loses, gains less than `margin`, or another gains more."""
        before, after = self.before_s * 1e6, self.after_s * 1e6
        times = f"{before:.1f} us apart, {after:.1f} us together"
        if self.pays(margin):
            return Refusal(Reason.BETTER, times)
        if self.gain_s > 0:
            return Refusal(Reason.MARGIN, f"{times}; the gain must be at least {margin:.0%}")
        return Refusal(Reason.SLOWER, times)


@dataclass(slots=True)
class Judge:
    """What templates make of Comps on one device, with a memo: equal layers are judged once."""

    graph: Graph
    table: Target
    choose: Choose
    leeway: Leeway = no_leeway
    memo: Memo = field(init=False)

    def __post_init__(self) -> None:
        self.memo = Memo(self.graph.buffers)

    def kernel(self, comp: Comp) -> Kernel | Refusal:
        """The kernel that a template makes of `comp`."""
        found = self.memo.named("kernel", (comp,), lambda: self._judged(comp))
        if isinstance(found.answer, Refusal):
            return found.answer
        left = frozenset(found.names[b] for b in found.answer.left)
        return replace(found.answer, comp=comp, left=left)

    def _judged(self, comp: Comp) -> Kernel | Refusal:
        refusal = overload(comp, self.table)
        if refusal:
            return refusal
        if frame_of(comp) is None:
            return Refusal(Reason.NO_FRAME, comp.name)
        accesses = addressed(comp, self.graph.buffers, self.graph.hints)
        form = contraction_of(accesses)
        if form is None:
            return Refusal(Reason.PRODUCT, comp.name)
        chosen = self.choose(accesses, form, self.graph.buffers, self.table, self.graph.hints)
        if isinstance(chosen, str):
            return Refusal(Reason.TEMPLATE, chosen)
        seconds = Prices(self.graph, self.table).fused_s(accesses, form, chosen)
        groups = form.batch, form.rows, form.columns, form.depth
        sizes = tuple(product(accesses.comp.extent(a) for a in axes) for axes in groups)
        leeway = self.leeway(accesses, self.graph.buffers)
        return Kernel(comp, chosen, seconds, _left(accesses, form), sizes, leeway)


def overload(comp: Comp, target: Target) -> Refusal | None:
    """Why a merged Comp is no good kernel. It may store to a buffer in several places."""
    both = set(comp.reads).intersection(comp.writes)
    if both:
        return Refusal(Reason.MUTATION, min(both))
    return too_many_buffers(len({*comp.reads, *comp.writes}), target)


def crowded(nodes: Iterable[Node], target: Target) -> Refusal | None:
    """That a kernel of all `nodes` would touch too many buffers, told before it is made: a stack of
    a loop's results has as many operands as there are steps, and each of them would be merged."""
    reads, writes = set[str](), set[str]()
    for node in nodes:
        reads.update(node.reads)
        writes.update(node.writes)
    return too_many_buffers(len(reads ^ writes), target)


class Workshop:
    """One graph in the making. `taken`: what became of nodes, by the new kernel's number."""

    def __init__(self, graph: Graph, judge: Judge) -> None:
        self.graph, self.kernel, self.target = graph, judge.kernel, judge.table
        self.flow, self.prices = Flow(graph), Prices(graph, judge.table)
        self.shapes = {name: b.shape for name, b in graph.buffers.items()}
        self.taken: dict[NodeId, Taken] = {}
        self._made: dict[NodeId, Kernel | Refusal | None] = {}
        self._products: dict[int, tuple[Extern, Comp | Refusal]] = {}  # by address, with who has it

    def made(self, number: NodeId) -> Kernel | None:
        """The kernel that a product is, or would be."""
        found = self.kernel_of(number)
        return found if isinstance(found, Kernel) else None

    def kernel_of(self, number: NodeId) -> Kernel | Refusal | None:
        """The same, or why there is none; None for a library call that is no product."""
        if number not in self._made:
            node = self.flow.nodes[number]
            comp = self.product(node) if is_call(node) else node
            found = self.kernel(comp) if isinstance(comp, Comp) else comp
            self._made[number] = None if isinstance(found, Extern) else found
        return self._made[number]

    def now_s(self, number: NodeId) -> float:
        """Seconds of a product as things stand."""
        node = self.flow.nodes[number]
        return self.prices.call_s(node) if is_call(node) else self.made(number).seconds

    def product(self, node: Extern) -> Comp | Refusal:
        """The Comp of a library's product of matrices, or convolution: always the same object."""
        if id(node) not in self._products:
            self._products[id(node)] = node, self._product(node)
        return self._products[id(node)][1]

    def _product(self, node: Extern) -> Comp | Refusal:
        if call_of(node) is not None:
            return _convolution(node, self.graph)
        made = product_comp(node, self.graph.buffers)
        kinds = {self.graph.buffers[n].dtype for n in made.reads} if made else set()
        if made and kinds <= ACCUMULATED.keys():
            return made
        if kinds != {dtypes.f32}:
            why = "its operands are not matrices of 16-bit types or float32 in plain views"
            return Refusal(Reason.TEMPLATE, why)
        why = "torch is told to make it in TF32, which is the library's"
        return Refusal(Reason.TEMPLATE, why) if products_have_tf32() else made

    def hazard(self, first: NodeId, second: NodeId) -> Refusal | None:
        """What would go wrong if `first` were done where `second` is."""
        through = self.flow.detour(first, second)
        if through is not None:
            return Refusal(Reason.REENTRY, self.flow.nodes[through].name)
        changed = [b for b in self.flow.nodes[first].reads if self.flow.is_mutated(b)]
        return Refusal(Reason.MUTATION, changed[0]) if changed else None

    def take(self, offer: Offer, *absorbed: str) -> None:
        """Does what the offer says; the last of its nodes is where the kernel stands. `absorbed`:
        names of nodes that are computed in it too. Nodes may be kernels that were taken before."""
        taken = [self.taken.pop(n, None) for n in offer.nodes]
        parts = (t.parts if t else (self.flow.nodes[n].name,) for n, t in zip(offer.nodes, taken))
        names = (*absorbed, *(p for each in parts for p in each))
        saved_s = sum(t.before_s - t.after_s for t in taken if t)
        *others, new = offer.nodes
        if offer.rest is not None:
            new = self.flow.split(new, offer.comp, offer.rest)
        elif not others:
            new = self.flow.replace(new, offer.comp)
        for node in others:
            new = self.flow.merge(node, new, offer.comp)
        before_s = offer.before_s + saved_s
        self.taken[new] = Taken(offer.comp, offer.rest, names, before_s, offer.after_s)

    def finished(self) -> tuple[Graph, list[Taken]]:
        """The new graph, and its new kernels by their names there."""
        order = self.flow.order()
        new = [n for n in order if n in self.taken]
        others = [self.flow.nodes[n].name for n in order if n not in self.taken]
        names = dict(zip(new, kernel_names([self.flow.nodes[n] for n in new], others)))
        pairs = ((n, self.flow.nodes[n]) for n in order)
        nodes = tuple(replace(node, name=names.get(n, node.name)) for n, node in pairs)
        graph = without_unused_buffers(replace(self.graph, nodes=nodes))
        taken = (replace(t, comp=replace(t.comp, name=names[n])) for n, t in self.taken.items())
        return graph, list(taken)


def is_call(node: Node) -> bool:
    """Whether a node is a library's product of matrices, or convolution."""
    return is_product(node) or is_integer_product(node) or call_of(node) is not None


def left_of(node: Extern) -> View:
    """The left factor of such a call."""
    convolution = call_of(node)
    return left_operand(node) if convolution is None else convolution.image


def _convolution(node: Extern, graph: Graph) -> Comp | Refusal:
    """The Comp of a convolution in 16 bits of whole buffers."""
    call, kinds = call_of(node), {graph.buffers[n].dtype for n in (*node.reads, *node.writes)}
    if len(kinds) > 1 or not kinds <= TENSOR_DTYPES:
        return Refusal(Reason.TEMPLATE, "its images are not of one 16-bit type")
    if call.transposed:
        return Refusal(Reason.TEMPLATE, "it is transposed")
    made = convolution_comp(node, graph.buffers)
    return made or Refusal(Reason.TEMPLATE, "an operand is a part of a larger buffer")


def _left(accesses: Accesses, form: Contraction) -> frozenset[str]:
    """Buffers that left factors are read from; empty if one is computed."""
    comp, loads = accesses.comp, [image_load(accesses, p) for p in form.products]
    return frozenset() if None in loads else frozenset(comp.body[v].buffer for v in loads)

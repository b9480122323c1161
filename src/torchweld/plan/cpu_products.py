"""Products of matrices on a CPU: which way each is made, with what follows it.

    aten      the library's call as eager makes it, and its reader as a kernel of its own
    onednn    `torchweld.linear` on the weight as it lies; an activation goes into the call
    own       before: t = addmm(b, x, w);  y = relu(t), t used nowhere else
              after:  comp [m, n, k] { store y[m, n] relu(sum over k of x[m, k] * w[k, n] + b[n]) }

Every way is priced with what follows it (templates/gemm/cpu/price.py), by rates that are measured
on the machine at hand, and the cheapest is taken. Where prices are as near as they are sure, the
library's call stays, unless a kernel of our own saves memory traffic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from torchweld.capture.torch_private import onednn_multiplies
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.options import Options
from torchweld.ir.access import addressed
from torchweld.ir.memo import Memo
from torchweld.ir.nodes import Comp, Extern, Graph, Load, Node, Reduce, needed, readers
from torchweld.plan.decisions import Choice, Plan
from torchweld.plan.epilogues import Readers, with_readers
from torchweld.plan.products.told import explained, of_call
from torchweld.plan.reader_biases import biases_in_readers
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import is_product, operands_of, product_comp
from torchweld.templates.gemm.cpu.price import Sizes, reader_s, sizes_of, way_s
from torchweld.templates.gemm.cpu.schedule import cpu_product
from torchweld.templates.library.calls import is_in_pieces, linear_call, takes_activation

_FEWEST_UNKNOWN = 5  # rows, from which on kernels of our own take sizes known at the call
_MOST_NARROW = 4  # rows in 16-bit types that oneDNN has instructions for
_FEWEST_NARROW = 2  # rows and columns in 16-bit types that it has none for
_LEAST_WORK = 1 << 19  # multiply-adds: below, any call is as good
_SURE = 0.1  # of a price: what rates repeat to, from one measurement to the next and in a model
_IN_PIECES = 1.08  # oneDNN's time for a depth that is added up in pieces (templates/library)


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to make a product and what follows it. `saves`: it moves fewer bytes."""

    way: str
    node: Node
    seconds: float
    saves: bool = False


def choose_products(plan: Plan, target: Target, options: Options, kind: str) -> Plan:
    """`plan` with each product made in the cheapest way. `kind`: inference, forward or backward:
    weights of training change too often to be packed."""
    packs = options.pack_weights and kind == "inference"
    desk = _Desk(plan.graph, target, packs, Readers(plan.graph), Memo(plan.graph.buffers))
    taken = {n.name: desk.offers(n) for n in plan.graph.nodes if is_product(n)}
    best = {name: _best(offers) for name, offers in taken.items()}
    calls = {name: o.node for name, o in best.items() if isinstance(o.node, Extern)}
    made = {name: o.node for name, o in best.items() if isinstance(o.node, Comp)}
    nodes = tuple(calls.get(n.name, n) for n in plan.graph.nodes)
    told = [_told(name, best[name], taken[name]) for name in calls]
    refused, read_by = {}, readers(plan.graph.nodes)
    for node in plan.graph.nodes:
        if node.name in calls:
            why = _refusal(best[node.name], taken[node.name])
            refused |= of_call(node, read_by, why)
    plan = explained(plan, refused)
    libraries = [name for name in calls if best[name].way == "aten"]
    plan = Plan(replace(plan.graph, nodes=nodes), (*plan.decisions, *told))
    plan = biases_in_readers(plan, libraries)
    return with_readers(plan, made, _runs, target) if made else plan


def _best(offers: Iterable[Offer]) -> Offer:
    """The cheapest; another one must be cheaper than the library's call for sure, or save bytes."""
    library, *others = offers
    best = min(others, key=lambda o: o.seconds, default=library)
    least = best.seconds if best.saves else best.seconds * (1 + _SURE)
    return best if least < library.seconds else library


def _refusal(best: Offer, offers: Iterable[Offer]) -> Refusal:
    """Why a product is no kernel of our own."""
    own = next((o for o in offers if o.way == "own"), None)
    if own is None:
        return Refusal(Reason.TEMPLATE, "torchweld has no kernel for its types and sizes")
    apart, together = best.seconds * 1e6, own.seconds * 1e6
    reason = Reason.SLOWER if together >= apart else Reason.MARGIN
    return Refusal(reason, f"{apart:.1f} us apart, {together:.1f} us together")


def _told(name: str, best: Offer, offers: Iterable[Offer]) -> Choice:
    others = ", ".join(f"{o.way} {o.seconds * 1e6:.1f} us" for o in offers if o is not best)
    reason = f"beside {others}" if others else ""
    return Choice(name, f"library/{best.way}", "", best.seconds * 1e6, reason)


@dataclass(frozen=True, slots=True)
class _Desk:
    """Offers for the products of one graph."""

    graph: Graph
    target: Target
    packs: bool
    readers: Readers
    memo: Memo

    def offers(self, node: Extern) -> list[Offer]:
        """The library's call first."""
        sizes = sizes_of(node, self.graph.buffers, self.graph.hints)
        call, comp = self._call(node, sizes), self._own(node, sizes)
        aten = self._seconds("aten", sizes, node, False)
        if aten is None:  # nothing is known of this type: as it was measured elsewhere
            return [Offer("aten", comp or call or node, 0.0)]
        found = [Offer("aten", node, aten)]
        if call is not None:
            seconds = self._seconds("onednn", sizes, node, self._has_activation(call))
            slower = _IN_PIECES if is_in_pieces(call, self.graph) else 1.0
            found += [Offer("onednn", call, slower * seconds)] if seconds is not None else []
        if comp is not None:
            joins = self.readers.joins(comp, _runs)
            seconds = self._seconds("own", sizes, node, joins)
            found += [Offer("own", comp, seconds, saves=joins)] if seconds is not None else []
        return found

    def _call(self, node: Extern, sizes: Sizes) -> Extern | None:
        """oneDNN's, which refuses types that it has no instructions for."""
        multiplies = sizes.dtype not in narrow_types()
        return linear_call(node, self.graph, self.packs) if multiplies else None

    def _seconds(self, way: str, sizes: Sizes, node: Extern, joined: bool) -> float | None:
        product_s = way_s(way, sizes, self.target)
        reader = self.readers.only(node)
        if product_s is None or reader is None:
            return product_s
        return product_s + self._after_s(reader, node.outputs[0], joined)

    def _after_s(self, reader: Comp, made: str, joined: bool) -> float:
        """Of what reads the result `made`."""
        graph, place = self.graph, reader.reads.index(made)
        return self.memo.of(
            "after", (reader,),
            lambda: reader_s(reader, made, graph.buffers, graph.hints, self.target, joined),
            place, joined,
        )  # fmt: skip

    def _has_activation(self, call: Extern) -> bool:
        reader = self.readers.only(call)
        return reader is not None and takes_activation(call, reader, self.graph)

    def _own(self, node: Extern, sizes: Sizes) -> Comp | None:
        """The kernel of our own in the place of a library call."""
        if not _suits(node, sizes, self.graph):
            return None
        comp = product_comp(node, self.graph.buffers)
        if comp is None or _is_slow_row(node, self.graph):
            return comp
        marked = _marked(comp)
        runs = marked and self.memo.of("runs", (marked,), lambda: _runs(marked, self.graph))
        return marked if runs else None


def _suits(node: Extern, sizes: Sizes, graph: Graph) -> bool:
    """Of a type and of sizes that our kernels take, and worth one."""
    left, right = operands_of(node)
    known = all(isinstance(s, int) for s in (*left.shape[:-1], right.shape[-1]))
    fewest = _fewest(sizes.dtype, known)
    if len(left.shape) != len(right.shape):
        return False
    if fewest is None:
        few = known and len(left.shape) == 2 and 0 not in (*left.shape, *right.shape)
        return few and min(left.shape[0], right.shape[1]) <= _MOST_NARROW
    if _is_slow_row(node, graph):
        return True
    worth = sizes.rows * sizes.columns * sizes.depth >= _LEAST_WORK
    return min(sizes.rows, sizes.columns) >= fewest and worth


def _is_slow_row(node: Node, graph: Graph) -> bool:
    """A 16-bit row times a matrix whose columns lie apart: ATen's loop takes 20 ms where memory
    would take one. A kernel like any other that sums does it."""
    left, right = operands_of(node)
    narrow = graph.buffers[left.buffer].dtype in narrow_types()
    return narrow and left.shape[-2] == 1 and right.strides[-2] != 1


def _fewest(dtype: DType, known: bool) -> int | None:
    """Rows and columns from which on kernels of our own are faster; None: never. Those for few rows
    are for sizes that are `known`."""
    if dtype == dtypes.f32:
        return 1 if known else _FEWEST_UNKNOWN
    return _FEWEST_NARROW if dtype in narrow_types() else None


@cache
def narrow_types() -> frozenset[DType]:
    """16-bit types that oneDNN multiplies without instructions for them."""
    narrow = (dtypes.f16, dtypes.bf16)
    return frozenset(d for d in narrow if not onednn_multiplies(dtypes.to_torch(d)))


def _marked(comp: Comp) -> Comp | None:
    """`comp` with the mark that tells its factors from what a user multiplied. None for a depth of
    one, which leaves nothing to add up."""
    total = next((i for i in comp.body if isinstance(i, Reduce)), None)
    if total is None:
        return None
    behind = needed(comp.body, total.args)
    body = (
        replace(i, exact=True) if v in behind and isinstance(i, Load) else i
        for v, i in enumerate(comp.body)
    )
    return replace(comp, body=tuple(body))


def _runs(comp: Comp, graph: Graph) -> bool:
    return cpu_product(addressed(comp, graph.buffers, graph.hints), graph.hints) is not None

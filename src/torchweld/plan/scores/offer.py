"""A score nest against the products and the computations between them, in predicted seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.options import Options
from torchweld.ir.memo import Memo
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Node
from torchweld.ir.normal_form import normalised
from torchweld.ir.simplify import simplify
from torchweld.ir.size import hint, product
from torchweld.ir.substitute import drop_unit_axes
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.scores.write import Written
from torchweld.plan.tidy import tidy
from torchweld.targets.rates import library_rate, rate_at
from torchweld.targets.target import Target
from torchweld.templates import registry
from torchweld.templates.attention.nest import Nest, nest_or_reason
from torchweld.templates.attention.sums import sums_or_reason
from torchweld.templates.gemm.comp import is_batched, operands_of
from torchweld.templates.gemm.price import Prices
from torchweld.templates.pointwise_reduce.price import bytes_of
from torchweld.templates.template import Choose, Kernel, Problem

FAMILY = "attention/"  # names of the templates that take score nests begin with this
# Times as long may a kernel take that holds no scores in memory. On a CPU, products in batches and
# new memory are slower than their rates say: of 8 x 1024 x 1024 scores, softmax attention took
# 104 ms by parts where 16 are predicted, causal 21 ms in one kernel where 10 are (two cores of a
# Xeon). Batches of 16 bits are as fast as their rate says, where it is known: 16 x 512 x 512 scores
# 8.7 ms by parts, 13.0 in one kernel (one thread of a Zen 4). So are layers: a linear one, a norm
# and another, 2928 x 416 to 64 to 64, 1.4 ms by parts, 3.9 in one kernel, where the norm's rows
# are computed three times (one thread of that Xeon).
_WORTH = {"cpu": 2.0, "cuda": 1.0}
_LAYERS = "float32 aten"  # of the target's rates


@dataclass(frozen=True, slots=True)
class Offer:
    """`comp` would take the place of `root`, and of what nobody else needs of `written.members`."""

    root: Node
    written: Written
    comp: Comp
    template: str
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class Desk:
    """What offers on one graph are made by."""

    graph: Graph
    target: Target
    options: Options
    choose: Choose
    prices: Prices = field(init=False)
    nodes: Mapping[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prices", Prices(self.graph, self.target))
        object.__setattr__(self, "nodes", {n.name: n for n in self.graph.nodes})

    @property
    def memo(self) -> Memo:
        return self.prices.memo

    def offer(self, root: Node, written: Written) -> Offer | Refusal:
        """The kernel in the place of a product and what is behind it, or why there is none."""
        batched, before = isinstance(root, Comp) or is_batched(root), written.comp
        found = self.memo.named(
            "nest", (before,), lambda: self._judged(written, batched), batched, written.keys,
            written.position is None)
        if isinstance(found.answer, Refusal):
            return found.answer
        comp, template, after_s = found.answer
        comp = replace(found.here(comp), name=before.name, origins=before.origins)
        before_s = self.before_s(root, written)
        if after_s > before_s * self._worth(root, batched):
            apart, together = before_s * 1e6, after_s * 1e6
            return Refusal(Reason.SLOWER, f"{apart:.1f} us apart, {together:.1f} us together")
        return Offer(root, written, comp, template, before_s, after_s)

    def _judged(self, written: Written, batched: bool) -> tuple[Comp, str, float] | Refusal:
        """The nest in its last form, its template and seconds; why there are none."""
        comp = self.finished(written)
        if 0 in comp.extents.values():
            return Refusal(Reason.SLOWER, "there are no scores")
        form = sums_or_reason if written.position is None else nest_or_reason
        nest = form(comp)
        if isinstance(nest, str):
            return Refusal(Reason.TEMPLATE, nest)
        why = _pointless(batched, nest, comp, self.graph.hints)
        if why is not None:
            return Refusal(Reason.SLOWER, why)
        found = self.kernel(comp)
        return Refusal(Reason.TEMPLATE, found) if isinstance(found, str) else (comp, *found)

    def finished(self, written: Written) -> Comp:
        """The nest in the form that templates know."""
        comp = drop_unit_axes(simplify(written.comp))
        comp = simplify(tidy(comp, self.options.numerics == "eager"))
        return simplify(normalised(comp, written.keys & comp.extents.keys()))

    def kernel(self, comp: Comp) -> tuple[str, float] | str:
        """The first template for attention that takes `comp`, and its seconds; why none does."""
        problem = Problem(comp, self.graph.buffers, self.target, self.graph.hints, self.choose)
        why: list[str] = []
        for name in (n for n in self.target.templates if n.startswith(FAMILY)):
            made = registry.tried(name, problem)
            if isinstance(made, Kernel):
                return name, made.predicted_s
            why.append(f"{name}: {made or 'another form'}")
        return "; ".join(why) or "no template for attention"

    def before_s(self, root: Node, written: Written) -> float:
        """Of the products, and of a kernel between them that does what the longest of the
        computations there does."""
        inside = [self.nodes[m] for m in written.members]
        products_s = sum(self._product_s(n) for n in (root, *inside) if isinstance(n, Extern))
        between = (self.prices.comp_s(n) for n in (root, *inside) if isinstance(n, Comp))
        return products_s + max(between, default=0.0)

    def _rate_in_16_bits(self, kind: DType) -> float | None:
        """Multiply-adds a second of a CPU's library, where they are known."""
        known = self.target.kind == "cpu" and kind.is_low_precision
        return library_rate(self.target.rates, kind) if known else None

    def _worth(self, root: Node, batched: bool) -> float:
        known = self._rate_in_16_bits(self.graph.buffers[root.writes[0]].dtype)
        return 1.0 if known or not batched else _WORTH[self.target.kind]

    def _product_s(self, call: Extern) -> float:
        if self.target.kind == "cuda":
            return self.prices.call_s(call)
        left, right = operands_of(call)
        work = hint(product((*left.shape, right.shape[-1])), self.graph.hints)
        moved = _moved(call, self.graph.buffers, self.graph.hints)
        kind = self.graph.buffers[call.outputs[0]].dtype
        rows = None if is_batched(call) else hint(product(left.shape[:-1]), self.graph.hints)
        rate = self._rate_in_16_bits(kind) or self._rate_of_layers(kind, rows)
        return work / (rate or self.target.fma_per_s) + moved / self.target.dram_bytes_per_s

    def _rate_of_layers(self, kind: DType, rows: int | None) -> float | None:
        """Multiply-adds a second of a CPU's library for so many rows; None of batches."""
        known = rows is not None and kind == dtypes.f32 and _LAYERS in self.target.rates
        return rate_at(self.target.rates, _LAYERS, rows) if known else None


def _moved(call: Extern, buffers: Mapping[str, Buffer], hints: Mapping[str, int]) -> int:
    return sum(bytes_of(buffers[n], hints) for n in {*call.reads, *call.writes})


def _pointless(
    batched: bool, nest: Nest, comp: Comp, hints: Mapping[str, int]
) -> str | None:
    """Why nothing would be gained, whatever a template takes."""
    rows, keys = (hint(product(comp.extent(n) for n in p), hints) for p in (nest.rows, nest.keys))
    depths = (hint(product(comp.extent(n) for n in i.depth), hints) for i in nest.inners)
    depth = max(depths, default=1)  # of a depth of one, no product is left
    if rows * keys < min(rows, keys) * depth:
        return "the scores are no larger than their factors"
    if rows == 1 and not nest.statistics:
        return "each key's score is used once: all of them are no larger than the keys"
    if not batched and not nest.statistics:
        return "the factors are weights of layers, not keys and values"
    return None


def with_stores(written: Written, stores) -> Written:
    """`written` that also stores these."""
    return replace(written, comp=replace(written.comp, stores=(*written.comp.stores, *stores)))

"""Merges priced, with a memo: equal layers of a model cost one evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.substitute import rename_buffers
from torchweld.plan.legality import device_refusal, kernel_refusal, length_refusal
from torchweld.plan.merge import Rules, merge
from torchweld.plan.refusals import Refusal
from torchweld.plan.signature import Signatures
from torchweld.targets.target import Target
from torchweld.templates.pointwise_reduce.price import Cost, cost


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge and its price."""

    comp: Comp
    cost: Cost


@dataclass(slots=True)
class Evaluator:
    """Prices Comps and pairs of them on one device."""

    buffers: Mapping[str, Buffer]
    hints: Mapping[str, int]
    device: Target
    eager: bool
    signatures: Signatures = None
    _costs: dict[int, Cost] = field(default_factory=dict)
    _pairs: dict[tuple, tuple[Merged | Refusal, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.signatures = Signatures(self.buffers)

    def with_buffers(self, more: list[Buffer]) -> Evaluator:
        """An evaluator that knows `more` buffers as well."""
        known = {**self.buffers, **{b.name: b for b in more}}
        return Evaluator(known, self.hints, self.device, self.eager)

    def cost(self, comp: Comp) -> Cost:
        number = self.signatures.of(comp).number
        if number not in self._costs:
            self._costs[number] = cost(comp, self.buffers, self.hints, self.device)
        return self._costs[number]

    def merged_cost(self, producer: Comp, consumer: Comp, keep: frozenset[str]) -> Cost | Refusal:
        """The price of `producer` merged into `consumer` with `keep` still stored, or why it cannot
        be."""
        result, _, _ = self._pair(producer, consumer, keep)
        return result if isinstance(result, Refusal) else result.cost

    def merged(self, producer: Comp, consumer: Comp, keep: frozenset[str]) -> Comp | Refusal:
        """The Comp that `merged_cost` is the price of."""
        result, template, names = self._pair(producer, consumer, keep)
        if isinstance(result, Refusal):
            return result
        origins = tuple(dict.fromkeys(producer.origins + consumer.origins))
        comp = result.comp
        if template != names:
            comp = rename_buffers(comp, dict(zip(template, names)))
        return replace(comp, name=consumer.name, origins=origins)

    def _pair(
        self, producer: Comp, consumer: Comp, keep: frozenset[str]
    ) -> tuple[Merged | Refusal, tuple[str, ...], tuple[str, ...]]:
        """The merge of a pair like this, the names of its buffers, and those of this pair."""
        one, other = self.signatures.of(producer), self.signatures.of(consumer)
        names = one.buffers + other.buffers
        first = {name: k for k, name in reversed(list(enumerate(names)))}
        key = (
            one.number, other.number,
            tuple(first[n] for n in names), tuple(n in keep for n in one.buffers),
        )  # fmt: skip
        if key not in self._pairs:
            self._pairs[key] = (self._merge(producer, consumer, keep), names)
        return *self._pairs[key], names

    def _merge(self, producer: Comp, consumer: Comp, keep: frozenset[str]) -> Merged | Refusal:
        refusal = length_refusal(producer, consumer) or device_refusal(
            producer, consumer, self.buffers
        )
        if refusal:
            return refusal
        shapes = {n: self.buffers[n].shape for n in (*producer.reads, *producer.writes)}
        comp = merge(producer, consumer, Rules(keep, shapes, self.eager))
        if isinstance(comp, Refusal):
            return comp
        price = self.cost(comp)
        return kernel_refusal(comp, price.live, self.device) or Merged(comp, price)

"""Merges priced, with a memo: equal layers of a model cost one evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchweld.ir.memo import Found, Memo
from torchweld.ir.nodes import Buffer, Comp, Reduce, Scan
from torchweld.plan.legality import (
    buffers_refusal,
    device_refusal,
    kernel_refusal,
    length_refusal,
)
from torchweld.plan.merge import Rules, merge
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.room import Room, has_room, room_of
from torchweld.targets.target import Target
from torchweld.templates.gemm.choice import choose
from torchweld.templates.pointwise_reduce.price import Cost, cost
from torchweld.templates.pooling.schedule import has_large_windows
from torchweld.templates.registry import tried
from torchweld.templates.template import Kernel, Problem
from torchweld.templates.traffic import node_bytes

_POOLING = "pooling"


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge and its price. `room`: how much further back and forth, along each
    dimension, `comp` could read its buffers (plan/room.py)."""

    comp: Comp
    cost: Cost
    room: Room


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Prices Comps and pairs of them on one device."""

    buffers: Mapping[str, Buffer]
    hints: Mapping[str, int]
    device: Target
    eager: bool
    memo: Memo = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memo", Memo(self.buffers, loose=True))

    def with_buffers(self, more: list[Buffer]) -> Evaluator:
        """An evaluator that knows `more` buffers as well."""
        known = {**self.buffers, **{b.name: b for b in more}}
        return Evaluator(known, self.hints, self.device, self.eager)

    def cost(self, comp: Comp) -> Cost:
        return self.memo.of(
            "cost", (comp,), lambda: cost(comp, self.buffers, self.hints, self.device))

    def bytes(self, comp: Comp) -> int:
        """Told of the kernel, as `node_bytes` counts them."""
        return self.memo.of("bytes", (comp,), lambda: node_bytes(comp, self.buffers, self.hints))

    def merged_cost(self, producer: Comp, consumer: Comp, keep: frozenset[str]) -> Cost | Refusal:
        """The price of `producer` merged into `consumer` with `keep` still stored, or why it cannot
        be."""
        found = self._pair(producer, consumer, keep).answer
        return found if isinstance(found, Refusal) else found.cost

    def merged(self, producer: Comp, consumer: Comp, keep: frozenset[str]) -> Comp | Refusal:
        """The Comp that `merged_cost` is the price of."""
        found = self._pair(producer, consumer, keep)
        if isinstance(found.answer, Refusal):
            return found.answer
        origins = tuple(dict.fromkeys(producer.origins + consumer.origins))
        return replace(found.here(found.answer.comp), name=consumer.name, origins=origins)

    def _pair(self, producer: Comp, consumer: Comp, keep: frozenset[str]) -> Found:
        """The merge of a pair like this, or why there is none: of one that reads at the same places
        where others would be beyond the ends of a buffer."""
        pair, sign = (producer, consumer), self.memo.signatures.of
        kept = tuple(name in keep for name in sign(producer).buffers)

        def work() -> Merged | Refusal:
            return self._merge(producer, consumer, keep)

        found = self.memo.named("merge", pair, work, kept)
        if isinstance(found.answer, Refusal) or has_room(found.answer.room, found.moves):
            return found
        return self.memo.named("merge", pair, work, kept, tuple(sign(c).places for c in pair))

    def _merge(self, producer: Comp, consumer: Comp, keep: frozenset[str]) -> Merged | Refusal:
        refusal = (
            length_refusal(producer, consumer)
            or device_refusal(producer, consumer, self.buffers)
            or buffers_refusal(producer, consumer, keep, self.device)
        )
        if refusal:
            return refusal
        shapes = {n: self.buffers[n].shape for n in (*producer.reads, *producer.writes)}
        comp = merge(producer, consumer, Rules(keep, shapes, self.eager))
        if isinstance(comp, Refusal):
            return comp
        if self._is_pooling(producer) and any(isinstance(i, (Reduce, Scan)) for i in comp.body):
            return Refusal(Reason.TEMPLATE, _POOLING)
        price = self.cost(comp)
        refusal = kernel_refusal(comp, price.live, self.device)
        return refusal or Merged(comp, price, room_of(comp, self.buffers))

    def _is_pooling(self, comp: Comp) -> bool:
        """Whether it has the kernel for max pooling, which goes along rows first and then along
        columns. A reduction behind it would take every element of every window."""
        if _POOLING not in self.device.templates or not has_large_windows(comp):
            return False
        problem = Problem(comp, self.buffers, self.device, self.hints, choose)
        return self.memo.of(
            "is pooling", (comp,), lambda: isinstance(tried(_POOLING, problem), Kernel))

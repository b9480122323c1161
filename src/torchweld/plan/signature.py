"""Equal work recognised: Comps that differ only in the names of their buffers have one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchweld.ir.nodes import Buffer, Comp, Load, Store


@dataclass(frozen=True, slots=True)
class Signature:
    """`number` stands for everything but names; `buffers` are the names, in order of first use."""

    number: int
    buffers: tuple[str, ...]


@dataclass(slots=True)
class Signatures:
    """Numbers given out so far."""

    buffers: Mapping[str, Buffer]
    _numbers: dict[tuple, int] = field(default_factory=dict)
    _known: dict[int, tuple[Comp, Signature]] = field(default_factory=dict)

    def of(self, comp: Comp) -> Signature:
        known = self._known.get(id(comp))
        if known is None:
            known = self._known[id(comp)] = (comp, self._compute(comp))
        return known[1]

    def _compute(self, comp: Comp) -> Signature:
        order: dict[str, int] = {}
        body = tuple(_load_key(i, order) if isinstance(i, Load) else _key(i) for i in comp.body)
        stores = tuple(_store_key(s, order) for s in comp.stores)
        facts = tuple(self._facts(name) for name in order)
        key = (comp.axes, body, stores, facts)
        return Signature(self._numbers.setdefault(key, len(self._numbers)), tuple(order))

    def _facts(self, name: str) -> tuple:
        b = self.buffers[name]
        return b.shape, b.dtype, b.strides, b.device


def _number(name: str, order: dict[str, int]) -> int:
    return order.setdefault(name, len(order))


def _load_key(load: Load, order: dict[str, int]) -> tuple:
    number = _number(load.buffer, order)
    return number, load.index, load.dtype, load.guard, repr(load.fill), load.exact


def _store_key(store: Store, order: dict[str, int]) -> tuple:
    init = _number(store.init, order) if isinstance(store.init, str) else repr(store.init)
    number = _number(store.buffer, order)
    return number, store.index, store.value, store.combine, init, type(store.init), store.guard


def _key(instr) -> tuple:
    return type(instr), instr, repr(getattr(instr, "value", None))

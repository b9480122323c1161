"""Equal work recognised and done once: Comps that differ only in the names of their buffers have
one number, and what was found out of one holds for all of that number.

That is so for a question whose answer follows from the Comps asked about (their axes, bodies and
stores), from the layouts, dtypes and devices of their buffers, from which of these buffers are the
same, and from the facts given beside them. It may not follow from a name, an origin, another node
of the graph, or whether a buffer is frozen, unless that is among the facts. A Memo serves one
graph, device and set of options: these are no part of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from torchweld.ir.nodes import Buffer, Comp, Load, Store
from torchweld.ir.substitute import rename_buffers

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class Found:
    """An answer in the names of the first Comps that it was asked of (`theirs`), and the names of
    the same buffers where it is asked now."""

    answer: object
    theirs: tuple[str, ...]
    ours: tuple[str, ...]

    def here(self, comp: Comp) -> Comp:
        """A Comp of the answer, on the buffers of the Comps that were asked about."""
        if self.theirs == self.ours:
            return comp
        return rename_buffers(comp, dict(zip(self.theirs, self.ours)))


class Memo:
    """Answers about Comps on the buffers of one graph."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self.signatures = Signatures(buffers)
        self._found: dict[tuple, tuple[object, tuple[str, ...]]] = {}

    def of(
        self, question: str, comps: tuple[Comp, ...], work: Callable[[], T], *facts: Hashable
    ) -> T:
        """What `work()` gives for the first Comps like these. The answer has no names in it."""
        return self.named(question, comps, work, *facts).answer

    def named(
        self, question: str, comps: tuple[Comp, ...], work: Callable[[], T], *facts: Hashable
    ) -> Found:
        """The same for an answer that names the Comps' buffers."""
        signed = [self.signatures.of(c) for c in comps]
        names = tuple(name for s in signed for name in s.buffers)
        numbers = tuple(s.number for s in signed)
        key = question, numbers, _pattern(names) if len(comps) > 1 else (), facts
        if key not in self._found:
            self._found[key] = work(), names
        return Found(*self._found[key], names)


def _pattern(names: tuple[str, ...]) -> tuple[int, ...]:
    """Which of the names are the same: for each, the place of the first like it."""
    first: dict[str, int] = {}
    return tuple(first.setdefault(name, k) for k, name in enumerate(names))


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

"""Equal work recognised and done once: Comps that differ only in the names of their buffers have
one number, and what was found out of one holds for all of that number.

That is so for a question whose answer follows from the Comps asked about (their axes, bodies and
stores), from the layouts, dtypes and devices of their buffers, from which of these buffers are the
same, and from the facts given beside them. It may not follow from a name, an origin, another node
of the graph, or whether a buffer is frozen, unless that is among the facts. A Memo serves one
graph, device and set of options: these are no part of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torchweld.core.dtypes import DType
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Const, Instr, Load, Store
from torchweld.ir.substitute import rename_buffers

T = TypeVar("T")


Written = tuple[str, DType]  # a constant: tells 0 from -0.0, and NaN equals itself
Place = tuple[int, ...]  # in a buffer, a number for each dimension


@dataclass(frozen=True, slots=True)
class Signature:
    """`number` stands for everything but names, constants and places; `buffers` and `constants` are
    those, in order of first use. `guarded`: a read has a condition, and so a number to read
    elsewhere. `places`: of each buffer that is only read, where the first read begins along
    dimensions in which all reads go the same way (`x[:, t]`, `x[i + t]`), and 0 along others; None
    if it is written."""

    number: int
    buffers: tuple[str, ...]
    constants: tuple[Written, ...]
    guarded: bool
    places: tuple[Place | None, ...]
    values: tuple[Const, ...] = field(compare=False)  # of the constants


@dataclass(slots=True)
class Signatures:
    """Numbers given out so far. `any_places`: Comps may be equal that read other elements of their
    buffers; else they have no places but zeros."""

    buffers: Mapping[str, Buffer]
    any_places: bool = False
    _numbers: dict[tuple, int] = field(default_factory=dict)
    _known: dict[int, tuple[Comp, Signature]] = field(default_factory=dict)

    def of(self, comp: Comp) -> Signature:
        known = self._known.get(id(comp))
        if known is None:
            known = self._known[id(comp)] = (comp, self._compute(comp))
        return known[1]

    def _compute(self, comp: Comp) -> Signature:
        order: dict[str, int] = {}
        constants: dict[Written, tuple[int, Const]] = {}  # in order
        places = _places(comp) if self.any_places else {}
        body = tuple(_instr_key(i, order, constants, places) for i in comp.body)
        stores = tuple(_store_key(s, order) for s in comp.stores)
        facts = tuple(self._facts(name) for name in order)
        number = self._numbers.setdefault((comp.axes, body, stores, facts), len(self._numbers))
        guarded = any(isinstance(i, Load) and i.guard is not None for i in comp.body)
        values = tuple(const for _, const in constants.values())
        written = {*comp.writes, *(s.init for s in comp.stores)}
        starts = tuple(
            None if n in written else places.get(n, (0,) * len(self.buffers[n].shape))
            for n in order
        )
        return Signature(number, tuple(order), tuple(constants), guarded, starts, values)

    def _facts(self, name: str) -> tuple:
        b = self.buffers[name]
        return b.shape, b.dtype, b.strides, b.device, b.slack


@dataclass(frozen=True, slots=True)
class Found:
    """An answer in the names and constants of the first Comps that it was asked of (`theirs`), and
    those of the Comps that it is asked of now."""

    answer: object
    theirs: tuple[Signature, ...]
    ours: tuple[Signature, ...]

    @property
    def names(self) -> dict[str, str]:
        """Their buffers -> ours."""
        pairs = zip(self.theirs, self.ours)
        return {a: b for their, our in pairs for a, b in zip(their.buffers, our.buffers)}

    def here(self, comp: Comp) -> Comp:
        """A Comp of the answer, on the buffers, with the constants and at the places of the Comps
        asked about. Errors: CannotMove if the answer computes where it reads."""
        if self.theirs == self.ours:
            return comp
        pairs = zip(self.theirs, self.ours)
        constants = {
            their: value
            for t, o in pairs
            for their, our, value in zip(t.constants, o.constants, o.values)
            if their != our
        }
        return _with_constants(rename_buffers(_moved(comp, self.moves), self.names), constants)

    @property
    def moves(self) -> dict[str, Place]:
        """Their buffers -> how much further ours are read."""
        found = {}
        for their, our in zip(self.theirs, self.ours):
            for name, a, b in zip(their.buffers, their.places, our.places):
                if a != b and a is not None and b is not None:
                    found[name] = tuple(q - p for p, q in zip(a, b))
        return found


class Memo:
    """Answers about Comps on the buffers of one graph. `loose`: the questions are about more than
    constants and places. Comps that differ in the values of constants alone are equal, as long as
    those of one are the same where those of the other are; so are those that read buffers which
    none of them writes elsewhere, all equally far (the steps of a loop over `x[:, t]`)."""

    def __init__(self, buffers: Mapping[str, Buffer], loose: bool = False) -> None:
        self.signatures, self._loose = Signatures(buffers, any_places=loose), loose
        self._found: dict[tuple, tuple[object, tuple[Signature, ...]]] = {}
        self._of_one: dict[tuple[str, int], object] = {}  # Comps that `signatures` keeps alive

    def of(
        self, question: str, comps: tuple[Comp, ...], work: Callable[[], T], *facts: Hashable
    ) -> T:
        """What `work()` gives for the first Comps like these. The answer has no names in it: of one
        Comp, asked of again and again, it is known by the object."""
        if facts or len(comps) != 1:
            return self.named(question, comps, work, *facts).answer
        key = question, id(comps[0])
        if key not in self._of_one:
            self._of_one[key] = self.named(question, comps, work).answer
        return self._of_one[key]

    def named(
        self, question: str, comps: tuple[Comp, ...], work: Callable[[], T], *facts: Hashable
    ) -> Found:
        """The same for an answer that names the Comps' buffers."""
        signed = tuple(self.signatures.of(c) for c in comps)
        key = question, tuple(s.number for s in signed), self._shared(signed), facts
        if key not in self._found:
            self._found[key] = work(), signed
        return Found(*self._found[key], signed)

    def _shared(self, signed: tuple[Signature, ...]) -> tuple:
        """What the Comps have in common, and their constants as far as they matter. A merge may
        write the number that a guarded read gives elsewhere: it may be one of the constants."""
        several = len(signed) > 1
        names = _pattern(n for s in signed for n in s.buffers) if several else ()
        constants = tuple(c for s in signed for c in s.constants)
        loose = self._loose and not any(s.guarded for s in signed)
        places = _distances(signed) if several and self._loose else ()
        return names, _pattern(constants) if loose else constants, places


def _pattern(things: Iterable[Hashable]) -> tuple[int, ...]:
    """Which of them are the same: for each, the place of the first like it."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(thing, k) for k, thing in enumerate(things))


def _distances(signed: Iterable[Signature]) -> tuple:
    """Of each buffer that several Comps have: how far apart they read it, or where, if one writes
    it."""
    places: dict[str, list[Place | None]] = {}
    for s in signed:
        for name, place in zip(s.buffers, s.places):
            places.setdefault(name, []).append(place)
    return tuple(_apart(found) for found in places.values() if len(found) > 1)


def _apart(places: list[Place | None]) -> tuple:
    first = places[0]
    if first is None or None in places:
        return tuple(places)
    return tuple(tuple(q - p for p, q in zip(first, place)) for place in places if place)


def _places(comp: Comp) -> dict[str, Place]:
    """Of buffers that are only read: see Signature."""
    loads: dict[str, list[Load]] = {}
    for load in (i for i in comp.body if isinstance(i, Load)):
        loads.setdefault(load.buffer, []).append(load)
    written = {*comp.writes, *(s.init for s in comp.stores)}
    return {
        name: tuple(map(_place, zip(*(i.index for i in same))))
        for name, same in loads.items()
        if name not in written
    }


def _place(entries: tuple) -> int:
    """Of all that a dimension is read by, if they differ in where they begin alone."""
    plain = all(isinstance(e, Affine) and isinstance(e.const, int) for e in entries)
    return entries[0].const if plain and len({e.terms for e in entries}) == 1 else 0


def _from(load: Load, place: Place) -> tuple:
    """The index of `load`, counted from `place`."""
    if not any(place):
        return load.index
    return tuple(e + -p if p else e for e, p in zip(load.index, place))


class CannotMove(Exception):
    """A Comp reads a buffer at computed places, of which where they begin is a part."""


def _moved(comp: Comp, moves: Mapping[str, Place]) -> Comp:
    """`comp` with those buffers read so much further."""
    if not moves:
        return comp

    def moved(instr: Instr) -> Instr:
        if not isinstance(instr, Load) or instr.buffer not in moves:
            return instr
        move = moves[instr.buffer]
        if any(p and not isinstance(e, Affine) for e, p in zip(instr.index, move)):
            raise CannotMove(instr.buffer)
        return replace(instr, index=_from(instr, tuple(-p for p in move)))

    return replace(comp, body=tuple(map(moved, comp.body)))


def _with_constants(comp: Comp, constants: Mapping[Written, Const]) -> Comp:
    """`comp` with other constants in the place of those written so."""
    if not constants:
        return comp

    def changed(instr: Instr) -> Instr:
        return constants.get(_written(instr), instr) if isinstance(instr, Const) else instr

    return replace(comp, body=tuple(map(changed, comp.body)))


def _written(const: Const) -> Written:
    return repr(const.value), const.dtype


def _number(name: str, order: dict[str, int]) -> int:
    return order.setdefault(name, len(order))


def _instr_key(
    instr: Instr, buffers: dict[str, int], constants: dict[Written, tuple[int, Const]],
    places: Mapping[str, Place],
) -> tuple:  # fmt: skip
    if isinstance(instr, Load):
        number = _number(instr.buffer, buffers)
        index = _from(instr, places.get(instr.buffer, ()))
        return number, index, instr.dtype, instr.guard, repr(instr.fill), instr.exact
    if isinstance(instr, Const):
        number, _ = constants.setdefault(_written(instr), (len(constants), instr))
        return Const, instr.dtype, number
    return type(instr), instr


def _store_key(store: Store, order: dict[str, int]) -> tuple:
    init = _number(store.init, order) if isinstance(store.init, str) else repr(store.init)
    number = _number(store.buffer, order)
    return number, store.index, store.value, store.combine, init, type(store.init), store.guard

"""Choices between two ways: what both compute is computed once, and what no way needs is harmless.

    where p (div a b) (div c d)         ->  div (where p a c) (where p b d)
    where p (where p a b) c             ->  where p a c
    load x if p else 0, only needed     ->  load x if p else 1
    where p

The second half of a shift (torch.roll) or of slices that are put together reads zeros where the
first half is chosen. A division of zeros takes ten times as long on a GPU as one of ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Instr,
    Load,
    Op,
    Ref,
    Value,
    operands,
    store_operands,
    value_axes,
)
from torchweld.ir.scalar import TABLE
from torchweld.ir.simplify import drop_dead
from torchweld.ir.substitute import move_store, with_operands

Literal = tuple[Value, bool]  # a b1 value, and whether it is true
Known = frozenset[Literal]
_DEEPEST = 50  # of what is looked at below a choice: a Comp may be a chain of thousands


def settled(comp: Comp) -> Comp:
    """`comp` with these rules applied; the same bits wherever something is stored."""
    if not any(_chooses(i) for i in comp.body):
        return comp
    return drop_dead(_without_fills(drop_dead(_merged(comp))))


def _chooses(instr: Instr) -> bool:
    return isinstance(instr, Op) and instr.name == "where"


# -- two ways as one --


def _merged(comp: Comp) -> Comp:
    work = _Merging(comp)
    for instr in comp.body:
        moved = with_operands(instr, work.images.__getitem__)
        work.images.append(work.choice(*moved.args, 0) if _chooses(moved) else work.emit(moved))
    stores = tuple(move_store(s, work.images.__getitem__, {}) for s in comp.stores)
    return replace(comp, body=work.builder.body, stores=stores)


class _Merging:
    """`images`: what stands for each value of the Comp."""

    def __init__(self, comp: Comp) -> None:
        self.builder, self.images = BodyBuilder(), []
        self._saved: dict[tuple[Value, Value], float] = {}
        self._choices: dict[tuple[Value, Value, Value], Value] = {}

    def emit(self, instr: Instr) -> Value:
        return self.builder.emit(instr)

    def choice(self, condition: Value, yes: Value, no: Value, depth: int) -> Value:
        """The value of `where condition yes no`."""
        key = condition, yes, no
        if key not in self._choices:
            self._choices[key] = self._chosen(condition, yes, no, depth)
        return self._choices[key]

    def _chosen(self, condition: Value, yes: Value, no: Value, depth: int) -> Value:
        yes = self._within(yes, literal(self.builder, condition, True))
        no = self._within(no, literal(self.builder, condition, False))
        if yes == no:
            return yes
        if self._saves(yes, no, depth) <= 0:
            return self.emit(Op("where", (condition, yes, no), self.builder[yes].dtype))
        one, other = self.builder[yes], self.builder[no]
        pairs = zip(operands(one), operands(other))
        args = [self.choice(condition, a, b, depth + 1) for a, b in pairs]
        chosen = iter(args)
        return self.emit(with_operands(one, lambda _: next(chosen)))

    def _within(self, value: Value, known: Literal) -> Value:
        """`value` where that is known."""
        while _chooses(self.builder[value]):
            condition, yes, no = self.builder[value].args
            if literal(self.builder, condition, True) == known:
                value = yes
            elif literal(self.builder, condition, False) == known:
                value = no
            else:
                break
        return value

    def _saves(self, a: Value, b: Value, depth: int) -> float:
        """What is saved by computing `a` and `b` as one, less the choices between arguments."""
        if a == b:
            return 0.0
        if (a, b) not in self._saved:
            one, other = self.builder[a], self.builder[b]
            if depth > _DEEPEST or not self._alike(one, other):
                self._saved[a, b] = -1.0
            else:
                pairs = dict.fromkeys(zip(operands(one), operands(other)))
                below = sum(self._saves(x, y, depth + 1) for x, y in pairs)
                self._saved[a, b] = max(-1.0, _cost(one) + below)
        return self._saved[a, b]

    def _alike(self, one: Instr, other: Instr) -> bool:
        if not isinstance(one, (Op, Cast)) or type(one) is not type(other):
            return False
        same = replace(one, **_operands_of(other)) == other
        pairs = zip(operands(one), operands(other))
        return same and all(self.builder[x].dtype == self.builder[y].dtype for x, y in pairs)


def _operands_of(instr: Op | Cast) -> dict:
    return {"args": instr.args} if isinstance(instr, Op) else {"arg": instr.arg}


def _cost(instr: Instr) -> float:
    return TABLE[instr.name].cost if isinstance(instr, Op) else 1.0


def literal(body, value: Value, true: bool) -> Literal:
    """`value` is so, as what is told of what it negates."""
    while isinstance(body[value], Op) and body[value].name == "logical_not":
        value, true = body[value].args[0], not true
    return value, true


# -- what nothing needs --


def _without_fills(comp: Comp) -> Comp:
    needed = needed_where(comp)
    builder, images = BodyBuilder(), []
    for value, instr in enumerate(comp.body):
        moved = with_operands(instr, images.__getitem__)
        if _chooses(instr) and (told := _told(comp.body, instr.args[0], needed[value])) is not None:
            images.append(moved.args[1] if told else moved.args[2])
            continue
        if isinstance(instr, Load) and _may_be_one(comp.body, instr, needed[value]):
            moved = replace(moved, fill=1.0)
        images.append(builder.emit(moved))
    stores = tuple(move_store(s, images.__getitem__, {}) for s in comp.stores)
    return replace(comp, body=builder.body, stores=stores)


def _may_be_one(body: Sequence[Instr], load: Load, known: Known) -> bool:
    guarded = load.guard is not None and load.dtype.is_float
    return guarded and _told(body, load.guard, known) is True


def needed_where(comp: Comp) -> list[Known]:
    """For each value what is true wherever something that is stored depends on it, as far as it
    varies along no other axes than the value."""
    axes = value_axes(comp.body)
    found = _Needs(comp, axes, [None] * len(comp.body))
    for store in comp.stores:
        for value in store_operands(store):
            found.use(value, frozenset())
    for value in range(len(comp.body) - 1, -1, -1):
        found.visit(comp.body[value], found.known[value] or frozenset())
    return [k or frozenset() for k in found.known]


@dataclass(frozen=True, slots=True)
class _Needs:
    comp: Comp
    axes: Sequence[frozenset[str]]
    known: list[Known | None]  # None: no use has been seen

    def use(self, value: Value, known: Known) -> None:
        own = self.axes[value]
        known = frozenset(k for k in known if self.axes[k[0]] <= own)
        before = self.known[value]
        self.known[value] = known if before is None else before & known

    def visit(self, instr: Instr, known: Known) -> None:
        """The uses of an instruction that is needed where `known` is true."""
        body = self.comp.body
        if _chooses(instr):
            condition, yes, no = instr.args
            self.use(condition, known)
            self.use(yes, known | _implied(body, condition, True))
            self.use(no, known | _implied(body, condition, False))
        elif isinstance(instr, Load):
            guard = instr.guard
            if guard is not None:
                self.use(guard, known)
                known = known | _implied(body, guard, True)
            for entry in instr.index:
                if isinstance(entry, Ref):
                    self.use(entry.value, known)
        else:
            pointwise = isinstance(instr, (Op, Cast))
            for value in operands(instr):
                self.use(value, known if pointwise else frozenset())


def _implied(body: Sequence[Instr], value: Value, true: bool) -> Known:
    """What is true where `value` is so."""
    found: set[Literal] = set()
    todo = [(value, true)]
    while todo:
        value, true = told = literal(body, *todo.pop())
        instr = body[value]
        is_all = isinstance(instr, Op) and instr.name == ("bit_and" if true else "bit_or")
        if is_all and told not in found:
            todo += [(a, true) for a in instr.args]
        found.add(told)
    return frozenset(found)


def _told(body: Sequence[Instr], value: Value, known: Known, depth: int = 0) -> bool | None:
    """Whether `value` is true where `known` is, as far as that is not too long to find out."""
    value, true = literal(body, value, True)
    for told in (True, False):
        if (value, told) in known:
            return told == true
    instr = body[value]
    if not isinstance(instr, Op) or instr.name not in ("bit_and", "bit_or"):
        return None
    if depth == _DEEPEST:
        return None
    parts = [_told(body, a, known, depth + 1) for a in instr.args]
    decisive = instr.name == "bit_or"  # one that is true decides
    found = decisive if decisive in parts else None if None in parts else not decisive
    return None if found is None else found == true

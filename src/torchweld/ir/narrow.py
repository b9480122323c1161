"""Arithmetic on indices in 32 bits, where no value needs more: on a GPU, 64 bits take two to ten
times as long.

    i: 0 to 223;  cast (i * 0.5 : f32) : i64   ->   cast (i * 0.5 : f32) : i32      lies in 0 to 111
                  where (k < 0) (k + 112) k    ->   k                               for such a k
    reduce.argmax[i] %0 i : (f32, i64)         ->   cast (reduce.argmax[i] %0 i : (f32, i32)) : i64
    scan.max[i] (where p i 0) : i64            ->   cast (scan.max[i] (where p i 0) : i32) : i64
    reduce.sum[i] (cast p : i64) : i64         ->   cast (reduce.sum[i] (cast p : i32) : i32) : i64
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.core import dtypes
from torchweld.ir.build import BodyBuilder
from torchweld.ir.interval import Bounds, bounds, type_bounds
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Const,
    Index,
    Instr,
    Load,
    Op,
    Pick,
    Reduce,
    Scan,
    Store,
    Value,
)
from torchweld.ir.scalar import COMPARISONS
from torchweld.ir.simplify import simplify
from torchweld.ir.substitute import move_store, with_operands

_SMALL = type_bounds(dtypes.i32)
_OPS = frozenset((
    "abs", "neg", "add", "sub", "mul", "minimum", "maximum", "where", "floor_div", "trunc_div",
    "remainder", "fmod",
))  # fmt: skip
_GATHERED = frozenset(("sum", "max", "min"))
_ROUNDED_DOWN = {"floor_div": "trunc_div", "remainder": "fmod"}  # the same for what is not negative


def narrowed(comp: Comp) -> Comp:
    """`comp` with 64-bit values whose bounds tell that 32 bits hold them in 32 bits, and without
    what the bounds decide. No index of a buffer may need 64 bits."""
    if not any(i.dtype == dtypes.i64 for i in comp.body):
        return comp
    work = _Narrowing(comp)
    for value, instr in enumerate(comp.body):
        work.images.append(work.emit(value, instr))
    stores = tuple(work.store(s) for s in comp.stores)
    return simplify(replace(comp, body=work.builder.body, stores=stores))


class _Narrowing:
    """`images`: for each value of the Comp the one that stands for it, which may be narrower."""

    def __init__(self, comp: Comp) -> None:
        self.comp, self.builder = comp, BodyBuilder()
        self.images: list[Value] = []
        self.known = bounds(comp, lambda buffer: None)

    def emit(self, value: Value, instr: Instr) -> Value:
        decided = self._decided(instr, self.known[value])
        if decided is not None:
            return decided
        if instr.dtype == dtypes.i64 and _fits(self.known[value]):
            found = self._narrow(instr)
            if found is not None:
                return self.builder.emit(found)
        if isinstance(instr, Reduce) and instr.monoid.startswith("arg"):
            return self.builder.emit(replace(instr, args=self._placed(instr)))
        if self._compares_small(instr):
            return self.builder.emit(replace(instr, args=tuple(map(self.small, instr.args))))
        if isinstance(instr, Load):
            return self.builder.emit(with_operands(instr, self.images.__getitem__))
        return self.builder.emit(with_operands(instr, self.wide))

    def store(self, store: Store) -> Store:
        """Places may be narrow, what is stored is not."""
        moved = move_store(store, self.images.__getitem__, {})
        return replace(moved, value=self.wide(store.value))

    def wide(self, value: Value) -> Value:
        """In the type that it has in the Comp."""
        return self.builder.cast(self.images[value], self.comp.body[value].dtype)

    def small(self, value: Value) -> Value:
        """In 32 bits if it is an integer of 64, which fits."""
        of_64 = self.comp.body[value].dtype == dtypes.i64
        return self.builder.cast(self.images[value], dtypes.i32) if of_64 else self.images[value]

    def _decided(self, instr: Instr, known: Bounds) -> Value | None:
        """What the bounds tell without computing."""
        if not isinstance(instr, Op) or len(instr.args) != 2:
            return None
        if instr.dtype == dtypes.b1 and known[0] == known[1]:
            return self.builder.const(bool(known[0]), dtypes.b1)
        (low, high), (least, most) = (self.known[a] for a in instr.args)
        left, right = (self.images[a] for a in instr.args)
        if not self._integers(instr):
            return None
        if instr.name in ("minimum", "maximum") and (high <= least or low >= most):
            return left if (high <= least) == (instr.name == "minimum") else right
        within = instr.name in ("remainder", "fmod") and low >= 0 and high < least
        return left if within else None

    def _placed(self, reduce: Reduce) -> tuple[Value, Value]:
        """The arguments of an argmax. What is found is a position that was given."""
        value, position = reduce.args
        fits = _fits(self.known[position])
        return self.wide(value), self.small(position) if fits else self.wide(position)

    def _narrow(self, instr: Instr) -> Instr | None:
        if isinstance(instr, (Const, Index)):
            return replace(instr, dtype=dtypes.i32)
        if isinstance(instr, Pick):
            return Pick(self.images[instr.arg], instr.item, dtypes.i32) if instr.item else None
        if isinstance(instr, Scan):
            return replace(instr, arg=self.small(instr.arg), dtype=dtypes.i32)
        if isinstance(instr, Reduce):
            return self._gathered(instr)
        if isinstance(instr, Cast):
            return Cast(self.images[instr.arg], dtypes.i32, instr.must_round)
        if not isinstance(instr, Op) or instr.name not in _OPS or not self._all_fit(instr):
            return None
        if instr.name in _ROUNDED_DOWN:
            return self._divided(instr)
        return Op(instr.name, tuple(map(self.small, instr.args)), dtypes.i32)

    def _gathered(self, reduce: Reduce) -> Reduce | None:
        """A count, or the largest of some."""
        if reduce.monoid not in _GATHERED or not _fits(self.known[reduce.args[0]]):
            return None
        return replace(reduce, args=(self.small(reduce.args[0]),), dtype=dtypes.i32)

    def _divided(self, op: Op) -> Op:
        """A quotient that is rounded down, or its remainder, in the cheapest way there is."""
        (low, _), (least, most) = (self.known[a] for a in op.args)
        left, right = map(self.small, op.args)
        if least == most > 0 and least & (least - 1) == 0:
            shifts = op.name == "floor_div"
            by = self.builder.const(least.bit_length() - 1 if shifts else least - 1, dtypes.i32)
            return Op("shr" if shifts else "bit_and", (left, by), dtypes.i32)
        if low >= 0 and least > 0:
            return Op(_ROUNDED_DOWN[op.name], (left, right), dtypes.i32)
        return Op(op.name, (left, right), dtypes.i32)

    def _compares_small(self, instr: Instr) -> bool:
        compares = isinstance(instr, Op) and instr.name in COMPARISONS and self._integers(instr)
        return compares and self._all_fit(instr)

    def _integers(self, op: Op) -> bool:
        return all(self.comp.body[a].dtype == dtypes.i64 for a in op.args)

    def _all_fit(self, op: Op) -> bool:
        of_64 = (a for a in op.args if self.comp.body[a].dtype == dtypes.i64)
        return all(_fits(self.known[a]) for a in of_64)


def _fits(known: Bounds) -> bool:
    return _SMALL[0] <= known[0] and known[1] <= _SMALL[1]

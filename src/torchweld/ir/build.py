"""Writing bodies: a builder that gives equal instructions one value (common subexpressions never
appear twice)."""

from __future__ import annotations

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.affine import Affine, axis
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Cast,
    Comp,
    Const,
    Index,
    IndexMap,
    Instr,
    Load,
    Op,
    Origin,
    Pick,
    Reduce,
    Scan,
    Store,
    Value,
    instr_axes,
)
from torchweld.ir.scalar import TABLE


class BodyBuilder:
    """Appends instructions; `body` is the finished tuple. Methods return the value's number."""

    def __init__(self) -> None:
        self._instrs: list[Instr] = []
        self._known: dict[tuple, Value] = {}
        self._axes: list[frozenset[str]] = []

    @property
    def body(self) -> tuple[Instr, ...]:
        return tuple(self._instrs)

    def __getitem__(self, value: Value) -> Instr:
        return self._instrs[value]

    def axes(self, value: Value) -> frozenset[str]:
        """The axes that a value varies along."""
        for instr in self._instrs[len(self._axes) :]:
            self._axes.append(instr_axes(instr, self._axes))
        return self._axes[value]

    def emit(self, instr: Instr) -> Value:
        value = self._known.setdefault(_key(instr), len(self._instrs))
        if value == len(self._instrs):
            self._instrs.append(instr)
        return value

    def const(self, value: float | int | bool, dtype: DType) -> Value:
        return self.emit(Const(value, dtype))

    def index(self, index: Affine) -> Value:
        return self.emit(Index(index, dtypes.i64))

    def load(
        self,
        buffer: str,
        index: IndexMap,
        dtype: DType,
        guard: Value | None = None,
        fill=0,
        exact=False,
    ) -> Value:
        return self.emit(Load(buffer, index, dtype, guard, 0 if guard is None else fill, exact))

    def op(self, name: str, *args: Value) -> Value:
        """An operation of the scalar table whose dtype follows from its arguments (all but `free`
        ones)."""
        result = TABLE[name].result
        if result == "free":
            raise ValueError(f"{name} has no dtype of its own: use emit(Op(...))")
        dtype = dtypes.b1 if result == "bool" else self._instrs[args[-1]].dtype
        return self.emit(Op(name, args, dtype))

    def cast(self, value: Value, dtype: DType, must_round: bool = False) -> Value:
        """`value` in `dtype`; the value itself where it has that type already."""
        if self._instrs[value].dtype == dtype:
            return value
        return self.emit(Cast(value, dtype, must_round))

    def widen(self, value: Value) -> Value:
        """`value` in the type that arithmetic on it is done in."""
        return self.cast(value, dtypes.compute(self._instrs[value].dtype))

    def reduce(self, monoid: str, args: tuple[Value, ...], axes: tuple[str, ...]) -> Value:
        return self.emit(Reduce(monoid, args, axes, self._instrs[args[0]].dtype))

    def scan(self, monoid: str, arg: Value, axis: str) -> Value:
        return self.emit(Scan(monoid, arg, axis, self._instrs[arg].dtype))

    def both(self, one: Value | None, other: Value | None) -> Value | None:
        """Where two guards are true; None: everywhere."""
        if one is None or other is None:
            return other if one is None else one
        return self.op("bit_and", one, other)

    def pick(self, value: Value, item: int) -> Value:
        """Component `item` of a tuple reduction; the position of an argmax has its own type."""
        reduce = self._instrs[value]
        position = isinstance(reduce, Reduce) and reduce.monoid.startswith("arg") and item == 1
        dtype = self._instrs[reduce.args[1]].dtype if position else reduce.dtype
        return self.emit(Pick(value, item, dtype))


def _key(instr: Instr) -> tuple:
    """Equality that tells 0 from False, 0.0 from -0.0 and finds NaN equal to itself."""
    if isinstance(instr, Const):
        return (Const, repr(instr.value), instr.dtype)
    if isinstance(instr, Load):
        return (Load, instr.buffer, instr.index, instr.guard, repr(instr.fill), instr.exact)
    return (type(instr), instr)


def copy_comp(name: str, source: Buffer, target: Buffer, origins: tuple[Origin, ...]) -> Comp:
    """target[...] = source[...] in the target's type; each element of `source`, whose shape the
    target's contains."""
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(source.shape))
    place, body = tuple(axis(a.name) for a in axes), BodyBuilder()
    value = body.cast(body.load(source.name, place, source.dtype), target.dtype)
    return Comp(name, axes, body.body, (Store(target.name, place, value),), origins)

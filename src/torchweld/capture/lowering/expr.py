"""Scalar expressions with Python's operators over a body builder: `x * (x + 1).sigmoid()` appends
the instructions."""

from __future__ import annotations

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Op
from torchweld.ir.scalar import BITS
from torchweld.ir.size import Poly

# Of truth values, extremes are these.
_OF_TRUTH = {"minimum": "bit_and", "fmin": "bit_and", "maximum": "bit_or", "fmax": "bit_or"}


class Expr:
    """A value of a body. Numbers and sizes met by an operator become constants of its dtype; two
    values must have one dtype."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: BodyBuilder, value: int) -> None:
        self.builder, self.value = builder, value

    @property
    def dtype(self) -> DType:
        return self.builder[self.value].dtype

    def lift(self, other) -> Expr:
        return other if isinstance(other, Expr) else number(self.builder, other, self.dtype)

    def op(self, name: str, *others) -> Expr:
        if self.dtype == dtypes.b1:
            name = _OF_TRUTH.get(name, name)
        args = [self.value] + [self.lift(o).value for o in others]
        return Expr(self.builder, self.builder.op(name, *args))

    def to(self, dtype: DType, must_round: bool = False) -> Expr:
        return Expr(self.builder, self.builder.cast(self.value, dtype, must_round))

    def bits(self) -> Expr:
        """Of a float: an integer of its size."""
        name = f"{self.dtype}_bits"
        return Expr(self.builder, self.builder.emit(Op(name, (self.value,), BITS[name][1])))

    def of_bits(self, dtype: DType) -> Expr:
        """The float of `dtype` that has these bits."""
        return Expr(self.builder, self.builder.emit(Op(f"{dtype}_of", (self.value,), dtype)))

    def widen(self) -> Expr:
        return Expr(self.builder, self.builder.widen(self.value))

    def __add__(self, other):
        return self.op("add", other)

    def __radd__(self, other):
        return self.lift(other).op("add", self)

    def __sub__(self, other):
        return self.op("sub", other)

    def __rsub__(self, other):
        return self.lift(other).op("sub", self)

    def __mul__(self, other):
        return self.op("mul", other)

    def __rmul__(self, other):
        return self.lift(other).op("mul", self)

    def __truediv__(self, other):
        return self.op("div", other)

    def __rtruediv__(self, other):
        return self.lift(other).op("div", self)

    def __neg__(self):
        return self.op("neg")

    def __lt__(self, other):
        return self.op("lt", other)

    def __le__(self, other):
        return self.op("le", other)

    def __gt__(self, other):
        return self.op("gt", other)

    def __ge__(self, other):
        return self.op("ge", other)

    def __and__(self, other):
        return self.op("bit_and", other)

    def __or__(self, other):
        return self.op("bit_or", other)

    def __getattr__(self, name: str):
        """x.exp(), x.maximum(y), x.eq(0), ...: any row of the scalar table."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *others: self.op(name, *others)


def number(builder: BodyBuilder, value, dtype: DType) -> Expr:
    """A Python number, or a size that may hold symbols, as a constant of `dtype`."""
    if isinstance(value, Poly):
        return Expr(builder, builder.cast(builder.index(Affine((), value)), dtype))
    return Expr(builder, builder.const(as_dtype(value, dtype), dtype))


def as_dtype(value: float | int | bool, dtype: DType) -> float | int | bool:
    """A Python number as one that the IR has for `dtype`: a float, an int or a bool."""
    kind = float if dtype.is_float else bool if dtype == dtypes.b1 else int
    return kind(value)


def where(condition: Expr, yes, no) -> Expr:
    """At least one of `yes` and `no` is an Expr."""
    like = yes if isinstance(yes, Expr) else no
    return condition.op("where", like.lift(yes), like.lift(no))

"""Exact simplification of bodies: the same bits with fewer instructions.

A rule is a function of (scope, instruction) that returns the value that stands for it, or None.
`RULES` holds them by kind of instruction; the plain identities are data. None of them changes what
NaN, infinities or -0.0 give.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from torchweld.core import dtypes
from torchweld.core.dtypes import DType, to_torch
from torchweld.core.torch_private import without_modes
from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.monoid import TABLE as MONOIDS
from torchweld.ir.monoid import identity_of
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Const,
    Index,
    IndexMap,
    Instr,
    Load,
    Op,
    Pick,
    Reduce,
    Ref,
    Store,
    Value,
    map_axes,
    operands,
    reduced_axes,
    store_operands,
    value_axes,
)
from torchweld.ir.scalar import COMPARISONS, TABLE
from torchweld.ir.size import Poly, Size
from torchweld.ir.substitute import move_store, with_operands

_EXTREMES = {"argmax": "max", "argmin": "min"}


def simplify(comp: Comp) -> Comp:
    """`comp` with every rule applied, and without the instructions that nothing uses."""
    scope = Scope(BodyBuilder(), comp.extents)
    values: list[Value] = []
    for instr in comp.body:
        values.append(scope.emit(with_operands(instr, values.__getitem__)))
    stores = tuple(
        _simplify_store(scope, move_store(s, values.__getitem__, {})) for s in comp.stores
    )
    used = drop_dead(replace(comp, body=scope.builder.body, stores=stores))
    return _without_empty_axes(drop_dead(_without_places(used)), reduced_axes(comp))


def _without_empty_axes(comp: Comp, reduced: frozenset[str]) -> Comp:
    """`comp` without the empty axes of sums that are numbers now: where nothing goes along an empty
    axis, nothing would be stored either."""
    empty = {a.name for a in comp.axes if a.extent == 0} & reduced
    if not empty:
        return comp
    used = reduced_axes(comp).union(
        *value_axes(comp.body), *(map_axes(s.index) for s in comp.stores)
    )
    gone = empty - used
    return replace(comp, axes=tuple(a for a in comp.axes if a.name not in gone))


def _without_places(comp: Comp) -> Comp:
    """%1 = reduce.argmax %0 %at;  %2 = pick.0 %1   ->   %2 = reduce.max %0, if nothing else is
    picked. Of zeros of both signs, the result may be another than the first."""
    placed = {i.arg for i in comp.body if isinstance(i, Pick) and i.item == 1}
    builder, values = BodyBuilder(), []
    for value, instr in enumerate(comp.body):
        moved = with_operands(instr, values.__getitem__)
        if isinstance(instr, Reduce) and instr.monoid in _EXTREMES and value not in placed:
            moved = replace(moved, monoid=_EXTREMES[instr.monoid], args=moved.args[:1])
        is_it = isinstance(moved, Pick) and builder[moved.arg].monoid in _EXTREMES.values()
        values.append(moved.arg if is_it else builder.emit(moved))
    stores = tuple(move_store(s, values.__getitem__, {}) for s in comp.stores)
    return replace(comp, body=builder.body, stores=stores)


def drop_dead(comp: Comp) -> Comp:
    """`comp` without the instructions that no store needs."""
    needed = {v for s in comp.stores for v in store_operands(s)}
    for value in range(len(comp.body) - 1, -1, -1):
        if value in needed:
            needed.update(operands(comp.body[value]))
    if len(needed) == len(comp.body):
        return comp
    number = {value: k for k, value in enumerate(sorted(needed))}
    body = tuple(with_operands(comp.body[v], number.__getitem__) for v in sorted(needed))
    stores = tuple(move_store(s, number.__getitem__, {}) for s in comp.stores)
    return replace(comp, body=body, stores=stores)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rule sees: the body so far, and the extents of the axes."""

    builder: BodyBuilder
    extents: Mapping[str, Size]

    def __getitem__(self, value: Value) -> Instr:
        return self.builder[value]

    def emit(self, instr: Instr) -> Value:
        """The value of `instr`, simplified."""
        for rule in RULES.get(type(instr), ()):
            value = rule(self, instr)
            if value is not None:
                return value
        return self.builder.emit(instr)

    def constant(self, value: Value) -> float | int | bool | None:
        instr = self[value]
        return instr.value if isinstance(instr, Const) else None

    def index(self, value: Value) -> Affine | None:
        """The affine map that a 64-bit integer is, if it is one."""
        instr = self[value]
        if isinstance(instr, Index):
            return instr.map
        known = isinstance(instr, Const) and instr.dtype == dtypes.i64
        return affine.constant(int(instr.value)) if known else None


# -- identities as data --


@dataclass(frozen=True, slots=True)
class Identity:
    """op(x, constant) -> x or the constant, for x of one of `kinds` (f, i, b)."""

    op: str
    kinds: str
    constant: float | int | bool
    gives: str  # "x" or "constant"


IDENTITIES = (
    Identity("mul", "fi", 1, "x"),
    Identity("mul", "i", 0, "constant"),
    Identity("add", "i", 0, "x"),
    Identity("add", "f", -0.0, "x"),  # x + 0.0 turns -0.0 into 0.0
    Identity("sub", "fi", 0, "x"),
    Identity("div", "f", 1, "x"),
    Identity("floor_div", "i", 1, "x"),
    Identity("trunc_div", "i", 1, "x"),
    Identity("pow", "fi", 1, "x"),
    Identity("bit_and", "b", True, "x"),
    Identity("bit_and", "b", False, "constant"),
    Identity("bit_or", "b", False, "x"),
    Identity("bit_or", "b", True, "constant"),
)
IDEMPOTENT = frozenset({"minimum", "maximum", "fmin", "fmax", "bit_and", "bit_or"})  # op(x, x) -> x
INVOLUTIONS = frozenset({"neg", "logical_not", "bit_not"})  # op(op(x)) -> x
_KIND = {"float": "f", "int": "i", "uint": "i", "bool": "b"}
_BY_OP = {name: [i for i in IDENTITIES if i.op == name] for name in {i.op for i in IDENTITIES}}


# -- rules for Op --


def _order_arguments(scope: Scope, op: Op) -> Value | None:
    """Commutative arguments in order of computation, a constant last: add 1 x -> add x 1"""
    if not TABLE[op.name].commutative:
        return None
    ordered = tuple(sorted(op.args, key=lambda v: (isinstance(scope[v], Const), v)))
    return None if ordered == op.args else scope.emit(replace(op, args=ordered))


def _fold_constants(scope: Scope, op: Op) -> Value | None:
    """add 2 3 -> 5, in the dtype that it has"""
    args = [scope[v] for v in op.args]
    if op.name == "philox" or not all(isinstance(a, Const) for a in args):
        return None
    if op.name in _COMPARED and args[0].dtype.is_integral:
        return scope.builder.const(_COMPARED[op.name](*(a.value for a in args)), op.dtype)
    folded = _number(op.name, tuple(map(_told, args)), op.dtype)
    return None if folded is None else scope.builder.const(folded, op.dtype)


# Of integers, which need no rounding. Each place of a stack is compared with each other.
_COMPARED = {name: getattr(operator, name) for name in COMPARISONS}
_Told = tuple[float | int | bool, float, DType]


def _told(constant: Const) -> _Told:
    """What tells it from others: -0.0 equals 0.0."""
    return constant.value, math.copysign(1, constant.value), constant.dtype


@lru_cache(maxsize=1 << 14)
def _number(name: str, args: tuple[_Told, ...], dtype: DType) -> float | int | bool | None:
    """An operation of numbers. In a trace, torch would make a tensor without memory of each, which
    takes a hundred times as long as the operation."""
    with without_modes():
        tensors = [torch.tensor(value, dtype=to_torch(of)) for value, _, of in args]
        try:
            return TABLE[name].meaning(*tensors).to(to_torch(dtype)).item()
        except (ZeroDivisionError, RuntimeError):
            return None  # an integer divided by zero: left to the run, as in eager


def _apply_identity(scope: Scope, op: Op) -> Value | None:
    """mul x 1 -> x, and the like"""
    if op.name not in _BY_OP or scope.constant(op.args[1]) is None:
        return None
    x, constant = op.args
    kind = _KIND[scope[x].dtype.kind]
    for identity in _BY_OP[op.name]:
        if kind in identity.kinds and _same(scope.constant(constant), identity.constant, kind):
            return x if identity.gives == "x" else constant
    return None


def _cancel(scope: Scope, op: Op) -> Value | None:
    """neg (neg x) -> x; maximum x x -> x; abs (neg x) -> abs x"""
    if op.name in IDEMPOTENT and op.args[0] == op.args[1]:
        return op.args[0]
    inner = scope[op.args[0]]
    if not isinstance(inner, Op):
        return None
    if op.name in INVOLUTIONS and inner.name == op.name:
        return inner.args[0]
    if op.name == "abs" and inner.name in ("neg", "abs"):
        return scope.emit(replace(op, args=inner.args))
    return None


def _power(scope: Scope, op: Op) -> Value | None:
    """pow x 2 -> mul x x;  pow x -1 -> reciprocal x;  pow x 0 -> 1, of NaN too"""
    exponent = scope.constant(op.args[1]) if op.name == "pow" else None
    if exponent == 2:
        return scope.emit(Op("mul", (op.args[0], op.args[0]), op.dtype))
    if exponent == -1 and op.dtype.is_float:
        return scope.emit(Op("reciprocal", op.args[:1], op.dtype))
    if exponent == 0:
        return scope.builder.const(1.0 if op.dtype.is_float else 1, op.dtype)
    return None


def _choose(scope: Scope, op: Op) -> Value | None:
    """where c a a -> a;  where true a b -> a;  where g (load x if g else f) c -> load x if g else
    c;  where c true false -> c"""
    if op.name != "where":
        return None
    condition, yes, no = op.args
    if (scope.constant(yes), scope.constant(no)) == (True, False) and op.dtype == dtypes.b1:
        return condition
    if yes == no:
        return yes
    if scope.constant(condition) is not None:
        return yes if scope.constant(condition) else no
    load, fill = scope[yes], scope.constant(no)
    if isinstance(load, Load) and load.guard == condition and fill is not None:
        return scope.emit(replace(load, fill=fill))
    return None


def _affine_arithmetic(scope: Scope, op: Op) -> Value | None:
    """add (index i) (index j) -> index i+j;  mul (index i) 3 -> index 3*i"""
    maps = [scope.index(v) for v in op.args]
    if op.name not in _AFFINE or op.dtype != dtypes.i64 or None in maps:
        return None
    result = _AFFINE[op.name](*maps)
    return None if result is None else scope.emit(Index(result, dtypes.i64))


def _affine_product(a: Affine, b: Affine) -> Affine | None:
    if not b.terms:
        return a * b.const
    return b * a.const if not a.terms else None


_AFFINE = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a + b * -1,
    "mul": _affine_product,
    "neg": lambda a: a * -1,
}


def _decide_comparison(scope: Scope, op: Op) -> Value | None:
    """lt (index i) 8 -> true where i < 8 always;  maximum (index i) 0 -> index i"""
    if op.name not in _DECISIONS:
        return None
    left, right = (scope.index(v) for v in op.args)
    if left is None or right is None:
        return None
    low, high = difference_bounds(left, right, scope.extents)
    decided = _DECISIONS[op.name](low, high)
    if decided is None:
        return None
    if op.name in ("minimum", "maximum"):
        return op.args[0] if decided else op.args[1]
    return scope.builder.const(decided, dtypes.b1)


def _less(low, high) -> bool | None:
    return True if high < 0 else False if low >= 0 else None


def _less_equal(low, high) -> bool | None:
    return True if high <= 0 else False if low > 0 else None


def _equal(low, high) -> bool | None:
    return True if low == high == 0 else False if high < 0 or low > 0 else None


def _negated(decide: Callable) -> Callable:
    def decided(low, high):
        answer = decide(low, high)
        return None if answer is None else not answer

    return decided


# From the bounds of left - right: does it hold everywhere, nowhere, or is it open. (minimum: is it
# the left one.)
_DECISIONS = {
    "lt": _less,
    "le": _less_equal,
    "eq": _equal,
    "ge": _negated(_less),
    "gt": _negated(_less_equal),
    "ne": _negated(_equal),
    "minimum": _less_equal,
    "maximum": _negated(_less),
}


def difference_bounds(
    left: Affine, right: Affine, extents: Mapping[str, Size]
) -> tuple[float, float]:
    """Least and greatest value of left - right over all points; infinite where sizes leave it
    open."""
    difference = left + right * -1
    return _extreme(difference, extents, -1), _extreme(difference, extents, 1)


def _extreme(index: Affine, extents: Mapping[str, Size], sign: int) -> float:
    total = index.const
    for name, coefficient in index.terms:
        if isinstance(coefficient, Poly):
            return sign * math.inf
        if coefficient * sign > 0:
            total = total + coefficient * (extents[name] - 1)
    return sign * math.inf if isinstance(total, Poly) else total


# -- rules for the rest --


def _fold_cast(scope: Scope, cast: Cast) -> Value | None:
    """cast of a constant -> constant;  cast to the type it has -> itself"""
    arg = scope[cast.arg]
    if arg.dtype == cast.dtype:
        return cast.arg
    if not isinstance(arg, Const):
        return None
    return scope.builder.const(_converted(_told(arg), cast.dtype), cast.dtype)


@lru_cache(maxsize=1 << 14)
def _converted(arg: _Told, dtype: DType) -> float | int | bool:
    """A number of another type."""
    with without_modes():
        return torch.tensor(arg[0], dtype=to_torch(arg[2])).to(to_torch(dtype)).item()


def _merge_casts(scope: Scope, cast: Cast) -> Value | None:
    """cast (cast x : f32) : f64 -> cast x : f64, where x's type fits into the one between"""
    inner = scope[cast.arg]
    if isinstance(inner, Cast) and holds(inner.dtype, scope[inner.arg].dtype):
        return scope.emit(replace(cast, arg=inner.arg))
    return None


def _fold_index(scope: Scope, index: Index) -> Value | None:
    """index 3 -> 3"""
    known = not index.map.terms and isinstance(index.map.const, int)
    return scope.builder.const(index.map.const, index.dtype) if known else None


def _direct_load(scope: Scope, load: Load) -> Value | None:
    """load x[%k] with %k = index i+1 -> load x[i+1]"""
    index = _direct(scope, load.index)
    return None if index == load.index else scope.emit(replace(load, index=index))


def _of_nothing(scope: Scope, instr: Reduce | Pick) -> Value | None:
    """reduce.sum over an empty axis -> 0. What it would read may not exist."""
    reduced, item = (instr, 0) if isinstance(instr, Reduce) else (scope[instr.arg], instr.item)
    tuples = isinstance(instr, Reduce) and len(MONOIDS[instr.monoid].identity) > 1
    if not isinstance(reduced, Reduce) or tuples:
        return None
    if all(scope.extents[axis] != 0 for axis in reduced.axes):
        return None
    return scope.builder.const(identity_of(reduced.monoid, instr.dtype, item), instr.dtype)


def _decide_guard(scope: Scope, load: Load) -> Value | None:
    """load x if true -> load x;  load x if false else f -> f"""
    guard = None if load.guard is None else scope.constant(load.guard)
    if guard is None:
        return None
    if guard:
        return scope.emit(replace(load, guard=None, fill=0))
    return scope.builder.const(load.fill, load.dtype)


RULES: dict[type, tuple[Callable[[Scope, Instr], Value | None], ...]] = {
    Op: (
        _order_arguments,
        _fold_constants,
        _apply_identity,
        _cancel,
        _power,
        _choose,
        _affine_arithmetic,
        _decide_comparison,
    ),
    Cast: (_fold_cast, _merge_casts),
    Index: (_fold_index,),
    Load: (_direct_load, _decide_guard),
    Reduce: (_of_nothing,),
    Pick: (_of_nothing,),
}


def _simplify_store(scope: Scope, store: Store) -> Store:
    always = store.guard is not None and scope.constant(store.guard)
    return replace(store, index=_direct(scope, store.index), guard=None if always else store.guard)


def _direct(scope: Scope, index: IndexMap) -> IndexMap:
    """Indirect entries that are affine, as affine ones."""
    return tuple(scope.index(e.value) or e if isinstance(e, Ref) else e for e in index)


def _same(value: float | int | bool, constant: float | int | bool, kind: str) -> bool:
    """Equality that tells -0.0 from 0.0."""
    if kind != "f":
        return value == constant
    return value == constant and math.copysign(1, value) == math.copysign(1, constant)


def holds(wide: DType, narrow: DType) -> bool:
    """Every value of `narrow` is one of `wide`."""
    if narrow.kind == "bool":
        return True
    if narrow.is_float:
        fits = wide.bits >= 32 or wide == narrow or (narrow.is_float8 and not wide.is_float8)
        return wide.is_float and fits and wide.bits >= narrow.bits
    if wide.is_float:
        return narrow.bits - (narrow.kind == "int") <= _MANTISSA[wide.name]
    signs_fit = wide.kind == narrow.kind or (wide.kind == "int" and wide.bits > narrow.bits)
    return wide.is_integral and signs_fit and wide.bits >= narrow.bits


_MANTISSA = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "f8e4m3": 4, "f8e5m2": 3}

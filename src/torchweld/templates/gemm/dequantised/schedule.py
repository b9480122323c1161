"""How a product runs whose right factor is computed from narrower numbers: a dequantised weight.

    comp linear [m, n, g, k] {
      %0 = load x[m, 128*g+k] exact : f32      the left factor: a plain load
      %1 = load q[n, 128*g+k] : i8             the right factor: anything pointwise over loads
      %2 = cast %1 : f32
      %3 = load s[n, g] : f32
      %4 = mul %2 %3 : f32
      %5 = mul %0 %4 : f32
      %6 = reduce.sum[g, k] %5 : f32
      ...                                      pointwise over m and n
      store y[m, n] %9
    }

The factor's terms are made where they are multiplied, some hundred of one column at a time, and are
in no memory. They come in the order in which the largest load, the packed weights, lies in memory:
`outer` axes, then the `run` along which it is adjacent, then `phases`, axes that it does not vary
along (two numbers in one byte). The left factor is laid out in that order first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torchweld.core import dtypes
from torchweld.ir.access import Accesses
from torchweld.ir.interval import bounds
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Index,
    Instr,
    Load,
    Op,
    Reduce,
    Scan,
    Value,
    map_axes,
    needed,
    operands,
    value_axes,
)
from torchweld.templates.gemm.cpu.schedule import ELEMENTS, follows_pointwise

FEW = 16  # rows, up to which the weights are read once and multiplied as they come
CODES = 16  # numbers that a vector of AVX-512 looks up at once
_TERMS = 512  # of a column that are made together: 2 KB
_PIECE = 128  # positions of a longer run: gcc unrolls them, and what is fetched ahead is spread out
_MOST_PHASES = 8  # of all phase axes together: a 32-bit word of 4-bit numbers
_LINE = 64  # terms: what chunks are multiples of


@dataclass(frozen=True, slots=True)
class Codes:
    """`value`, an integer of `count` values from `low` on, at most CODES, is all by which terms of
    one point of the outer axes differ: they are looked up in a table."""

    value: Value
    low: int
    count: int


@dataclass(frozen=True, slots=True)
class Dequantised:
    """C[row, column] = `value`: the sum over `outer`, `run` and `phases` of `left`, a Load, times
    `right`. `row` is None for one row; `lane`: the axis along which what follows is vectorised.
    `packed`: the Load whose order the terms have."""

    value: Value
    left: Value
    right: Value
    packed: Value
    row: str | None
    column: str
    lane: str
    outer: tuple[str, ...]
    run: str
    phases: tuple[str, ...]
    codes: Codes | None
    batch: None = None


@dataclass(frozen=True, slots=True)
class Geometry:
    """A run of `length` positions, `pieces` of at most `piece`, for each of `points`; `phases`
    terms at each position. `together` pieces make a chunk of `step` terms, the last ones zeros."""

    points: int
    length: int
    phases: int
    pieces: int
    piece: int
    together: int

    @property
    def step(self) -> int:
        return -(-self.together * self.piece * self.phases // _LINE) * _LINE

    @property
    def chunks(self) -> int:
        return -(-self.points * self.pieces // self.together)

    @property
    def padded(self) -> int:
        """Terms of a row, with the zeros."""
        return self.chunks * self.step


def geometry_of(comp: Comp, product: Dequantised) -> Geometry:
    points = prod(comp.extent(a) for a in product.outer)
    length, phases = comp.extent(product.run), prod(comp.extent(a) for a in product.phases)
    if length * phases <= _TERMS:
        together = max(1, min(points, _TERMS // (length * phases)))
        return Geometry(points, length, phases, 1, length, together)
    pieces = -(-length // _PIECE)
    return Geometry(points, length, phases, pieces, _PIECE, max(1, _TERMS // (_PIECE * phases)))


def dequantised(accesses: Accesses, looks_up: bool = False) -> Dequantised | None:
    """How `accesses.comp` runs, None if it is no product with one plain and one computed factor.
    `looks_up`: whether the processor has vectors of CODES numbers."""
    comp, frame = accesses.comp, accesses.frame
    value, axes = _only_sum(comp), value_axes(comp.body)
    factors = None if value is None else _factors(comp, value)
    if factors is None or frame.column_reductions:
        return None
    (left, right), depth = factors, frozenset(frame.columns)
    sides = _sides(frame.rows, axes[left] - depth, axes[right] - depth)
    packed = _packed(accesses, right)
    if sides is None or packed is None or accesses.loads[left].refs:
        return None
    offset = accesses.loads[packed].offset
    run = next((a for a in frame.columns if offset.coefficient(a) == 1), None)
    if run is None or not follows_pointwise(comp, value, depth):
        return None
    phases = _phases(comp, offset, frame.columns)
    outer = tuple(a for a in frame.columns if a != run and a not in phases)
    codes = _codes(comp, right, frozenset((run, *phases)), axes) if looks_up else None
    if _gathers(accesses, right, codes):
        return None
    row, column = sides
    return Dequantised(value, left, right, packed, row, column, column, outer, run, phases, codes)


def _sides(
    every: Sequence[str], row: frozenset[str], column: frozenset[str]
) -> tuple[str | None, str] | None:
    """The axis of rows, if there is one, and that of columns."""
    if row & column or set(every) != row | column or len(row) > 1 or len(column) != 1:
        return None
    return next(iter(row), None), next(iter(column))


def refusal(accesses: Accesses, product: Dequantised) -> str | None:
    """Why no kernel is made of it."""
    comp = accesses.comp
    if not all(isinstance(a.extent, int) and a.extent for a in comp.axes):
        return "a dequantised weight of sizes that are known only at the call"
    steps = [c for a in accesses.all for _, c in (*a.offset.terms, ("", a.offset.const))]
    if not all(isinstance(c, int) for c in steps):
        return "a dequantised weight of strides that are known only at the call"
    rows = comp.extent(product.row) if product.row else 1
    if rows > FEW and comp.body[product.left].dtype != dtypes.f32:
        return f"more than {FEW} rows in 16 bits: the library's product on a whole weight"
    return None


def varying(comp: Comp, product: Dequantised) -> list[Value]:
    """What is computed anew for each term, in order."""
    inner, axes = {product.run, *product.phases}, value_axes(comp.body)
    return [v for v in sorted(needed(comp.body, (product.right,))) if axes[v] & inner]


def _only_sum(comp: Comp) -> Value | None:
    """The sum of products that is its only reduction."""
    found = [v for v, i in enumerate(comp.body) if isinstance(i, (Reduce, Scan))]
    if len(found) != 1 or not isinstance(comp.body[found[0]], Reduce):
        return None
    total = comp.body[found[0]]
    factor = comp.body[total.args[0]]
    product = isinstance(factor, Op) and factor.name == "mul" and factor.dtype == dtypes.f32
    return found[0] if product and total.monoid == "sum" else None


def _factors(comp: Comp, value: Value) -> tuple[Value, Value] | None:
    """The plain factor's Load, and the computed factor."""
    one, other = comp.body[comp.body[value].args[0]].args
    for plain, computed in ((one, other), (other, one)):
        load = _plain(comp.body, plain)
        if load is not None and _plain(comp.body, computed) is None:
            return load, computed
    return None


def _plain(body: Sequence[Instr], value: Value) -> Value | None:
    """The Load that a factor is the widened value of."""
    instr = body[value]
    value = instr.arg if isinstance(instr, Cast) else value
    load = body[value]
    known = isinstance(load, Load) and load.dtype in ELEMENTS
    return value if known and load.exact and load.guard is None else None


def _packed(accesses: Accesses, right: Value) -> Value | None:
    """The Load of most bytes behind a factor, of those at places that are not computed."""
    behind = [v for v in needed(accesses.comp.body, (right,)) if v in accesses.loads]
    plain = [v for v in behind if not accesses.loads[v].refs]
    return max(plain, key=lambda v: (_touched(accesses, v), -v), default=None)


def _gathers(accesses: Accesses, right: Value, codes: Codes | None) -> bool:
    """Whether terms are read at computed places one by one; those of a table are not."""
    root = right if codes is None else codes.value
    behind = needed(accesses.comp.body, (root,))
    return any(a.refs for v, a in accesses.loads.items() if v in behind)


def _touched(accesses: Accesses, value: Value) -> int:
    access = accesses.loads[value]
    extents = [a.extent for a in accesses.comp.axes if a.name in access.offset.axes]
    return prod(e if isinstance(e, int) else 1 for e in extents) * access.bytes


def _phases(comp: Comp, offset, order: Sequence[str]) -> tuple[str, ...]:
    """Short axes along which one number holds several terms."""
    found = [a for a in order if offset.coefficient(a) == 0]
    sizes = [comp.extent(a) for a in found]
    few = all(isinstance(n, int) for n in sizes) and prod(sizes) <= _MOST_PHASES
    return tuple(found) if few else ()


def _codes(comp: Comp, right: Value, inner: frozenset[str], axes) -> Codes | None:
    """The last integer of few values through which alone the terms of a run differ."""
    behind, known = needed(comp.body, (right,)), bounds(comp, lambda _: None)
    for value in sorted(behind, reverse=True):
        low, high = known[value]
        few = comp.body[value].dtype.is_integral and high - low < CODES
        if few and axes[value] & inner and _alone(comp, right, value, inner, axes):
            return Codes(value, low, high - low + 1)
    return None


def _alone(comp: Comp, right: Value, value: Value, inner: frozenset[str], axes) -> bool:
    """Whether all else behind `right` that varies along a run is made of `value`."""
    after = needed(comp.body, (right,), stop=(value,)) - {value}
    made = {value}
    for v in sorted(after):
        instr = comp.body[v]
        if isinstance(instr, (Load, Index)) and _own_axes(instr) & inner:
            return False
        if made.intersection(operands(instr)):
            made.add(v)
        elif axes[v] & inner:
            return False
    return right in made


def _own_axes(instr: Load | Index) -> frozenset[str]:
    """Axes of the place that an instruction reads, or is."""
    return map_axes(instr.index) if isinstance(instr, Load) else instr.map.axes

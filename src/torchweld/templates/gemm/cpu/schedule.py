"""How a product of matrices runs on a CPU (templates/gemm/cpu/product.h), with what follows it.

    comp linear_gelu [m, n, k] {
      %0 = load x[m, k] exact : f32
      %1 = load w[n, k] exact : f32
      %2 = mul %0 %1 : f32
      %3 = reduce.sum[k] %2 : f32
      ...                          pointwise over m and n
      store y[m, n] %9
    }

16-bit factors are widened behind their loads; the kernel does it where it packs them. Loads marked
exact are what plan/cpu_products.py makes of a library call, whose error is that of blocks of 192
terms. Sums that a user wrote out are not products: eager adds those up pairwise,
which is more exact.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torchweld.core import dtypes
from torchweld.ir import size
from torchweld.ir.access import Accesses
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import (
    Cast,
    Comp,
    Instr,
    Load,
    Op,
    Reduce,
    Value,
    needed,
    operands,
    store_operands,
)
from torchweld.ir.size import Size
from torchweld.targets.cpu import core_cache_bytes

ELEMENTS = (dtypes.f32, dtypes.f16, dtypes.bf16)
PANEL, MOST_PANELS = 48, 16  # columns; product.h's TW_PANEL with the widest vectors
FEW = 8  # rows; product.h's TW_FEW
WIDTH = 16  # of the widest vectors
GROUP = 8  # rows that a thread takes together
DEEPEST = 16 * 192  # terms that are packed together: 9.4 MB
SLACK_ROWS = 16  # that the last group and a turned square reach beyond
# Seconds per element and term, relative to packing by a copy along rows: packing by turning squares
# of registers, gathering groups of rows in each block of columns, and a multiply-add.
_COPIED, _TURNED, _GATHERED, _MULTIPLIED = 1.0, 2.0, 2.0, 1 / 16


@dataclass(frozen=True, slots=True)
class CpuProduct:
    """C[row, column] = `value`: the sum over `depth` of `left` * `right`, two Loads. `left` is
    read row by row, `right` is packed, `block` columns and `stretch` terms at a time; unless there
    are `few` rows (`row` is None for one), then `right` is read as it lies. `lane`: the axis along
    which what follows is vectorised. `batch`: an outer axis of both, or None. `crews`: so many
    threads at most have memory of their own to pack into, and take whole products of a batch."""

    value: Value
    left: Value
    right: Value
    batch: str | None
    row: str | None
    column: str
    depth: str
    block: int
    stretch: int
    lane: str
    few: bool = False
    crews: int = 1


def cpu_product(accesses: Accesses, hints: Mapping[str, int] | None = None) -> CpuProduct | None:
    """How `accesses.comp` runs as a product, None if it is none, or one with more than an axis of
    each kind."""
    comp, known = accesses.comp, hints or {}
    value = product_of(comp)
    if value is None or len(accesses.frame.columns) != 1 or accesses.frame.column_reductions:
        return None
    (depth,) = accesses.frame.columns
    one, other = factor_loads(comp, value)
    offsets = {v: accesses.loads[v].offset for v in (one, other)}
    if any(accesses.loads[v].refs for v in offsets):
        return None
    first, second = (offsets[v].axes - {depth} for v in (one, other))
    batch, rows, columns = _groups(accesses, known, first, second)
    if len(batch) > 1 or max(len(rows), len(columns)) != 1:
        return None
    if set(accesses.frame.rows) != batch | rows | columns:
        return None
    if not follows_pointwise(comp, value, frozenset((depth,))):
        return None
    pair = (one, *(rows or (None,))), (other, *(columns or (None,)))
    few = _few(accesses, value, *pair, depth, *(batch or (None,)))
    if few is not None or not (rows and columns):
        return few
    return _oriented(accesses, known, value, *pair, *(batch or (None,)))


def _groups(accesses: Accesses, hints, first: frozenset, second: frozenset):
    """Axes of both factors, of the first, and of the second alone. A batch that one factor is the
    same for is a second axis of the other, and the shorter of the two."""
    batch, rows, columns = first & second, first - second, second - first
    for group in (rows, columns):
        if not batch and len(group) == 2:
            order = sorted(group, key=lambda a: (size.hint(accesses.comp.extent(a), hints), a))
            return frozenset(order[:1]), rows - {order[0]}, columns - {order[0]}
    return batch, rows, columns


def _few(accesses: Accesses, value: Value, one, other, depth: str, batch) -> CpuProduct | None:
    """Where one factor has few rows, and the other's elements are adjacent along something; of a
    single row, along the depth: MKL reads the columns of a matrix as fast. With one thread MKL adds
    up a vector of chains for each element whose terms are adjacent, however the rows lie: so does
    this, where packed columns would be chains of 192 terms."""
    for (left, row), (right, column) in ((one, other), (other, one)):
        rows = accesses.comp.extent(row) if row else 1
        if column is None or not isinstance(rows, int) or rows > FEW:
            continue
        if row is None:
            fits = accesses.loads[right].offset.coefficient(depth) == 1
        else:
            fits = any(_fills_vectors(accesses, right, a) for a in (depth, column))
        if fits:
            return CpuProduct(value, left, right, batch, row, column, depth, 0, 0, column, few=True)
    return None


def _fills_vectors(accesses: Accesses, load: Value, axis: str) -> bool:
    """Whether elements along the axis are adjacent, and enough for vectors: 18050 x 6 by 6 x 6 one
    element at a time took 0.93 ms on a Zen 4, packed 0.15."""
    extent = accesses.comp.extent(axis)
    adjacent = accesses.loads[load].offset.coefficient(axis) == 1
    return adjacent and not (isinstance(extent, int) and extent < WIDTH)


def product_of(comp: Comp) -> Value | None:
    """The sum that makes `comp` a product: its only reduction."""
    reductions = [v for v, i in enumerate(comp.body) if isinstance(i, Reduce)]
    return reductions[0] if len(reductions) == 1 and _is_product(comp, reductions[0]) else None


def _is_product(comp: Comp, value: Value) -> bool:
    instr = comp.body[value]
    factor = comp.body[instr.args[0]]
    if instr.monoid != "sum" or not isinstance(factor, Op) or factor.name != "mul":
        return False
    return factor.dtype == dtypes.f32 and all(
        _is_factor(comp.body[v]) for v in factor_loads(comp, value)
    )


def factor_loads(comp: Comp, value: Value) -> tuple[Value, ...]:
    """The factors of a sum of products, as they are in memory."""
    args = comp.body[comp.body[value].args[0]].args
    instrs = (comp.body[a] for a in args)
    return tuple(i.arg if isinstance(i, Cast) else a for a, i in zip(args, instrs))


def _is_factor(instr: Instr) -> bool:
    known = isinstance(instr, Load) and instr.dtype in ELEMENTS
    return known and instr.exact and instr.guard is None


def follows_pointwise(comp: Comp, value: Value, depth: frozenset[str]) -> bool:
    """Whether all else is one value for each row and column, and is stored there."""
    factors = needed(comp.body, (value,))
    rest = [i for v, i in enumerate(comp.body) if v not in factors]
    loaded = [i for i in rest if isinstance(i, Load)]
    indices = [*(i.index for i in loaded), *(s.index for s in comp.stores)]
    plain = all(isinstance(e, Affine) and not depth & e.axes for index in indices for e in index)
    used = {u for i in rest for u in operands(i)}
    used |= {u for s in comp.stores for u in store_operands(s)}
    return plain and used.isdisjoint(factors - {value}) and not any(s.combine for s in comp.stores)


def _oriented(accesses: Accesses, hints, value: Value, one, other, batch) -> CpuProduct:
    """Whose elements are packed: those of the factor for which that, gathering the rows of the
    other, and leaving threads without rows costs less."""
    (depth,) = accesses.frame.columns
    pairs = [(one, other), (other, one)]
    left, right = min(pairs, key=lambda p: _overhead(accesses, hints, *p, depth))
    lane = max((right[1], left[1]), key=lambda a: _written(accesses, value, a, hints))
    columns, deep = accesses.comp.extent(right[1]), accesses.comp.extent(depth)
    block = block_of(columns) if isinstance(columns, int) else PANEL * MOST_PANELS
    stretch = min(deep, DEEPEST) if isinstance(deep, int) else DEEPEST
    return CpuProduct(
        value, left[0], right[0], batch, left[1], right[1], depth, block, stretch, lane,
        crews=_crews(accesses, hints, batch, 4 * block * stretch),
    )  # fmt: skip


def _crews(accesses: Accesses, hints, batch: str | None, packed_bytes: int) -> int:
    """All threads, where each gets a product and a core's cache holds what is packed for one."""
    count = size.hint(accesses.comp.extent(batch), hints) if batch else 1
    return _threads() if count >= _threads() and packed_bytes <= core_cache_bytes() else 1


def _threads() -> int:
    return os.cpu_count() or 1


def block_of(columns: int) -> int:
    """Columns that are packed together, in blocks of nearly one size."""
    panels = max(1, -(-columns // PANEL))
    return PANEL * -(-panels // -(-panels // MOST_PANELS))


def _overhead(accesses: Accesses, hints, left, right, depth: str) -> float:
    (load, row), (packed, column) = left, right
    rows, columns = (size.hint(accesses.comp.extent(a), hints) for a in (row, column))
    along = accesses.loads[packed].offset.coefficient(column) == 1
    cost = columns * (_COPIED if along else _TURNED)
    if accesses.loads[load].offset.coefficient(depth) != 1:
        cost += rows * _GATHERED * -(-columns // block_of(columns))
    busy = min(1.0, -(-rows // GROUP) / _threads())
    return cost + rows * columns * _MULTIPLIED / busy


def _written(accesses: Accesses, value: Value, axis: str, hints) -> int:
    """Bytes that run along `axis` in what follows the product."""
    factors = factor_loads(accesses.comp, value)
    others = [a for v, a in accesses.loads.items() if v not in factors]
    touched = [*others, *accesses.stores]
    return sum(accesses.touched(a, hints) for a in touched if a.offset.coefficient(axis) == 1)


def scratch_elements(product: CpuProduct, accesses: Accesses) -> dict[str, Size]:
    """Memory that the threads share, or of each crew: the packed columns, and where the depth takes
    more than one stretch, the sums so far."""
    if product.few:
        return {}
    found: dict[str, Size] = {"packed": product.block * product.stretch}
    if accesses.comp.extent(product.depth) != product.stretch:
        found["sums"] = product.block * (accesses.comp.extent(product.row) + SLACK_ROWS)
    return {name: elements * product.crews for name, elements in found.items()}

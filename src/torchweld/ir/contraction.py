"""Products of matrices inside a Comp, with what happens to their results: the form that the product
templates fill.

    comp mm_gelu [m:8192, n:3072, k:768] {
      %0 = load x[m, k] : bf16
      %1 = cast %0 : f32
      %2 = load w[n, k] : bf16
      %3 = cast %2 : f32
      %4 = mul %1 %3 : f32
      %5 = reduce.sum[k] %4 : f32        the product; its dtype is that of the accumulator
      ...                                pointwise over rows and columns: the epilogue
      store y[m, n] %9
    }

A product is `reduce.sum` over the depth of `left * right`, in float32 (of 8-bit integers in i32),
where `left` varies along the rows and `right` along the columns. Several products of one Comp share
rows, columns and depth (gate and up). Of float32, sides are exchanged where that lets right factors
lie along the depth. Axes in both operands are a batch. All else in the body is
pointwise over rows and columns. A single row has no axis, where both factors are read from memory,
or the left one is `exact`: a library's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from torchweld.core import dtypes
from torchweld.core.once import once
from torchweld.ir.access import Access, Accesses, linear
from torchweld.ir.nodes import Cast, Instr, Load, Op, Reduce, Scan, Store, Value, value_axes
from torchweld.ir.size import product

TENSOR_DTYPES = frozenset((dtypes.bf16, dtypes.f16))  # of one instruction on tensor cores
# What tensor cores multiply as it is in memory, and what they add products up in.
ACCUMULATED = {dtypes.bf16: dtypes.f32, dtypes.f16: dtypes.f32, dtypes.i8: dtypes.i32}
_FEW = 64  # rows, or columns: one tile
_MOST = 64 * 65535  # rows that may be columns: tiles along the second dimension of a grid


@dataclass(frozen=True, slots=True)
class Product:
    """`value`: the Reduce. `left`, `right`: its factors, in float32; `left_load`, `right_load`: the
    Loads that they are, or are the widened values of, None where something is computed before."""

    value: Value
    left: Value
    right: Value
    left_load: Value | None
    right_load: Value | None


@dataclass(frozen=True, slots=True)
class Contraction:
    """Axis names of `Accesses.comp`, outermost first. `row_sums`: other reductions over the depth,
    whose results vary along rows alone (the statistics of a norm that is applied after the
    product)."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    depth: tuple[str, ...]
    products: tuple[Product, ...]
    row_sums: tuple[Value, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether every factor is read from memory as it is, and nothing else is reduced."""
        loads = [v for p in self.products for v in (p.left_load, p.right_load)]
        return None not in loads and not self.row_sums


@once(64)  # asked of each of some fifty tiles
def column_sums(accesses: Accesses, contraction: Contraction) -> tuple[int, ...]:
    """The stores, by position, that add up the columns of what a product has become, in float32
    (the gradient of a bias): `store.add s[n] v init 0.0` with v along rows and columns. A template
    adds up those of a tile; a second kernel adds up tiles."""
    stores, axes = accesses.comp.stores, value_axes(accesses.comp.body)
    whole = frozenset(contraction.rows + contraction.columns)

    def is_sum(store: Store, access: Access) -> bool:
        lanes = linear(accesses, access.offset, contraction.columns)
        return (
            (store.combine, store.init, store.guard) == ("add", 0.0, None)
            and accesses.comp.body[store.value].dtype == dtypes.f32
            and axes[store.value] == whole
            and lanes == 1
            and not access.refs
            and not access.offset.axes - set(contraction.columns)
        )

    pairs = zip(stores, accesses.stores)
    found = tuple(n for n, pair in enumerate(pairs) if is_sum(*pair))
    return found if _lie_apart([accesses.stores[n] for n in found], contraction, accesses) else ()


def _lie_apart(sums: Sequence[Access], contraction: Contraction, accesses: Accesses) -> bool:
    """Whether no two of them write the same place: each is written, not added to."""
    width = product(accesses.comp.extent(a) for a in contraction.columns)
    pairs = [(a, b) for a, b in combinations(sums, 2) if a.buffer == b.buffer]
    sizes = (width, *(a.offset.const for pair in pairs for a in pair))
    if not all(isinstance(s, int) for s in sizes):
        return not pairs
    return all(abs(a.offset.const - b.offset.const) >= width for a, b in pairs)


def bad_combining(accesses: Accesses, contraction: Contraction) -> str | None:
    """Why a store that combines cannot be made; None if none does, or all are column sums."""
    combining = [n for n, s in enumerate(accesses.comp.stores) if s.combine]
    if combining and tuple(combining) != column_sums(accesses, contraction):
        return "a store combines with what is there"
    sides = (*contraction.rows, *contraction.columns)
    known = all(isinstance(accesses.comp.extent(a), int) for a in sides)
    return None if known or not combining else "sums of columns whose sizes are not known"


def bad_factors(accesses: Accesses, contraction: Contraction) -> str | None:
    """Why factors that are read as they are cannot go from memory to the tensor cores unseen."""
    body = accesses.comp.body
    kinds = {body[operand(body, p.left)].dtype for p in contraction.products}
    if len(kinds) > 1:
        return "its factors differ in dtype"
    if kinds == {dtypes.i8}:
        return "products of integers are Triton's"
    narrow = kinds <= TENSOR_DTYPES
    return None if narrow else "float32 passes through registers, where it is split"


def contraction_of(accesses: Accesses) -> Contraction | None:
    """The products that `accesses.comp` makes, None if it is anything but products and their
    epilogue."""
    comp, frame = accesses.comp, accesses.frame
    reductions = [v for v, i in enumerate(comp.body) if isinstance(i, Reduce)]
    if frame.column_reductions or any(isinstance(i, Scan) for i in comp.body):
        return None
    found = {v: _product(comp.body, v) for v in reductions}
    products = tuple(p for p in found.values() if p is not None)
    if not products:
        return None
    axes = value_axes(comp.body)
    left, right = axes[products[0].left], axes[products[0].right]
    if any((axes[p.left], axes[p.right]) != (left, right) for p in products):
        return None
    sums = tuple(v for v, p in found.items() if p is None)
    depth = frozenset(frame.columns)
    own = left - right - depth
    if any(axes[v] - own for v in sums) or left | right != {a.name for a in comp.axes}:
        return None

    def ordered(names: frozenset[str]) -> tuple[str, ...]:
        return tuple(n for n in (*frame.rows, *frame.columns) if n in names)

    made = Contraction(
        ordered(left & right - depth), ordered(own), ordered(right - left - depth),
        frame.columns, products, sums,
    )  # fmt: skip
    return _exchanged(made) if _lies_better(accesses, made) else made


def _exchanged(c: Contraction) -> Contraction:
    """The transposed products: rows for columns, left factors for right ones."""
    products = tuple(
        Product(p.value, p.right, p.left, p.right_load, p.left_load) for p in c.products
    )
    return replace(c, rows=c.columns, columns=c.rows, products=products)


def _lies_better(accesses: Accesses, c: Contraction) -> bool:
    """Whether products of float32 had better be exchanged: left factors lie along the depth, and
    right ones along the columns. wgmma takes the parts of a left factor (codegen/triton/wide.py)
    from registers, however it lies in memory; those of a right one from shared memory, along the
    depth alone, where others are turned number by number. Few rows or columns stay as they are, and
    so do rows that may be more than a grid has tiles of columns for."""
    combines = any(s.combine for s in accesses.comp.stores)
    rows, columns = (product(accesses.comp.extent(a) for a in axes) for axes in (c.rows, c.columns))
    some = isinstance(rows, int) and _FEW < rows <= _MOST
    if c.row_sums or combines or not some or (isinstance(columns, int) and columns <= _FEW):
        return False
    return all(
        _is_wide_load(accesses.comp.body, p.left)
        and _is_wide_load(accesses.comp.body, p.right)
        and linear(accesses, accesses.loads[p.left].offset, c.depth) == 1
        and linear(accesses, accesses.loads[p.right].offset, c.columns) == 1
        for p in c.products
    )


def factor(body: tuple[Instr, ...], value: Value) -> Value | None:
    """The 16-bit value, or 8-bit integer, that a factor is the widened value of, None if there is
    none."""
    cast = body[value]
    narrow = isinstance(cast, Cast) and ACCUMULATED.get(body[cast.arg].dtype) == cast.dtype
    return cast.arg if narrow else None


def operand(body: tuple[Instr, ...], value: Value) -> Value | None:
    """What a kernel multiplies for a factor: its narrow value, or float32 as it is in memory; None
    if it is neither."""
    return value if _is_wide_load(body, value) else factor(body, value)


def _product(body: tuple[Instr, ...], value: Value) -> Product | None:
    """The product that a Reduce is: its first factor is the left one."""
    instr = body[value]
    factor = body[instr.args[0]]
    if instr.monoid != "sum" or instr.dtype not in ACCUMULATED.values():
        return None
    if not isinstance(factor, Op) or factor.name != "mul":
        return None
    axes = value_axes(body)
    left, right = factor.args
    reduced = frozenset(instr.axes)
    if not (reduced <= axes[left] and reduced <= axes[right]):
        return None
    loads = _widened_load(body, left), _widened_load(body, right)
    narrow = loads[0] is not None and body[loads[0]].dtype in ACCUMULATED
    told = narrow and (_is_read(body, right) or body[loads[0]].exact)
    single_row = told and not axes[left] - axes[right]
    if not (axes[right] - axes[left] and (single_row or axes[left] - axes[right])):
        return None
    return Product(value, left, right, *loads)


def _is_read(body: tuple[Instr, ...], value: Value) -> bool:
    """Whether a factor is read from memory, perhaps as matrices side by side
    (templates/gemm/concatenation.py)."""
    if _widened_load(body, value) is not None:
        return True
    cast = body[value]
    value = cast.arg if isinstance(cast, Cast) else value
    while isinstance(choice := body[value], Op) and choice.name == "where":
        _, part, value = choice.args
        if not isinstance(body[part], Load):
            return False
    return isinstance(body[value], Load) and body[value].dtype in TENSOR_DTYPES


def _is_wide_load(body: tuple[Instr, ...], value: Value) -> bool:
    load = body[value]
    return isinstance(load, Load) and load.dtype == dtypes.f32 and load.guard is None


def _widened_load(body: tuple[Instr, ...], value: Value) -> Value | None:
    if _is_wide_load(body, value):
        return value
    cast = body[value]
    if not isinstance(cast, Cast) or not isinstance(body[cast.arg], Load):
        return None
    load = body[cast.arg]
    narrow = ACCUMULATED.get(load.dtype) == cast.dtype
    return cast.arg if narrow and load.guard is None else None

"""Elements of rows in order.

The first few: a reduction for each, over what comes behind the one before. No row is sorted, and
what makes the rows may be in the same kernel.

    topk(x, 2)  ->  both = (integers in the order of x) << 32 | (2^32 - 1 - place)
                    a = max both;  b = max (both where both < a, else the least)

All of a short row: integers are sorted (a scan by "sort"), which hold a place, too.

    sort(x)     ->  both = (integers in the order of x) << 32 | 2 place;  y = sort both

An integer holds an element and its place: half of its bits are each's. Elements that are equal come
by their places, and all NaN are equal and largest. As in ATen's kernels for CUDA (TensorTopK.cu)
-0 is before 0 among the first few; in a sort, which is stable, they are equal. ATen on a CPU takes
any of the elements that are equal to the last, and sorts places of equal ones in any order, unless
asked for a stable one. Who routes tokens by 16 bits, of which many are equal, is to have eager's
experts: such calls stay ATen's where the places are used, and so do sorts that may be unstable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from torchweld.capture.lowering.call import Call, kept, normal
from torchweld.capture.lowering.expr import Expr, where
from torchweld.capture.lowering.nest import Nest, Spec
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.errors import NotLowered
from torchweld.ir import affine, views
from torchweld.ir.interval import type_bounds
from torchweld.ir.scalar import BITS
from torchweld.ir.size import Size, product
from torchweld.ir.views import Tensor, contiguous_strides

# Each takes a pass over the row, which is held in registers or in cache; a radix select takes as
# many as there are digits, whatever is taken. And elements that are looked at for a row.
_MOST_TAKEN, _MOST_SEEN = 32, 1 << 16
# Elements of rows that are sorted: by programs of a GPU that hold them in registers, and by threads
# of a CPU that hold as many rows as a vector has elements in cache; and so many rows at least.
_MOST_ON_GPU, _MOST_ON_CPU, _FEWEST = 512, 2048, 8

_ALWAYS_STABLE = 16  # elements of a row, which ATen on a CPU inserts one after the other
_AS_THE_LIBRARY = "which of equal elements comes first, as the library has it"

_Found = tuple[Expr, Expr]  # an element and its place


@lowers("aten.topk.default")
def topk(call: Call, x: Tensor, k: int, d: int = -1, largest: bool = True, sorted: bool = True):
    """In order, asked for or not."""
    d, nest = _rows(call, x, d, k)
    found = list(islice(_first(nest, d, nest.read(x, exact=True), largest), k))
    return _stored(call, nest, d, list(zip(*found)))


@lowers("aten.kthvalue.default")
def kthvalue(call: Call, x: Tensor, k: int, d: int = -1, keepdim: bool = False):
    d, nest = _rows(call, x, d, k)
    found = _nth(nest, d, nest.read(x, exact=True), k)
    return call.finish_all(nest, [(f, kept(x.rank, (d,), keepdim)) for f in found])


@lowers("aten.median.dim")
def median(call: Call, x: Tensor, d: int, keepdim: bool = False):
    """The lower of two; of a row with a NaN, the first of those."""
    length = _length(x, d)
    k = (length + 1) // 2 if isinstance(length, int) else _MOST_TAKEN + 1
    d, nest = _rows(call, x, d, k)
    value = nest.read(x, exact=True)
    middle, at = _nth(nest, d, value, k)
    if x.dtype.is_float:
        place = nest.position(d)
        nan = nest.reduce("min", where(value.ne(value), place, length), [d])
        at, middle = where(nan < length, nan, at), where(nan < length, math.nan, middle)
    return call.finish_all(nest, [(f, kept(x.rank, (d,), keepdim)) for f in (middle, at)])


@lowers("aten.sort.default", "aten.sort.stable")
def sort(call: Call, x: Tensor, dim: int = -1, descending: bool = False, *, stable=False):
    """Stable, asked for or not."""
    on_gpu = call.out.device.startswith("cuda")
    length = _length(x, dim)
    if not isinstance(length, int) or length > (_MOST_ON_GPU if on_gpu else _MOST_ON_CPU):
        raise NotLowered("all of long rows in order")
    if not on_gpu and not stable and 1 in call.used and length > _ALWAYS_STABLE:
        raise NotLowered(_AS_THE_LIBRARY)
    _needs_keys(x)
    d = normal(dim, x.rank)
    rows = product(n for a, n in enumerate(x.shape) if a != d)
    if not on_gpu and isinstance(rows, int) and rows < _FEWEST:
        raise NotLowered("few rows in order")
    how = _with_all if on_gpu else _apart
    return how(call, x, d, descending)


def _with_all(call: Call, x: Tensor, d: int, descending: bool) -> tuple[Tensor | None, ...]:
    """In the kernel of what makes them and of what reads them."""
    nest = call.nest(x.shape, x, single=(d,))
    found = nest.scan("sort", _both(nest, nest.read(x, exact=True), d, descending), d)
    return _told(call, nest, found, x.dtype, descending, x.shape[d])


def _apart(call: Call, x: Tensor, d: int, descending: bool) -> tuple[Tensor | None, ...]:
    """In a kernel of its own, of contiguous rows (templates/sorting)."""
    order = [*(a for a in range(x.rank) if a != d), d]
    shape = tuple(x.shape[a] for a in order)
    spec = Spec(shape, contiguous_strides(shape), _word(x.dtype)[0], call.out.device)
    nest = call.nest(x.shape, x)
    keys = nest.store(_both(nest, nest.read(x, exact=True), d, descending), spec, order)
    nest.close()
    nest = call.nest(shape, keys, single=(x.rank - 1,))
    found = nest.store(nest.scan("sort", nest.read(keys), x.rank - 1), spec)
    nest.close()
    nest = call.nest(x.shape, extra=[(found, tuple(order))])
    return _told(call, nest, nest.read(found, order), x.dtype, descending, x.shape[d])


def _told(
    call: Call, nest: Nest, found: Expr, kind: DType, descending: bool, length: int
) -> tuple[Tensor | None, ...]:
    """The elements and places of sorted integers."""
    _, half = _word(kind)
    key, rest = found.op("shr", half), found & found.lift((1 << half) - 1)
    value = _of_key(-1 - key if descending else key, kind)
    if kind.is_float:
        value = where((rest & rest.lift(1)).ne(0), -0.0, value)
    place = _place(rest.op("shr", 1), length)
    return call.finish_all(nest, [(value, None), (place, None)])


def _place(found: Expr, length: int) -> Expr:
    """The place in a row of so many elements, in words that say so: who reads something by it need
    not look whether it is inside."""
    return found.to(dtypes.i64).minimum(length - 1)


def _both(nest: Nest, x: Expr, d: int, descending: bool) -> Expr:
    """Elements and their places in integers of ascending order, no two of a row alike. The last bit
    tells -0, which is equal to 0."""
    dtype, half = _word(x.dtype)
    rest = nest.position(d).to(dtype) * 2
    key = _key(x)
    if x.dtype.is_float:
        is_zero = x.eq(0)
        rest = rest + (is_zero & (key < 0)).to(dtype)
        key = where(is_zero, 0, key)
    key = key.to(dtype)
    return (-1 - key if descending else key) * (1 << half) + rest


def _rows(call: Call, x: Tensor, d: int, k: int) -> tuple[int, Nest]:
    """(the dimension, a nest over x) where the first k along it are found one by one. Raises
    NotLowered."""
    length = _length(x, d)
    if not isinstance(length, int) or not 0 < k <= min(length, _MOST_TAKEN):
        raise NotLowered("many elements of rows, or of rows of a length that is not known")
    if k * length > _MOST_SEEN:
        raise NotLowered("elements of long rows")
    if call.out.device == "cpu" and 1 in call.used and x.dtype != dtypes.f32:
        raise NotLowered(_AS_THE_LIBRARY)
    _needs_keys(x)
    return normal(d, x.rank), call.nest(x.shape, x)


def _length(x: Tensor, d: int) -> Size:
    return x.shape[normal(d, x.rank)] if x.rank else 1


def _needs_keys(x: Tensor) -> None:
    if 0 in x.shape:
        raise NotLowered("no elements in order")
    if not x.rank or x.dtype.bits > 32 or x.dtype.is_float8 or x.dtype == dtypes.b1:
        raise NotLowered(f"no order of {x.dtype} by 32-bit integers")


def _stored(
    call: Call, nest: Nest, d: int, results: Sequence[Sequence[Expr]]
) -> tuple[Tensor | None, ...]:
    """The results that are used, each of what comes one after the other along dimension d."""
    made = []
    for item, given in enumerate(results):
        made.append(None)
        if item not in call.used:
            continue
        spec = call.specs[item]
        strides = contiguous_strides(spec.shape)
        buffer = call.graph.buffer(call.name, spec.shape, spec.dtype, strides, spec.device)
        for n, value in enumerate(given):
            index = (affine.constant(n) if a == d else nest.at(a) for a in range(len(spec.shape)))
            nest.put(buffer, tuple(index), value.to(spec.dtype))
        made[-1] = views.whole(buffer)
    nest.close()
    return tuple(made)


def _nth(nest: Nest, d: int, x: Expr, k: int) -> _Found:
    """The k-th smallest."""
    return next(islice(_first(nest, d, x, largest=False), k - 1, None))


def _first(nest: Nest, d: int, x: Expr, largest: bool) -> Iterator[_Found]:
    """The elements along dimension d and their places, in order. Places count down where the
    largest come first, so that the first of equals does."""
    dtype, half = _word(x.dtype)
    mask, end = (1 << half) - 1, type_bounds(dtype)[0 if largest else 1]
    place = nest.position(d)
    both = _key(x).to(dtype) * (1 << half) + (mask - place if largest else place).to(dtype)
    left = both
    while True:
        found = nest.reduce("max" if largest else "min", left, [d])
        at = found & found.lift(mask)
        at = _place(mask - at if largest else at, nest.shape[d])
        yield _of_key(found.op("shr", half), x.dtype), at
        left = where(both < found if largest else both > found, both, end)


def _word(dtype: DType) -> tuple[DType, int]:
    """(the integer that holds an element and its place, bits of either)."""
    return (dtypes.i32, 16) if dtype.bits <= 16 else (dtypes.i64, 32)


def _key(x: Expr) -> Expr:
    """An integer whose order is that of x."""
    if not x.dtype.is_float:
        return x
    bits = x.bits()
    return where(x.ne(x), type_bounds(bits.dtype)[1], _turned(bits))


def _of_key(key: Expr, kind: DType) -> Expr:
    if not kind.is_float:
        return key.to(kind)
    return _turned(key.to(BITS[f"{kind}_bits"][1])).of_bits(kind)


def _turned(bits: Expr) -> Expr:
    """Those of negative floats, which count the other way; its own inverse."""
    sign = bits.op("shr", bits.dtype.bits - 1)
    return bits.op("bit_xor", sign & bits.lift(type_bounds(bits.dtype)[1]))


"""Images as TMA sees them: products whose left factor is a window that moves over an image
(convolutions), and whose rows are its places.

    %p = load x[n, c, 2*h+i-1, 2*w+j-1] guard inside     rows n, h, w; depth i, j, c

A tile of rows is a box of places, so that what a tile reads at one tap is a box of the image, which
one copy brings; outside of the image TMA reads zeros, as the padding does. Where the window moves
by steps, every second (or third) pixel of a side becomes a dimension of its own:

    x[n, y, x, c] at y = 2*h+i-1   ->   x[n, y / 2, y % 2, x, c] at (h + (i-1) / 2, (i-1) % 2)

The depth is walked tap by tap, the channels of each in blocks: it is padded to whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as every
from math import gcd, prod

from torchweld.core.dtypes import DType
from torchweld.ir.access import Access, Accesses, linear
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.contraction import TENSOR_DTYPES, Contraction, Product
from torchweld.ir.nodes import Cast, Const, Index, Load, Op, Value
from torchweld.ir.size import Size, product
from torchweld.templates.gemm.hopper.windows import TMA_BYTES, Window

MOST_DIMENSIONS = 5  # of TMA


@dataclass(frozen=True, slots=True)
class _Side:
    """A dimension of an image: `index` along it, `extent` places, `stride` elements apart."""

    index: Affine
    extent: int
    stride: int


def image_load(accesses: Accesses, found: Product) -> Value | None:
    """The load that the left factor of a product widens, guarded or not."""
    if found.left_load is not None:
        return found.left_load
    cast = accesses.comp.body[found.left]
    load = accesses.comp.body[cast.arg] if isinstance(cast, Cast) else None
    zeros = isinstance(load, Load) and load.dtype in TENSOR_DTYPES and load.fill == 0
    return cast.arg if zeros else None


def is_image(accesses: Accesses, found: Product) -> bool:
    """Whether the left factor is read where it is, and zero outside of it."""
    return found.left_load is None and image_load(accesses, found) is not None


def image(accesses: Accesses, contraction: Contraction, value: Value) -> Window | str:
    """The window of the left factor that a load reads, or why TMA cannot make it."""
    access, load = accesses.loads[value], accesses.comp.body[value]
    found = _sides(accesses, contraction, access, load)
    if isinstance(found, str):
        return found
    sides, offset = found
    channel = contraction.depth[-1]
    dims = [d for s in sides for d in _dimensions(s, contraction, channel)]
    if any(d is None for d in dims):
        return f"{access.buffer} has sides that no step divides"
    dims = _joined(sorted(dims, key=lambda d: -d.stride), contraction.rows)
    dims = _in_order(dims, contraction.rows)
    return _window(access.buffer, load.dtype, dims, "depth", offset)


def weight(accesses: Accesses, contraction: Contraction, value: Value) -> Window | str:
    """The window of a right factor whose depth is walked tap by tap."""
    access, load, channel = accesses.loads[value], accesses.comp.body[value], contraction.depth[-1]
    if access.refs or not isinstance(load, Load) or load.guard is not None:
        return "computed indices"
    dims = _axis_dimensions(accesses, access, (*contraction.batch, *contraction.depth), channel)
    columns = _columns(accesses, contraction, access)
    if columns is None or any(isinstance(d, str) for d in dims):
        return f"{access.buffer} is no matrix for each tap"
    dims = sorted((*dims, columns), key=lambda d: -d.stride)
    last = "columns" if dims[-1] == columns else "depth"  # a tap cannot be
    return _window(access.buffer, load.dtype, dims, last, access.offset.const)


def places(
    accesses: Accesses, contraction: Contraction, access: Access, dtype: DType
) -> Window | str:
    """The window of a whole tile of rows and columns that an epilogue reads or writes."""
    if access.refs:
        return "computed indices"
    dims = _axis_dimensions(accesses, access, (*contraction.batch, *contraction.rows), None)
    columns = _columns(accesses, contraction, access)
    varies = set(contraction.rows) <= access.offset.axes
    plain = varies and not any(isinstance(d, str) for d in dims)
    if columns is None or columns.stride != 1 or not plain:
        return f"{access.buffer} is no image with its channels innermost"
    dims = (*_in_order(sorted(dims, key=lambda d: -d.stride), contraction.rows), columns)
    return _window(access.buffer, dtype, dims, "columns", access.offset.const)


def best_box(extents: Sequence[int], points: int) -> tuple[int, ...]:
    """The powers of two whose product is `points` that cover a grid in the least time, by how many
    boxes there are and how many places of each lie side by side in memory; of those as good, the
    one that is longest along the last sides, whose taps overlap. H100, 3 x 3, 8 channels: 4.07 us
    for a box of 32 images x 2 x 2 places, 3.6 for 4 x 32; 3 x 3 x 3, 3 channels: 8.5 and 6.7."""
    powers = [1 << k for k in range(points.bit_length())]
    boxes = (b for b in every(powers, repeat=len(extents)) if prod(b) == points)
    return min(boxes, key=lambda b: (_cost(extents, b), tuple(-n for n in reversed(b))))


def _cost(extents: Sequence[int], box: Sequence[int]) -> float:
    return boxes_of(extents, box) * (1 + 0.5 / box[-1])


def boxes_of(extents: Sequence[int], box: Sequence[int]) -> int:
    """How many cover a grid."""
    return prod(-(-n // b) for n, b in zip(extents, box))


# -- the sides of an image, from how it is read --


def _sides(
    accesses: Accesses, contraction: Contraction, access: Access, load: Load
) -> tuple[list[_Side], int] | str:
    """With where in its buffer the image begins."""
    known = all(isinstance(accesses.comp.extent(a), int) for a in access.offset.axes)
    if access.refs or not known or not isinstance(access.offset.const, int):
        return "an image whose sizes are not known"
    bounds = _bounds(accesses, load.guard)
    if bounds is None:
        return f"{access.buffer} is read behind a condition that is no edge"
    rest, sides = access.offset, []
    for index, extent in bounds.items():
        stride = _stride(rest, index)
        if stride is None:
            return f"{access.buffer} is read behind a condition on another place"
        extent = min(extent, _reached(accesses, contraction, index))
        if extent < 1:
            return f"{access.buffer} is read nowhere"
        sides.append(_Side(index, extent, stride))
        rest = rest + index * -stride
    sides += _unguarded(accesses, contraction, rest)
    return (sides, rest.const) if rest.const >= 0 else f"{access.buffer} is read before its start"


def _bounds(accesses: Accesses, guard: Value | None) -> dict[Affine, int] | None:
    """Of a guard that says 0 <= index < extent for some indices: the extents; None of others."""
    body, low, high = accesses.comp.body, set(), {}
    todo = [] if guard is None else [guard]
    while todo:
        instr = body[todo.pop()]
        if not isinstance(instr, Op) or instr.name not in ("bit_and", "ge", "lt"):
            return None
        if instr.name == "bit_and":
            todo.extend(instr.args)
            continue
        index, bound = (_index(body[v]) for v in instr.args)
        if index is None or bound is None or bound.terms or not isinstance(bound.const, int):
            return None
        if index.terms == () and _holds(instr.name, index.const, bound.const):
            continue  # of a side of one place
        if instr.name == "lt":
            high[index] = min(bound.const, high.get(index, bound.const))
        elif bound.const == 0:
            low.add(index)
        else:
            return None
    return high if low == set(high) else None


def _holds(name: str, index: Size, bound: int) -> bool:
    known = isinstance(index, int)
    return known and (index < bound if name == "lt" else index >= bound)


def _index(instr: object) -> Affine | None:
    if isinstance(instr, Const) and isinstance(instr.value, int):
        return constant(instr.value)
    return instr.map if isinstance(instr, Index) else None


def _stride(offset: Affine, index: Affine) -> int | None:
    """The number of elements from one place along `index` to the next."""
    if not index.terms:
        return None
    steps = {divmod(offset.coefficient(a), c) for a, c in index.terms}
    ((step, left), *others) = steps
    return step if not others and left == 0 and step > 0 else None


def _unguarded(accesses: Accesses, contraction: Contraction, rest: Affine) -> Iterator[_Side]:
    """Sides whose every place is inside: an axis of the rows with the taps that move along it, or
    one axis alone."""
    left = dict(rest.terms)
    for tap in [a for a in contraction.depth if left.get(a, 0) > 1]:
        row = next((a for a in contraction.rows if _moves(accesses, left, a, tap)), None)
        if row is not None:
            step = gcd(left[row], left[tap])
            index = axis(row) * (left.pop(row) // step) + axis(tap) * (left.pop(tap) // step)
            yield _Side(index, _last(accesses, index) + 1, step)
    for name, stride in left.items():
        yield _Side(axis(name), accesses.comp.extent(name), stride)


def _reached(accesses: Accesses, contraction: Contraction, index: Affine) -> int:
    """How many places along a side are read, in whole steps of its rows. A guard may allow more
    than the buffer has; TMA would copy them."""
    step = max((index.coefficient(a) for a in contraction.rows), default=1)
    step = max(step, 1)
    return -(-(_last(accesses, index) + 1) // step) * step


def _last(accesses: Accesses, index: Affine) -> int:
    """The largest number that `index` is."""
    return index.const + sum(max(0, c) * (accesses.comp.extent(a) - 1) for a, c in index.terms)


def _moves(accesses: Accesses, steps: Mapping[str, int], row: str, tap: str) -> bool:
    """Whether both walk along one side: neither passes over all that the other reaches."""
    if row not in steps:
        return False
    taps, places = accesses.comp.extent(tap), accesses.comp.extent(row)
    return steps[row] <= steps[tap] * max(1, taps - 1) and steps[tap] <= steps[row] * places


# -- dimensions for TMA --


@dataclass(frozen=True, slots=True)
class _Dimension:
    """`start`: the text of where a tile begins."""

    name: str
    extent: Size
    stride: Size
    start: str


def _dimensions(side: _Side, contraction: Contraction, channel: str) -> list[_Dimension | None]:
    """One, or two where rows walk over the side in steps; None where no step divides it, or taps
    walk backwards beside steps."""
    rows = [a for a in contraction.rows if side.index.coefficient(a)]
    if side.index == axis(channel):
        return [_Dimension("depth", side.extent, side.stride, f"at_{channel}")]
    if not rows:
        return [_Dimension(_name(side.index), side.extent, side.stride, _text(side.index))]
    (row,) = rows if len(rows) == 1 else (None,)
    step = side.index.coefficient(row) if row else 0
    if step == 1:
        return [_Dimension(row, side.extent, side.stride, _text(side.index))]
    rest = side.index + axis(row) * -step if row else side.index
    backwards = any(c < 0 for _, c in rest.terms)  # a kernel's `//` rounds to zero
    if step < 1 or side.extent % step or backwards:
        return [None]
    ahead = -(rest.const // step) if rest.const < 0 else 0  # what is divided is not negative
    inside = _text(rest + constant(ahead * step))
    return [
        _Dimension(row, side.extent // step, side.stride * step,
                   f"at_{row} + ({inside}) // {step} - {ahead}"),
        _Dimension(f"{row}_step", step, side.stride, f"({inside}) % {step}"),
    ]  # fmt: skip


def _joined(dims: list[_Dimension], rows: Sequence[str]) -> list[_Dimension]:
    """The last two as one, where a copy would have too many: channels of groups, or of every
    second pixel, one after the other."""
    if len(dims) <= MOST_DIMENSIONS:
        return dims
    *others, outer, inner = dims
    if outer.name in rows or outer.stride % inner.stride:
        return dims
    apart = outer.stride // inner.stride
    extent = (outer.extent - 1) * apart + inner.extent
    start = f"({outer.start}) * {apart} + {inner.start}"
    return _joined([*others, replace(inner, extent=extent, start=start)], rows)


def _in_order(dims: Sequence[_Dimension], rows: Sequence[str]) -> list[_Dimension]:
    """`dims` with those of rows in the order of the rows, as accumulators have them: a tile in
    shared memory is read as a matrix."""
    own = sorted((d for d in dims if d.name in rows), key=lambda d: rows.index(d.name))
    ordered = iter(own)
    return [next(ordered) if d.name in rows else d for d in dims]


def _axis_dimensions(
    accesses: Accesses, access: Access, axes: Sequence[str], channel: str | None
) -> list[_Dimension | str]:
    """One for each axis that a window moves along."""
    def made(name: str) -> _Dimension | str:
        stride, extent = access.offset.coefficient(name), accesses.comp.extent(name)
        if not isinstance(stride, int) or not isinstance(extent, int) or stride < 0:
            return "sizes that are not known"
        return _Dimension("depth" if name == channel else name, extent, stride, f"at_{name}")

    return [made(a) for a in axes if access.offset.coefficient(a) != 0]


def _columns(
    accesses: Accesses, contraction: Contraction, access: Access
) -> _Dimension | None:
    stride = linear(accesses, access.offset, contraction.columns)
    extent = product(accesses.comp.extent(a) for a in contraction.columns)
    if not isinstance(stride, int) or stride < 1 or not isinstance(extent, int):
        return None
    return _Dimension("columns", extent, stride, "")


def _window(
    buffer: str, dtype: DType, dims: Sequence[_Dimension], last: str, offset: Size = 0
) -> Window | str:
    lanes = TMA_BYTES // dtype.bytes
    if len(dims) > MOST_DIMENSIONS:
        return f"more than {MOST_DIMENSIONS} dimensions"
    if dims[-1].stride != 1 or dims[-1].name != last:
        return f"{buffer} has not its channels innermost"
    steps = (offset, *(d.stride for d in dims[:-1]))
    if any(not isinstance(s, int) or s % lanes for s in steps):
        return f"{buffer} is not aligned to {TMA_BYTES} bytes at each pixel"
    starts = tuple((d.name, d.start) for d in dims if d.start)
    return Window(buffer, dtype, tuple(d.name for d in dims), tuple(d.extent for d in dims),
                  tuple(d.stride for d in dims), offset, starts)  # fmt: skip


def _name(index: Affine) -> str:
    return "_".join(a for a, _ in index.terms) or "zero"


def _text(index: Affine) -> str:
    """With the names of where a tile begins along each axis."""
    terms = [f"at_{a}" if c == 1 else f"at_{a} * {c}" for a, c in index.terms]
    return " + ".join([*terms, *([str(index.const)] if index.const or not terms else [])])

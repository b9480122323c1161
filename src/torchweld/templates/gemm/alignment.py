"""How well a product's matrices are aligned: bytes, up to 16, that all their rows begin at
multiples of, and that rows have. cuBLAS has a kernel for each of 2, 4, 8 and 16; Triton loads as
many at once, and what is narrower than 4 one step after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from torchweld.ir.access import Accesses, linear
from torchweld.ir.affine import Affine
from torchweld.ir.contraction import Contraction
from torchweld.ir.nodes import Value, View
from torchweld.ir.size import Size, known_factor, product

WHOLE = 16  # bytes
NARROW = 4  # bytes; fewer are not copied to shared memory in the background, and stored slowly


def of_call(left: View, right: View, result: View, width: int) -> int:
    """Of a library's product, of elements of `width` bytes. Lines along the depth, and those of the
    result, must have whole lengths as well. A product with a vector has kernels of its own."""
    if 1 in result.shape[-2:]:
        return WHOLE
    lengths = result.shape[-1], *_lengths_along_the_depth(left, right)
    return _common((*lengths, *(n for v in (left, right, result) for n in _places(v))), width)


def copied_for_call(
    left: View, right: View, result: View, width: int, wider: bool
) -> list[View] | None:
    """The matrices whose copies such a product would be aligned with, None if it would not be: the
    depth stays as it is. `wider`: columns may be added, where they are rows of the right factor."""
    columns_too = wider and right.strides[-2] == 1 and _common(result.shape[-1:], width) < WHOLE
    fixed = *_lengths_along_the_depth(left, right), 0 if columns_too else result.shape[-1]
    if _common(fixed, width) < WHOLE:
        return None
    off = [v for v in (left, right, result) if _common(_places(v), width) < WHOLE]
    return [*off, right] if columns_too and right not in off else off


def once_rows_are_apart(
    left: View, right: View, result: View, width: int, parts: bool
) -> int:
    """What such a product is aligned to when all rows begin at multiples of 16 bytes. `parts`: its
    depth may be cut, and columns added where they are rows of the right factor
    (layout/extents.py)."""
    columns = 0 if parts and right.strides[-2] == 1 else result.shape[-1]
    depth = (0, 0) if parts else _lengths_along_the_depth(left, right)
    return _common((columns, *depth), width)


def _lengths_along_the_depth(left: View, right: View) -> tuple[Size, Size]:
    """Of lines along it; zero of a factor whose lines lie across."""
    return (left.shape[-1] if left.strides[-1] == 1 else 0,
            right.shape[-2] if right.strides[-2] == 1 else 0)  # fmt: skip


def _places(view: View) -> list[Size]:
    """What the address of an element is a sum of multiples of."""
    return [view.offset, *(s for n, s in zip(view.shape, view.strides) if s != 1 and n != 1)]


def of_loads(accesses: Accesses, c: Contraction) -> int:
    """Of the factors of a kernel that are loaded as they are."""
    loads = {v for p in c.products for v in (p.left_load, p.right_load) if v is not None}
    body = accesses.comp.body
    found = (_common(_steps(accesses, c, v), body[v].dtype.bytes) for v in loads)
    return min(found, default=WHOLE)


def stores_whole_lines(accesses: Accesses, c: Contraction) -> bool:
    """Whether no result lies along the rows, or in lines of columns that are not aligned."""
    along_rows = any(1 in _outside(accesses, c, position) for position in _tiles(accesses, c))
    return not along_rows and not narrow_stores(accesses, c, WHOLE)


def narrow_stores(accesses: Accesses, c: Contraction, least: int) -> list[int]:
    """Positions of results in lines of columns that are aligned to less than `least` bytes."""

    def is_narrow(position: int) -> bool:
        offset = accesses.stores[position].offset
        width = accesses.comp.body[accesses.comp.stores[position].value].dtype.bytes
        steps = offset.const, *_outside(accesses, c, position)
        return linear(accesses, offset, c.columns) == 1 and _common(steps, width) < least

    return list(filter(is_narrow, _tiles(accesses, c)))


def _tiles(accesses: Accesses, c: Contraction) -> list[int]:
    """Positions of stores that write tiles of rows and columns."""
    sides = set(c.rows), set(c.columns)
    stores = enumerate(accesses.stores)
    return [p for p, a in stores if all(a.offset.axes & side for side in sides)]


def _outside(accesses: Accesses, c: Contraction, position: int) -> list[Size]:
    """The steps of a store along all axes but the columns."""
    offset = accesses.stores[position].offset
    return [offset.coefficient(a) for a in offset.axes - set(c.columns)]


def _steps(accesses: Accesses, c: Contraction, load: Value) -> Iterator[Size]:
    """What the address of an element is a sum of multiples of; of a line along the depth its
    length, too, since what is beyond must not be loaded."""
    offset, extent = accesses.loads[load].offset, accesses.comp.extent
    yield offset.const
    for side in (c.batch, c.rows, c.columns, c.depth):
        lines = (side,) if linear(accesses, offset, side) is not None else ((a,) for a in side)
        for axes in filter(None, lines):
            step = offset.coefficient(axes[-1])
            length = product(map(extent, axes)) if side == c.depth else 0
            yield length if step == 1 else step


def of_lines(offset: Affine, along: str, width: int, most: int) -> int:
    """Bytes, up to `most`, a power of two, that lines along an axis begin at multiples of."""
    return _common((offset.const, *(s for a, s in offset.terms if a != along)), width, most)


def _common(steps: Iterable[Size], width: int, most: int = WHOLE) -> int:
    return gcd(most, *(known_factor(s) * width for s in steps))

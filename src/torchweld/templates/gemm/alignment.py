"""How well a product's matrices are aligned: bytes, up to 16, that all their rows begin at
multiples of, and that rows have. cuBLAS has a kernel for each of 2, 4, 8 and 16; Triton loads as
many at once, and what is narrower than 4 one step after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from torchweld.ir.access import Accesses, linear
from torchweld.ir.contraction import Contraction
from torchweld.ir.nodes import Value, View
from torchweld.ir.size import Size, known_factor, product

WHOLE = 16  # bytes
LEAST_COPY = 4  # that are copied to shared memory in the background


def of_view(view: View, width: int) -> int:
    """Of a library's operand, or result, of elements of `width` bytes."""
    sides = list(zip(view.shape, view.strides))
    lengths = [n for n, s in sides if s == 1 and n != 1]
    return _common((*(s for n, s in sides if s != 1 and n != 1), view.offset, *lengths), width)


def of_loads(accesses: Accesses, c: Contraction) -> int:
    """Of the factors of a kernel that are loaded as they are."""
    loads = {v for p in c.products for v in (p.left_load, p.right_load) if v is not None}
    body = accesses.comp.body
    found = (_common(_steps(accesses, c, v), body[v].dtype.bytes) for v in loads)
    return min(found, default=WHOLE)


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


def _common(steps: Iterable[Size], width: int) -> int:
    return gcd(WHOLE, *(known_factor(s) * width for s in steps))

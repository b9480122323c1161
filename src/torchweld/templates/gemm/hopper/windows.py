"""Buffers as TMA sees them: what one descriptor describes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchweld.core.dtypes import DType
from torchweld.ir.access import Access, Accesses, linear
from torchweld.ir.contraction import Contraction
from torchweld.ir.size import Size, is_negative, known_factor, product

TMA_BYTES = 16  # strides and addresses are multiples of it


@dataclass(frozen=True, slots=True)
class Window:
    """A buffer as TMA sees it: `dims` are axes of the batch, then two of "rows", "columns" and
    "depth"; it is contiguous along the last. Columns that are parts of heads have "heads" before
    them. Of an image (images.py), the axes of rows and taps stand for "rows". `strides` and
    `offset` in elements. `starts`: by dimension, the text of where a tile begins along it, where
    that is not told by its name."""

    buffer: str
    dtype: DType
    dims: tuple[str, ...]
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    starts: tuple[tuple[str, str], ...] = ()

    @property
    def width(self) -> int | None:
        """Columns of each head, where they are apart."""
        return self.shape[self.dims.index("columns")] if "heads" in self.dims else None

    def block(self, **extents: int) -> tuple[int, ...]:
        """A tile: one along the batch, `extents` along the sides."""
        if self.width is not None:
            columns = extents["columns"]
            extents |= {"heads": max(1, columns // self.width), "columns": min(columns, self.width)}
        return tuple(extents.get(d, 1) for d in self.dims)

    def divides(self, columns: int) -> bool:
        """Whether tiles of that many columns are whole heads, or parts of one."""
        return self.width is None or not columns % self.width or not self.width % columns


def window(
    accesses: Accesses,
    contraction: Contraction,
    access: Access,
    dtype: DType,
    sides: tuple[str, str],
) -> Window | str:
    """Of an access, or why TMA cannot make it."""
    if access.refs:
        return "computed indices"
    strides = {s: linear(accesses, access.offset, getattr(contraction, s)) for s in sides}
    if any(s is None or s == 0 for s in strides.values()):
        return f"{access.buffer} is no matrix of rows at equal distances"
    if strides[sides[1]] != 1:
        sides = sides[::-1]
    if strides[sides[1]] != 1:
        return f"{access.buffer} is contiguous along neither side"
    extents = [product(accesses.comp.extent(a) for a in getattr(contraction, s)) for s in sides]
    matrix = Window(access.buffer, dtype, sides, tuple(extents), (strides[sides[0]], 1),
                    access.offset.const)  # fmt: skip
    return _aligned(accesses, access, contraction.batch, matrix)


def row_window(
    accesses: Accesses,
    access: Access,
    dtype: DType,
    batch: tuple[str, ...],
    axes: tuple[str, ...],
    sides: tuple[str, str],
) -> Window | str:
    """Of an access that `axes` alone walk over, as a matrix whose first side is one."""
    length = product(accesses.comp.extent(a) for a in axes)
    if access.refs or linear(accesses, access.offset, axes) != 1 or not isinstance(length, int):
        return f"{access.buffer} is no row of numbers side by side"
    lanes = TMA_BYTES // dtype.bytes
    row = Window(access.buffer, dtype, sides, (1, length), (-(-length // lanes) * lanes, 1),
                 access.offset.const)  # fmt: skip
    return _aligned(accesses, access, batch, row)


def _aligned(
    accesses: Accesses, access: Access, batch: tuple[str, ...], matrix: Window
) -> Window | str:
    """`matrix` for each point of the batch, or why TMA cannot make it."""
    batch = tuple(a for a in batch if access.offset.coefficient(a) != 0)
    if len(batch) > 3:
        return "more than five dimensions"
    steps = (*(access.offset.coefficient(a) for a in batch), *matrix.strides[:-1])
    if any(map(is_negative, steps)):
        return f"{access.buffer} is read backwards"
    lanes = TMA_BYTES // matrix.dtype.bytes
    if any(known_factor(s) % lanes for s in (*steps, matrix.offset)):
        return f"{access.buffer} is not aligned to {TMA_BYTES} bytes in each row"
    extents = (*map(accesses.comp.extent, batch), *matrix.shape)
    return replace(
        matrix, dims=(*batch, *matrix.dims), shape=extents, strides=(*steps, 1))

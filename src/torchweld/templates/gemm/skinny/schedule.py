"""Products of few rows on Hopper: the form "gluon stream", which reads the right factor once, at
the speed of memory.

A program has `block_n` columns and its share of the depth. What TMA has copied of the right factor
is the left operand of wgmma, which has 64 rows and more, and the few rows of the left factor are
its columns, 8 and more. Only the first row of tiles has shares of the depth, so that their scratch
has a known size; where the number of rows is known at the call only, there may be more.

The ring of stages takes the whole shared memory of a multiprocessor, and it is filled with the
right factor before the kernel in front has ended, where that is a parameter, which no kernel of the
program writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torchweld.ir import size
from torchweld.ir.access import Accesses
from torchweld.ir.contraction import Contraction, bad_factors
from torchweld.ir.nodes import store_axes, value_axes
from torchweld.targets.target import Target
from torchweld.templates.gemm.concatenation import Piece, pieces_of
from torchweld.templates.gemm.hopper.schedule import SHARED_BYTES
from torchweld.templates.gemm.hopper.windows import Window, row_window, window
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.triton.schedule import FEW_SPLITS, STREAM_ROWS
from torchweld.templates.pointwise_reduce.gpu.schedule import extent, next_pow2

MIN_ROWS = 8  # columns of wgmma
MAX_STAGES = 24
MIN_STEPS = 2  # of a share of the depth
_MOST_PRODUCTS = 3
# (block_n, block_k), the most promising first
_SHAPES = ((64, 128), (128, 128), (64, 64), (128, 64))


@dataclass(frozen=True, slots=True)
class Factors:
    """Of one piece: the left factor of all its products, and the right one of each."""

    left: Window
    right: tuple[Window, ...]


def supports(accesses: Accesses, contraction: Contraction, table: Target) -> str | None:
    """None if the form can make these products, else why not."""
    if table.capability[0] != 9:
        return f"{table.name} is no Hopper GPU"
    pieces = pieces_of(accesses, contraction)
    reason = next((r for p in pieces if (r := _unsupported(p))), None)
    if reason is None and len({tuple(w.dims for w in factors(p).right) for p in pieces}) > 1:
        return "merged products have different layouts"
    return reason


def _unsupported(piece: Piece) -> str | None:
    accesses, c = piece.accesses, piece.contraction
    if not c.plain:
        return "a factor is computed before it is multiplied"
    if c.batch or len(c.products) > _MOST_PRODUCTS:
        return "too many products at once"
    if any(s.combine for s in accesses.comp.stores):
        return "a store combines with what is there"
    axes, depth = value_axes(accesses.comp.body), frozenset(c.depth)
    if any(depth & store_axes(accesses.comp, s, axes) for s in accesses.comp.stores):
        return "a result varies along the depth"
    if any(a.extent == 0 for a in accesses.comp.axes):
        return "the product is empty"
    if not all(isinstance(extent(accesses, axes), int) for axes in (c.columns, c.depth)):
        return "the size of the right factor is known only at the call"
    if (reason := bad_factors(accesses, c)) is not None:
        return reason
    found = factors(piece)
    if isinstance(found, Factors) and not any(found.right[0].divides(n) for n, _ in _SHAPES):
        return f"heads of {found.right[0].width} columns fill no tile"
    return found if isinstance(found, str) else None


def factors(piece: Piece) -> Factors | str:
    """How TMA copies the factors of a piece, or why it cannot."""
    lefts = {_left(piece, p.left_load) for p in piece.contraction.products}
    rights = tuple(_right(piece, p.right_load) for p in piece.contraction.products)
    reason = next((w for w in (*lefts, *rights) if isinstance(w, str)), None)
    if reason is not None:
        return reason
    return Factors(*lefts, rights) if len(lefts) == 1 else "several left factors"


def _left(piece: Piece, load: int) -> Window | str:
    """Of a single row, a matrix of one row."""
    accesses, c = piece.accesses, piece.contraction
    access, dtype = accesses.loads[load], accesses.comp.body[load].dtype
    if c.rows:
        return window(accesses, c, access, dtype, ("rows", "depth"))
    return row_window(accesses, access, dtype, (), c.depth, ("rows", "depth"))


def _right(piece: Piece, load: int) -> Window | str:
    accesses, c, sides = piece.accesses, piece.contraction, ("columns", "depth")
    access, dtype = accesses.loads[load], accesses.comp.body[load].dtype
    found = window(accesses, c, access, dtype, sides)
    if isinstance(found, Window) or len(c.columns) != 2 or c.batch:
        return found
    apart = replace(c, batch=c.columns[:1], columns=c.columns[1:])
    found = window(accesses, apart, access, dtype, sides)
    heads = isinstance(found, Window) and found.dims[1:] == sides
    return replace(found, dims=("heads", *sides)) if heads else f"{access.buffer}: no heads"


def candidates(
    accesses: Accesses,
    contraction: Contraction,
    table: Target,
    hints: Mapping[str, int] | None = None,
) -> Iterator[ProductSchedule]:
    """The default first, then what a tuner may time; none where there are too many rows."""
    pieces = pieces_of(accesses, contraction)
    rows = max(1, size.hint(extent(accesses, contraction.rows), hints or {}))
    if rows > STREAM_ROWS:
        return
    few = has_known_rows(accesses, contraction) and not _lies_along_rows(map(factors, pieces))
    block_m = max(MIN_ROWS, next_pow2(rows)) if few else STREAM_ROWS  # there may be more
    first = ProductSchedule("gluon stream", block_m, 64, 64, 4, 2, 1, early=True)
    found: set[ProductSchedule] = set()
    for block_n, block_k in _shapes(block_m, sum(p.columns for p in pieces), table.units):
        shape = replace(first, block_n=block_n, block_k=block_k, num_warps=block_n // 16)
        for s in _shared(shape, pieces, table):
            if s not in found and valid(s, accesses, contraction):
                found.add(s)
                yield s


def _lies_along_rows(found: Iterable[Factors]) -> bool:
    """Whether the left factor is contiguous along the rows. Two programs with tiles of 8 such rows,
    and no others, ended in an illegal access on an H100 (Triton 3.6); tiles of 64 were right. Some
    binaries of such tiles have the fault that runtime/sass.py mends; mended ones have not run."""
    return any(f.left.dims[-1] == "rows" for f in found)


def _shapes(block_m: int, columns: int, units: int) -> list[tuple[int, int]]:
    """Where tiles of the left factor are as large as narrow ones of the right, and those many, wide
    ones come first: 1 x 2048 x 128256 in tiles of 64 rows takes 195 us on an H100, narrow 278."""
    narrowest = min(block_n for block_n, _ in _SHAPES)
    if block_m < narrowest or columns <= narrowest * units:
        return list(_SHAPES)
    return sorted(_SHAPES, key=lambda shape: -shape[0])


def _shared(
    shape: ProductSchedule, pieces: tuple[Piece, ...], table: Target
) -> Iterator[ProductSchedule]:
    """With as many shares of the depth as there are idle multiprocessors for. Where there are more
    tiles than multiprocessors, two blocks are on each."""
    accesses, c = pieces[0].accesses, pieces[0].contraction
    tiles = sum(-(-p.columns // shape.block_n) for p in pieces)
    steps = -(-extent(accesses, c.depth) // shape.block_k)
    shares = min(FEW_SPLITS, steps // MIN_STEPS, table.units // tiles)
    blocks = (2, 1) if tiles > table.units else (1,)
    for wanted in dict.fromkeys((max(1, shares), max(1, shares // 2))):
        splits = -(-steps // -(-steps // wanted))  # without those that would have no steps
        for count in blocks:
            yield replace(shape, splits=splits, stages=_stages(shape, pieces[0], count))


def _stages(s: ProductSchedule, piece: Piece, blocks: int) -> int:
    """That fit into the shared memory of a multiprocessor beside those of other blocks."""
    space = SHARED_BYTES // blocks - _rest_bytes(s)
    return min(MAX_STAGES, space // _stage_bytes(s, len(piece.contraction.products)))


def _stage_bytes(s: ProductSchedule, products: int) -> int:
    return 2 * s.block_k * (s.block_m + products * s.block_n)


def _rest_bytes(s: ProductSchedule) -> int:
    """In which products change places between threads."""
    return 5 * s.block_m * s.block_n + 2048


def valid(schedule: ProductSchedule, accesses: Accesses, contraction: Contraction) -> bool:
    """Whether codegen can make a correct kernel of this: the only place where that is decided."""
    s, found = schedule, [factors(p) for p in pieces_of(accesses, contraction)]
    needs = s.stages * _stage_bytes(s, len(contraction.products)) + _rest_bytes(s)
    return (
        s.form == "gluon stream"
        and s.block_m in (8, 16, 32, 64)
        and (s.block_m == STREAM_ROWS or not _lies_along_rows(found))
        and s.block_n in (64, 128)
        and s.block_k in (64, 128)
        and s.num_warps == s.block_n // 16
        and 2 <= s.stages <= MAX_STAGES
        and needs <= SHARED_BYTES
        and all(w.divides(s.block_n) for f in found for w in f.right)
        and (s.splits == 1 or _splittable(s, accesses, contraction))
    )


def _splittable(s: ProductSchedule, accesses: Accesses, c: Contraction) -> bool:
    """Whether each share has some depth."""
    steps = -(-extent(accesses, c.depth) // s.block_k)
    return 1 < s.splits <= FEW_SPLITS and -(-steps // s.splits) * (s.splits - 1) < steps


def has_known_rows(accesses: Accesses, c: Contraction) -> bool:
    return isinstance(extent(accesses, c.rows), int)

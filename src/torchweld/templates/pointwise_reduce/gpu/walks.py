"""How a looped kernel walks along its columns: which blocks need masks, and where they begin.

A mask keeps Triton from loading 16 bytes at a time, unless it sees that eight elements share one.
So only the blocks at the ends of a row have masks. Where rows are not a multiple of 16 bytes apart
(an odd vocabulary), blocks begin at such multiples, not at the row's first element."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from torchweld.ir.affine import Affine, constant
from torchweld.ir.nodes import Scan
from torchweld.ir.size import Size
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel


@dataclass(frozen=True, slots=True)
class Walk:
    """A loop over blocks of columns, `first` to `end`. `number`: where a block is; `covered`:
    columns that they cover, None if some are out of bounds."""

    first: str
    end: str
    number: str
    covered: Size | None

    @property
    def steps(self) -> str:
        """Arguments of `range`."""
        return self.end if self.first == "0" else f"{self.first}, {self.end}"

    @property
    def mirrored(self) -> str:
        """The block of a `step`, from the last to the first."""
        before = "" if self.first == "0" else f"{self.first} + "
        return f"{before}{self.end} - 1 - step"


def walks(k: Kernel, backwards: bool = False) -> list[Walk]:
    """Whole blocks need no masks, whose loads are then wide whatever the length; the blocks at the
    ends of a row come after them, or before if `backwards`."""
    found = _forwards(k)
    return found[::-1] if backwards else found


def _forwards(k: Kernel) -> list[Walk]:
    length, block = k.columns, k.block_columns
    if k.schedule.splits > 1:
        step = block * k.schedule.splits
        per_share = quotient(k, length, step, up=True)
        covered = rounded(length, step)
        return [Walk("0", f"{per_share}", f"share * {per_share} + block", covered)]
    if k.row_start is not None:
        return _walks_from_aligned(k, length, block)
    whole, every = quotient(k, length, block), quotient(k, length, block, up=True)
    if not _worth_peeling(k):
        return [Walk("0", f"{every}", "block", rounded(length, block))]
    return [Walk("0", f"{whole}", "block", length), Walk(f"{whole}", f"{every}", "block", None)]


def first_column(k: Kernel) -> str:
    """Of a share, or of a row."""
    if k.schedule.splits == 1:
        return "0"
    per_share = quotient(k, k.columns, k.block_columns * k.schedule.splits, up=True)
    return f"share * {per_share} * {k.block_columns}"


def whole_blocks_apart(k: Kernel) -> list[tuple[str, Size | None]]:
    """The branches of a kernel without loops, by the number of its `block`, and the columns that
    each covers: one without masks if a length like 1001 would make them narrow."""
    length, step = k.columns, k.block_columns
    whole = f"block < {quotient(k, length, step)}"
    if k.row_start is not None:
        return [(f"if (block > 0) & ({whole}):", length), ("else:", None)]
    covered = rounded(length, step)
    wide = (16 // a.bytes for a in k.accesses.all if k.start_of_row(a) is not None)
    narrow = any(not _divides(lanes, constant(length)) for lanes in wide)
    if covered == length or not narrow or (isinstance(length, int) and length < 2 * step):
        return [("", covered)]
    return [(f"if {whole}:", length), ("else:", None)]


def _worth_peeling(k: Kernel) -> bool:
    """Rows of several blocks, not a whole number of them, along which memory runs."""
    length, block = k.columns, k.block_columns
    if isinstance(length, int) and (length % block == 0 or length < 2 * block):
        return False
    return any(k.start_of_row(a) is not None for a in k.accesses.all)


def _walks_from_aligned(k: Kernel, length: Size, block: int) -> list[Walk]:
    """Blocks begin up to row_start.lanes - 1 columns early: the first and the last are masked."""
    every = quotient(k, length + k.row_start.lanes - 1, block, up=True)
    whole = quotient(k, length, block)
    whole = whole if isinstance(length, int) else f"tl.maximum({whole}, 1)"
    first = f"tl.where(block == {whole} - 1, 0, block)"
    return [Walk("1", f"{whole}", "block", length), Walk(f"{whole} - 1", f"{every}", first, None)]


def quotient(k: Kernel, length: Size, step: int, up: bool = False) -> str:
    if isinstance(length, int):
        return str(-(-length // step) if up else length // step)
    return f"tl.cdiv({k.size(length)}, {step})" if up else f"({k.size(length)} // {step})"


def align_rows(k: Kernel) -> None:
    """Where rows are not a multiple of 16 bytes apart: blocks that begin at such a multiple."""
    starts = [
        (start, a.bytes)
        for a in k.accesses.all
        if (start := k.start_of_row(a)) is not None and not _before_buffer(start)
    ]
    scans = any(isinstance(i, Scan) for i in k.body)
    if not starts or scans or k.block_rows > 1 or k.schedule.splits > 1:
        return
    common = max((s for s, _ in starts), key=[s for s, _ in starts].count)
    lanes = 16 // min(n for s, n in starts if s == common)
    fits = lanes <= k.block_columns  # else a row begins behind its first block, which has the mask
    if fits and _worth_peeling(k) and not _divides(lanes, common):
        k.align_rows(common, lanes)


def _before_buffer(start: Affine) -> bool:
    """Whether a row may begin before its buffer, in what is never read (a window's first columns):
    // rounds that towards zero."""
    return any(isinstance(s, int) and s < 0 for s in (start.const, *(c for _, c in start.terms)))


def _divides(lanes: int, start: Affine) -> bool:
    sizes = [start.const, *(c for _, c in start.terms)]
    return all(
        (s if isinstance(s, int) else gcd(*(c for _, c in s.terms))) % lanes == 0 for s in sizes
    )


def rounded(size: Size, block: int) -> Size | None:
    """Points that a grid of ceil(size / block) programs covers; None if not known."""
    if block == 1:
        return size
    return -(-size // block) * block if isinstance(size, int) else None

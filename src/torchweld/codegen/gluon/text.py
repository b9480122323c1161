"""Pieces of the text of Gluon kernels: functions that they call, blocks, slices of accumulators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Protocol, TypeVar

PLACE = '''

@gluon.jit
def place(tile, tiles_r, tiles_c):
    """Row and column of a tile: GROUP rows of tiles at a time, column by column, so that what they
    share stays in the last-level cache."""
    width = GROUP * tiles_c
    first = tile // width * GROUP
    rows = tl.minimum(tiles_r - first, GROUP)
    return first + tile % width % rows, tile % width // rows
'''

HALVES = '''

@gluon.jit
def halves(tile, LAYOUT: gl.constexpr):
    """The left and the right half of the columns: which thread holds what stays."""
    ROWS: gl.constexpr = tile.shape[0]
    COLUMNS: gl.constexpr = tile.shape[1] // 2
    left, right = tile.reshape((ROWS, 2, COLUMNS)).permute((0, 2, 1)).split()
    left = gl.convert_layout(left, LAYOUT, assert_trivial=True)
    return left, gl.convert_layout(right, LAYOUT, assert_trivial=True)
'''


def accumulator_layout(columns: int, warps: int) -> str:
    return (f"gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[{warps}, 1], "
            f"instr_shape=[16, {columns}, 16])")  # fmt: skip


def store_layout(columns: int, warps: int) -> str:
    """In which eight neighbours share a thread."""
    across = min(columns // 8, 32)
    return f"gl.BlockedLayout([1, 8], [{32 // across}, {across}], [{warps}, 1], [1, 0])"


def halvings(columns: int, last: int) -> list[int]:
    """Widths from that of an accumulator down to that of a slice."""
    return [columns] if columns == last else [columns, *halvings(columns // 2, last)]


def slices(name: str, columns: int, wanted: int) -> tuple[list[str], list[str]]:
    """Lines that cut an accumulator, and the names of its slices from left to right."""
    if columns == wanted:
        return [], [name]
    left, right = f"{name}l", f"{name}r"
    lines = [f"{left}, {right} = halves({name}, ACC_{columns // 2})"]
    first, lefts = slices(left, columns // 2, wanted)
    second, rights = slices(right, columns // 2, wanted)
    return [*lines, *first, *second], [*lefts, *rights]


def plus(number: int) -> str:
    return f" + {number}" if number else ""


def block(header: str, lines: Iterable[str]) -> list[str]:
    return [header, *(f"    {line}" for line in lines)]


class _Counted(Protocol):
    """`first`: the number of its first tile along the columns."""

    first: int


_Piece = TypeVar("_Piece", bound=_Counted)


def by_piece(pieces: Sequence[_Piece], lines: Callable[[_Piece, str], list[str]]) -> list[str]:
    """What `lines` gives for that of several pieces in which tile `n` is, told which of its tiles
    it is."""
    text, (first, *others) = [], pieces
    for piece, after in zip_longest(pieces, others):
        n = f"(n - {piece.first})" if piece.first else "n"
        test = "if" if piece is first else "elif"
        header = f"{test} n < {after.first}:" if after else "else:"
        text += block(header, lines(piece, n)) if others else lines(piece, n)
    return text


def function(name: str, arguments: Iterable[str], lines: Iterable[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"\n\n@gluon.jit\ndef {name}({', '.join(arguments)}):\n{body}\n"

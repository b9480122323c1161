"""Blocks of a loop over columns, and the programs that share a row."""

from __future__ import annotations

# Columns of a block at least, and the share of its lanes that are at work.
_LEAST_BLOCK, BUSY_LANES = 32, 4 / 5


def busy_block(block: int, length: int) -> int:
    """As many of `block` columns at a time as leave most lanes of a loop over `length` at work."""
    while block > _LEAST_BLOCK and -(-length // block) * block * BUSY_LANES > length:
        block //= 2
    return block


def equal_shares(blocks: int, most: int, least: int) -> int:
    """As many programs as have equally many blocks, so that none needs masks; `most` where no
    number above `least` divides."""
    if blocks <= most:
        return max(1, blocks)
    return next((p for p in range(most, least, -1) if blocks % p == 0), most)


def programs_of_a_row(programs: int, length: int, block: int, wanted: int) -> int:
    """Shares of the columns that make `wanted` programs, unless half as many are there already."""
    if 2 * programs >= wanted:
        return 1
    most, blocks = min(wanted // max(1, programs), 1024), -(-length // block)
    return _nearest_shares(blocks, most)


def _nearest_shares(blocks: int, wanted: int) -> int:
    """A divisor of `blocks` from two thirds to three halves of `wanted`: the next above, as more
    programs keep more loads under way, or the next below."""
    if blocks <= wanted:
        return max(1, blocks)
    above = range(wanted, min(blocks, wanted * 3 // 2) + 1)
    near = (*above, *range(wanted, wanted * 2 // 3, -1))
    return next((p for p in near if blocks % p == 0), wanted)

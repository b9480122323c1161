"""How a Comp that makes products (ir/contraction.py) is tiled: a frozen record and the rules
that choose one. Four forms of kernel:

    gluon    persistent, warp-specialised, TMA: Hopper, rows and columns in tiles of 64 and more
    gluon stream
             few rows (decode) on Hopper: the right factor is streamed once, its depth shared
             by programs, and its first part before the kernel in front has ended
    triton   software-pipelined dots: any GPU from sm_80, any alignment, factors that are computed
    stream   few rows where the form above does not serve
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from torchweld.core.errors import InvalidIR
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.contraction import Contraction, contraction_of
from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.size import Size, product

_LEAST_SIDE = 16  # of a tile, for an instruction
_FOUR_WARPS = 128 * 64  # points of a tile that four warps hold
STREAMS = ("gluon stream", "stream")


@dataclass(frozen=True, slots=True)
class ProductSchedule:
    """Tiles of `block_m` rows by `block_n` columns of each product, `block_k` of the depth a step.
    `group`: rows of tiles that are walked together, so that columns stay in the last-level cache.
    `splits`: programs that share one tile's depth. `early`: the kernel begins while the one before
    it still runs. Of the form gluon: `programs`, blocks at a time,
    each of which walks over tiles; `pingpong`: four warps have a tile of their own, so that the
    epilogue of one runs beside the products of another; `box`: `block_m` as places along each axis
    of the rows, where these are the places of an image."""

    form: Literal["gluon", "gluon stream", "triton", "stream"]
    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    stages: int
    group: int = 8
    splits: int = 1
    early: bool = False
    programs: int = 132
    pingpong: bool = False
    box: tuple[int, ...] = ()

    def within(self, columns: int, depth: int) -> ProductSchedule:
        """No wider and deeper than that: groups of 16 channels are no tile of 128 columns."""
        n, k = (max(_LEAST_SIDE, min(block, 1 << (size - 1).bit_length()))
                for block, size in ((self.block_n, columns), (self.block_k, depth)))  # fmt: skip
        few = n < self.block_n and self.block_m * n <= _FOUR_WARPS
        warps = 4 if few else self.num_warps
        return replace(self, block_n=n, block_k=k, num_warps=min(self.num_warps, warps))

    def row_tiles(self, extents: Sequence[Size]) -> Size:
        """How many tiles cover rows of these extents; no fewer, where that is not known."""
        if self.box:
            return prod(-(-n // b) for n, b in zip(extents, self.box))
        rows = product(extents)
        return -(-rows // self.block_m) if isinstance(rows, int) else rows


def tiled(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    schedule: ProductSchedule,
    hints: Mapping[str, int] | None,
    valid: Callable[[ProductSchedule, Accesses, Contraction], bool],
) -> tuple[Accesses, Contraction]:
    """The accesses and products of `comp`. Raises InvalidIR if it makes none, or a form's `valid`
    does not take the schedule."""
    accesses = addressed(comp, buffers, hints)
    contraction = contraction_of(accesses)
    if contraction is None or not valid(schedule, accesses, contraction):
        raise InvalidIR(f"{comp.name} cannot be tiled so: {schedule}")
    return accesses, contraction

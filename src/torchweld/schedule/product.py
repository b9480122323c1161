"""How a Comp that makes products (schedule/contraction.py) is tiled: a frozen record and the rules
that choose one. Four forms of kernel:

    gluon    persistent, warp-specialised, TMA: Hopper, rows and columns in tiles of 64 and more
    gluon stream
             few rows (decode) on Hopper: the right factor is streamed once, its depth shared
             by programs, and its first part before the kernel in front has ended
    triton   software-pipelined dots: any GPU from sm_80, any alignment, factors that are computed
    stream   few rows where the form above does not serve
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

STREAMS = ("gluon stream", "stream")


@dataclass(frozen=True, slots=True)
class ProductSchedule:
    """Tiles of `block_m` rows by `block_n` columns of each product, `block_k` of the depth a step.
    `group`: rows of tiles that are walked together, so that columns stay in the last-level cache.
    `splits`: programs that share one tile's depth. `early`: the kernel begins while the one before
    it still runs. Of the form gluon: `programs`, blocks at a time,
    each of which walks over tiles; `pingpong`: four warps have a tile of their own, so that the
    epilogue of one runs beside the products of another."""

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

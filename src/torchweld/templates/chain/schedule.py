"""How a chain is tiled: a frozen record, what is refused, and the candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.size import hint
from torchweld.targets.target import Target
from torchweld.templates.chain.form import Chain, Width, extent
from torchweld.templates.pointwise_reduce.gpu.schedule import next_pow2

LEAST_WIDTH = 16  # that tensor cores take; narrower widths are padded
MAX_ACCUMULATORS = 128  # float32 registers of a thread that tiles and totals hold at a time
MAX_PROGRAMS = 4  # of a multiprocessor: more are slowed by each other's stores
_BATCH = 65535  # of the second dimension of a grid

# (block_rows, warps) by falling size: the first that fits, and makes enough tiles, is the default.
_TILES = ((128, 8), (128, 4), (64, 4), (32, 4), (16, 4))


@dataclass(frozen=True, slots=True)
class ChainSchedule:
    """Tiles of `block_rows`; `programs` of each point of the batch, each of which walks over tiles
    that many apart."""

    block_rows: int
    num_warps: int
    programs: int


@dataclass(frozen=True, slots=True)
class Work:
    """A chain that is to be tiled, and where."""

    comp: Comp
    buffers: Mapping[str, Buffer]
    chain: Chain
    target: Target
    hints: Mapping[str, int]

    @property
    def rows(self) -> int:
        """Typically, at least one."""
        return max(1, hint(extent(self.comp, self.chain.rows), self.hints))

    @property
    def batch(self) -> int:
        return max(1, hint(extent(self.comp, self.chain.batch), self.hints))

    @property
    def item_bytes(self) -> int:
        """Of an element of a factor."""
        return max(self.comp.body[one.left].dtype.bytes for one in self.chain.links)

    def padded(self, width: Width) -> int:
        return padded(extent(self.comp, width))

    def tiles(self, block_rows: int) -> int:
        return ceil(self.rows / block_rows)

    def steps(self, s: ChainSchedule) -> int:
        """Tiles that a program walks over."""
        return ceil(self.tiles(s.block_rows) / s.programs)

    @property
    def weight_bytes(self) -> int:
        """Of all weights in shared memory."""
        sizes = (self.padded(one.depth) * self.padded(one.columns) for one in self.chain.links)
        return self.item_bytes * sum(sizes)

    def shared_bytes(self, block_rows: int) -> int:
        """Of the weights, and of tiles that factors pass through: one of a link, two of a
        total."""
        widest = max(map(self.padded, self.chain.widths))
        tiles = 2 if self.chain.gradients else 1
        return self.weight_bytes + tiles * block_rows * widest * self.item_bytes

    def registers(self, block_rows: int, num_warps: int) -> int:
        """Of a thread, for the widest accumulator, the tile that it is multiplied from, and all
        totals."""
        widest = max(map(self.padded, self.chain.widths))
        totals = 0
        for total in self.chain.totals:
            one, *more = map(self.padded, total.widths)
            totals += one * (more[0] if more else 1)
        return (block_rows * widest * 3 // 2 + totals) // (32 * num_warps)


def padded(size: int) -> int:
    """Lanes of a tile along a width."""
    return max(LEAST_WIDTH, next_pow2(size))


def supports(work: Work) -> str | None:
    """None if the template can make the chain; else why not."""
    if work.target.capability < (8, 0):
        return "it needs the tensor cores of sm_80"
    sizes = [extent(work.comp, w) for w in (*work.chain.widths, work.chain.batch)]
    if not all(isinstance(n, int) and n > 0 for n in sizes):
        return "a width is known only at the call"
    if work.batch > _BATCH:
        return "too many matrices for one grid"
    if next(candidates(work), None) is None:
        kilobytes = work.shared_bytes(_TILES[-1][0]) >> 10
        return f"its weights and tiles do not fit on chip ({kilobytes} KB of shared memory)"
    return None


def candidates(work: Work) -> Iterator[ChainSchedule]:
    """The default first: of the tiles that fit, the largest that give each multiprocessor one."""
    fit = [t for t in _TILES if _fits(work, *t)]
    enough = [t for t in fit if work.batch * work.tiles(t[0]) >= work.target.units]
    for block_rows, warps in dict.fromkeys([*enough[:1], *fit]):
        yield ChainSchedule(block_rows, warps, _programs(work, block_rows))


def _fits(work: Work, block_rows: int, num_warps: int) -> bool:
    return (
        work.shared_bytes(block_rows) <= work.target.shared_bytes
        and work.registers(block_rows, num_warps) <= MAX_ACCUMULATORS
    )


def _programs(work: Work, block_rows: int) -> int:
    """For each point of the batch: as many as are at work at a time, in full waves."""
    resident = min(MAX_PROGRAMS, work.target.shared_bytes // work.shared_bytes(block_rows))
    at_a_time = ceil(work.target.units * max(1, resident) / work.batch)
    tiles = work.tiles(block_rows)
    return ceil(tiles / ceil(tiles / at_a_time))

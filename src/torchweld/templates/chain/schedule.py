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
from torchweld.templates.traffic import node_bytes

LEAST_WIDTH = 16  # that tensor cores take; narrower widths are padded
MOST_REGISTERS = 220  # of a thread, as `Work.registers` counts: beyond, ptxas spills
ITEM_BYTES = 2  # of an element of a factor
_MOST_BATCH = 65535  # of the second dimension of a grid

# (block_rows, warps), the best first. Several programs of four warps share a multiprocessor: while
# one waits for memory, another multiplies. Eight warps have registers for wider widths.
_TILES = ((64, 4), (64, 8), (32, 4), (32, 8), (16, 4))
# Of two products at once (gate and up) without wgmma: beside 64 rows, their weights spill.
_PAIRED = ((32, 4), (32, 8), (16, 4))


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
    def moved_bytes(self) -> int:
        """From memory and to it, each buffer once."""
        return node_bytes(self.comp, self.buffers, self.hints)

    @property
    def weight_bytes(self) -> int:
        """Of all weights."""
        sizes = (self.padded(one.depth) * self.padded(one.columns) for one in self.chain.links)
        return ITEM_BYTES * sum(sizes)

    @property
    def widest(self) -> int:
        return max(map(self.padded, self.chain.widths))

    @property
    def most_columns(self) -> int:
        """Of the widest width, or of several links that make the same one (gate and up)."""
        made: dict[Width, int] = dict.fromkeys(self.chain.widths, 0)
        for link in self.chain.links:
            made[link.columns] += self.padded(link.columns)
        return max(self.widest, *made.values())

    def padded(self, width: Width) -> int:
        return padded(extent(self.comp, width))

    def tiles(self, block_rows: int) -> int:
        """Of one point of the batch."""
        return ceil(self.rows / block_rows)

    def steps(self, s: ChainSchedule) -> int:
        """Tiles that a program walks over."""
        return ceil(self.tiles(s.block_rows) / s.programs)

    def shared_bytes(self, block_rows: int) -> int:
        """Of the weights, and of a tile on its way to tensor cores or to memory."""
        return self.weight_bytes + block_rows * self.widest * ITEM_BYTES

    def registers(self, block_rows: int, num_warps: int) -> int:
        """Of a thread: addresses, the most accumulators of one width and what they are made of.
        Fitted to what ptxas says of chains of 32 to 256 columns."""
        return 40 + int(1.5 * block_rows * self.most_columns / (32 * num_warps))


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
    if work.batch > _MOST_BATCH:
        return "too many matrices for one grid"
    if next(candidates(work), None) is None:
        kilobytes, registers = work.shared_bytes(_TILES[-1][0]) >> 10, work.registers(*_TILES[-2])
        return f"too wide for a chip: {kilobytes} KB, {registers} registers of a thread, or more"
    return None


def candidates(work: Work) -> Iterator[ChainSchedule]:
    """The default first: of the tiles that fit, the first that give each multiprocessor one."""
    fit = [t for t in _table(work) if _fits(work, *t)]
    enough = [t for t in fit if work.batch * work.tiles(t[0]) >= work.target.units]
    for block_rows, warps in dict.fromkeys([*(enough or fit[-1:])[:1], *fit]):
        yield ChainSchedule(block_rows, warps, _programs(work, block_rows))


def _table(work: Work) -> tuple[tuple[int, int], ...]:
    from_shared = "wgmma" in work.target.features
    return _PAIRED if work.most_columns > work.widest and not from_shared else _TILES


def _fits(work: Work, block_rows: int, num_warps: int) -> bool:
    shared = work.shared_bytes(block_rows) <= work.target.shared_bytes
    return shared and work.registers(block_rows, num_warps) <= MOST_REGISTERS


def _programs(work: Work, block_rows: int) -> int:
    """For each point of the batch. Each has at least as many bytes of rows as of weights, if that
    leaves one for each multiprocessor."""
    tiles, units = work.tiles(block_rows), work.target.units
    tile_bytes = work.moved_bytes / (tiles * work.batch)
    steps = min(ceil(work.weight_bytes / tile_bytes), tiles * work.batch // units)
    return ceil(tiles / max(1, min(steps, tiles)))

"""The tiles of a Gluon product kernel: what TMA copies from where to where, the shared memory that
it takes, and the accumulators that hold products of tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchweld.codegen.source import DescriptorArg
from torchweld.ir.size import product
from torchweld.templates.gemm.hopper.epilogue import residual_name, result_name
from torchweld.templates.gemm.hopper.schedule import PARTS, Roles
from torchweld.templates.gemm.hopper.windows import Window
from torchweld.templates.gemm.schedule import ProductSchedule

_TYPES = {"bf16": "gl.bfloat16", "f16": "gl.float16", "f32": "gl.float32"}


@dataclass(frozen=True, slots=True)
class Memory:
    """`slots` (an expression) blocks of shared memory, swizzled as for the descriptor of `tile`."""

    name: str
    slots: str
    block: tuple[int, ...]
    tile: Tile

    @property
    def allocation(self) -> str:
        shape = ", ".join([self.slots, *map(str, self.block)])
        dtype = _TYPES[self.tile.window.dtype.name]
        return (f"{self.name} = gl.allocate_shared_memory({dtype}, [{shape}], "
                f"{self.tile.descriptor}.layout)")  # fmt: skip

    def matrix(self, slot: str, last: str) -> str:
        """A slot as a matrix whose last dimension is `last`."""
        text = f"{self.name}.index({slot})"
        if len(self.block) > 2:
            text += f".reshape(({product(self.block[:-1])}, {self.block[-1]}))"
        return text if self.tile.window.dims[-1] == last else f"{text}.permute((1, 0))"


@dataclass(frozen=True, slots=True)
class Tile:
    """What one copy moves. `column`: where it begins within the columns of an output tile; `memory`
    and `piece`: of the shared memory that it is in, as a whole or (start, length, dimension)."""

    name: str
    window: Window
    block: tuple[int, ...]
    memory: str
    column: int = 0
    piece: tuple[int, int, int] | None = None

    @property
    def descriptor(self) -> str:
        return f"d_{self.name}"

    @property
    def argument(self) -> DescriptorArg:
        w = self.window
        return DescriptorArg(w.buffer, w.shape, w.strides, self.block, w.offset, w.dtype.bytes)

    @property
    def bytes(self) -> int:
        return product(self.block) * self.window.dtype.bytes

    def slot(self, number: str) -> str:
        whole = f"{self.memory}.index({number})"
        return whole if self.piece is None else f"{whole}.slice{self.piece}"


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Of `columns`, of a left and a right factor in shared memory. It holds parts of `products`
    next to each other, all of them part number `part` of their tile's columns."""

    name: str
    columns: int
    left: Memory
    right: Memory
    products: tuple[int, ...]
    part: int = 0


@dataclass(frozen=True, slots=True)
class Tiles:
    """`staged`: of the factors; all in the order in which they are copied."""

    memories: tuple[Memory, ...]
    staged: tuple[Tile, ...]
    residuals: tuple[Tile, ...]
    results: tuple[Tile, ...]
    accumulators: tuple[Accumulator, ...]

    @property
    def all(self) -> tuple[Tile, ...]:
        return (*self.staged, *self.residuals, *self.results)


def tiles_of(roles: Roles, schedule: ProductSchedule, names: Sequence[str]) -> Tiles:
    """`names`: of the products."""
    factors = _side_by_side if _can_share(roles, schedule) else _apart
    memories, staged, accumulators = factors(roles, schedule, names)
    groups = "2 * " if schedule.pingpong else ""
    residuals = [(residual_name(v), w, "FETCHED") for v, w in roles.residuals.items()]
    results = [(result_name(p), w, f"{groups}SLOTS") for p, w in roles.results.items()]
    sides = {**roles.rows, "columns": roles.slice}
    passing = [(Tile(n, w, w.block(**sides), n), slots) for n, w, slots in (*residuals, *results)]
    memories += [Memory(t.name, slots, t.block, t) for t, slots in passing]
    tiles = [t for t, _ in passing]
    return Tiles(
        tuple(memories), tuple(staged), tuple(tiles[: len(residuals)]),
        tuple(tiles[len(residuals) :]), tuple(accumulators),
    )  # fmt: skip


def total_bytes(tiles: Iterable[Tile]) -> int:
    return sum(t.bytes for t in tiles)


def _can_share(roles: Roles, schedule: ProductSchedule) -> bool:
    """Whether two products have the left factor in common, and right ones that lie side by side in
    one piece of memory: one instruction makes both, and reads the left factor once."""
    left, right = zip(*roles.factors)
    kinds = {(w.dims, w.dtype) for w in right}
    distinct = (len(set(left)), len(set(right)), len(kinds)) == (1, 2, 1)
    return distinct and 2 * schedule.block_n in (64, 128, 256)


def _side_by_side(roles: Roles, schedule: ProductSchedule, names: Sequence[str]):
    columns, depth = schedule.block_n, schedule.block_k
    left, right = roles.factors[0][0], [w for _, w in roles.factors]
    x = Tile("x", left, left.block(**roles.rows, depth=depth), "x")
    dimension = right[0].dims.index("columns")
    ws = [Tile(_numbered("w", k), w, w.block(columns=columns, depth=depth), "w", 0,
               (k * columns, columns, dimension)) for k, w in enumerate(right)]  # fmt: skip
    xs = Memory("x", "STAGES", x.block, x)
    both = Memory("w", "STAGES", right[0].block(columns=2 * columns, depth=depth), ws[0])
    return [xs, both], [x, *ws], [Accumulator("".join(names), 2 * columns, xs, both, (0, 1))]


def _apart(roles: Roles, schedule: ProductSchedule, names: Sequence[str]):
    """An accumulator for each part of each product."""
    parts = PARTS[schedule.block_n]
    memories: dict[tuple[Window, int], Memory] = {}

    def memory(letter: str, window: Window, part: int, **sides: int) -> Memory:
        if (window, part) not in memories:
            others = {w for (w, _), m in memories.items() if m.name.startswith(letter)}
            count = len(others - {window})
            name = _numbered(letter, count) + ("ab"[part] if letter == "w" and parts[1:] else "")
            tile = Tile(name, window, window.block(**sides), name, sum(parts[:part]))
            memories[window, part] = Memory(name, "STAGES", tile.block, tile)
        return memories[window, part]

    accumulators = []
    for part, columns in enumerate(parts):
        for number, (x, w) in enumerate(roles.factors):
            left = memory("x", x, 0, **roles.rows, depth=schedule.block_k)
            right = memory("w", w, part, columns=columns, depth=schedule.block_k)
            name = names[number] + ("ab"[part] if parts[1:] else "")
            accumulators.append(Accumulator(name, columns, left, right, (number,), part))
    found = list(memories.values())
    return found, [m.tile for m in found], accumulators


def _numbered(letter: str, number: int) -> str:
    return f"{letter}{number + 1}" if number else letter

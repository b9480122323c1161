"""Gluon source of products with their epilogue, for Hopper: persistent blocks, one on each
multiprocessor, in which one warp copies and the others multiply.

    produce   has the TMA unit fill a ring of stages with tiles of the factors, as far ahead as
              there is space, across the borders of output tiles
    fetch     the same of the residual tiles that the epilogue reads, slice by slice
    consume   multiplies what has arrived, two steps in flight, then calls `finish` for each slice
    finish    the epilogue (epilogue.py); what depends on rows alone is left to `prepare`

Where matrices lie side by side (concatenation.py), tiles are counted through all of them;
each has descriptors and a `finish` of its own, and the shared memory of the first.

Barriers: `ready[s]` says that stage s has arrived, `empty[s]` that it has been used; `came` and
`used` the same of residuals. With `pingpong` two groups of warps consume, each every other tile. A
barrier tells only whether an even or an odd number of turns is over, so nobody may wait for one
beyond the next: group g begins its products when `loops[g]` says that all of the other group's have
arrived, and with residuals its epilogue when `ends[g]` says that the other's is over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchweld.codegen.gluon.names import GRID_CONTROL, HEADER, dialect
from torchweld.codegen.gluon.text import (
    HALVES,
    PLACE,
    accumulator_layout,
    block,
    by_piece,
    function,
    halvings,
    slices,
    store_layout,
)
from torchweld.codegen.source import (
    BufferArg,
    KernelArg,
    KernelBundle,
    KernelSource,
    SizeArg,
)
from torchweld.codegen.triton import scalars
from torchweld.ir.access import Accesses
from torchweld.ir.contraction import Contraction, column_sums
from torchweld.ir.nodes import Buffer, Comp
from torchweld.targets.find import named_target
from torchweld.templates.gemm.column_sums import sums_of
from torchweld.templates.gemm.concatenation import Piece, pieces_of
from torchweld.templates.gemm.hopper.epilogue import Epilogue
from torchweld.templates.gemm.hopper.schedule import Roles, roles_of, valid
from torchweld.templates.gemm.hopper.tiles import Accumulator, Tile, Tiles, tiles_of, total_bytes
from torchweld.templates.gemm.hopper.walk import EVERY_TILE, corner, walk_of
from torchweld.templates.gemm.schedule import ProductSchedule, tiled
from torchweld.templates.gemm.triton import generate as triton_product
from torchweld.templates.gemm.triton import schedule as product_triton

COPY_REGISTERS = 24  # of a thread that has TMA copy
CONSUMER_REGISTERS = 240  # of a thread of the second group with pingpong
MAX_REGISTERS = 168  # of a thread of twelve warps, four of which are for those that copy


def generate(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    schedule: ProductSchedule,
    hints: Mapping[str, int] | None = None,
) -> KernelBundle:
    """The kernel of `comp`, whose products contraction_of finds, tiled by `schedule`. Raises
    InvalidIR if the schedule does not fit."""
    accesses, contraction = tiled(comp, buffers, schedule, hints, valid)
    sums = sums_of(accesses, contraction, buffers, schedule)
    pieces, every = pieces_of(accesses, contraction), {**buffers, **sums.buffers}
    source = _Writer(pieces, every, schedule, sums.scratch).source()
    other = _otherwise(comp, buffers, accesses, contraction, schedule, hints)
    sources = replace(source, otherwise=other), *sums.sources(every, early=True)
    return KernelBundle(comp.name, sources, tuple(sums.scratch.values()))


def _otherwise(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    accesses: Accesses,
    contraction: Contraction,
    schedule: ProductSchedule,
    hints: Mapping[str, int] | None,
) -> KernelSource:
    """The same in Triton, for addresses that TMA does not take: one kernel without scratch but for
    the sums of tiles, which have the same rows."""
    tiles = product_triton.first(accesses, contraction, named_target("H100"), hints)
    if column_sums(accesses, contraction):
        tiles = ProductSchedule("triton", schedule.block_m, 64, 64, 4, 3)
    return triton_product.generate(comp, buffers, replace(tiles, splits=1), hints).sources[0]


@dataclass(frozen=True, slots=True)
class _Piece:
    """`prepare`, `finish`: names of its functions; `first`: tile, along the columns."""

    prepare: str
    finish: str
    first: int
    epilogue: Epilogue
    tiles: Tiles


class _Writer:
    """The text of one kernel, function by function. `tiles`, `epilogue`, `roles`: of the first
    piece; `descriptors`: their names, by what they are for."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        buffers: Mapping[str, Buffer],
        schedule: ProductSchedule,
        sums: Mapping[int, Buffer],
    ) -> None:
        first, contraction = pieces[0].accesses, pieces[0].contraction
        self.buffers, self.schedule, self.sums = buffers, schedule, sums
        used = roles_of(pieces, schedule)
        self.roles, self.pieces = used[0], self._pieces(pieces, used)
        self.epilogue, self.tiles = self.pieces[0].epilogue, self.pieces[0].tiles
        self.descriptors: dict[Tile, str] = {}
        for number, tile in ((n, t) for n, p in enumerate(self.pieces) for t in p.tiles.all):
            self.descriptors.setdefault(tile, _numbered(tile.descriptor, number))
        self.name = re.sub(r"\W", "_", first.comp.name)
        columns = [p.columns for p in pieces]
        self.walk = walk_of(first, contraction, columns, schedule, self.epilogue.size)

    def _pieces(self, pieces: Sequence[Piece], roles: Sequence[Roles]) -> list[_Piece]:
        made: list[_Piece] = []
        first, s = 0, self.schedule
        for number, (piece, used) in enumerate(zip(pieces, roles)):
            epilogue = Epilogue(piece.accesses, piece.contraction, self.buffers, s, used,
                                made[0].epilogue if made else None, self.sums)  # fmt: skip
            epilogue.emit()
            tiles = tiles_of(used, s, epilogue.accumulators)
            names = (_numbered(name, number) for name in ("prepare", "finish"))
            made.append(_Piece(*names, first, epilogue, tiles))
            first = first + -(-piece.columns // s.block_n) if len(pieces) > 1 else 0
        return made

    def source(self) -> KernelSource:
        functions = [self._prepare(p) for p in self.pieces if p.epilogue.prepared]
        functions += [*map(self._finish, self.pieces), self._consume(), self._produce()]
        functions += [self._fetch()] if self.tiles.residuals else []
        functions += [self._entry()]
        helpers = [PLACE, *([HALVES] if self._is_sliced else []), *self.epilogue.helpers.values()]
        header = HEADER + GRID_CONTROL if self.schedule.early else HEADER
        text = header + dialect("".join([self._constants(), *helpers, *functions]))
        pointers, sizes = self.epilogue.arguments
        args: list[KernelArg] = [t.argument for t in self.descriptors]
        args += [*map(BufferArg, pointers), *map(SizeArg, sizes)]
        signature = [scalars.SIGNATURE[t.window.dtype] for t in self.descriptors]
        signature += [f"*{scalars.SIGNATURE[self.buffers[b].dtype]}" for b in pointers]
        signature += ["i64"] * len(sizes)
        return KernelSource(
            "gluon", self.name, text, tuple(args), (self.walk.grid,), (), tuple(signature),
            self.schedule.num_warps, max_registers=MAX_REGISTERS, early=self.schedule.early,
        )  # fmt: skip

    @property
    def _is_sliced(self) -> bool:
        return any(a.columns != self.roles.slice for a in self.tiles.accumulators)

    # arguments

    @property
    def _sizes(self) -> list[str]:
        return self.epilogue.memory[len(self.epilogue.arguments[0]) :]

    @property
    def _finish_memory(self) -> list[str]:
        """What `finish` is passed beside its place and descriptors."""
        residuals, results = self.tiles.residuals, self.tiles.results
        barriers = ["came", "used"] if residuals else []
        return [*(t.name for t in (*residuals, *results)), *barriers, *self.epilogue.memory]

    @property
    def _consume_arguments(self) -> list[str]:
        order = [b for b in ("loops", "ends") if b in self._barriers]
        results = (self.descriptors[t] for p in self.pieces for t in p.tiles.results)
        return [*self._staged, "ready", "empty", *order, *results, *self._finish_memory]

    @property
    def _produce_arguments(self) -> list[str]:
        staged = dict.fromkeys(self.descriptors[t] for p in self.pieces for t in p.tiles.staged)
        return [*staged, *self._staged, "ready", "empty", *self._sizes]

    @property
    def _staged(self) -> list[str]:
        """Names of memory."""
        return list(dict.fromkeys(t.memory for t in self.tiles.staged))

    @property
    def _fetch_arguments(self) -> list[str]:
        residuals = self.tiles.residuals
        return [*(t.descriptor for t in residuals), *(t.name for t in residuals), "came", "used",
                *self._sizes]  # fmt: skip

    # functions

    def _constants(self) -> str:
        s = self.schedule
        numbers = {"ROWS": s.block_m, "TILE_COLUMNS": s.block_n, "COLUMNS": self.roles.slice,
                   "DEPTH": s.block_k, "STAGES": s.stages, "GROUP": s.group}  # fmt: skip
        numbers |= {"SLOTS": self.roles.result_slots} if self.tiles.results else {}
        numbers |= {"FETCHED": self.roles.residual_slots} if self.tiles.residuals else {}
        lines = [f"{name} = gl.constexpr({number})" for name, number in numbers.items()]
        every = (halvings(a.columns, self.roles.slice) for a in self.tiles.accumulators)
        widths = {width for widths in every for width in widths}
        for columns in sorted(widths):
            layout = accumulator_layout(columns, s.num_warps)
            lines.append(f"ACC_{columns} = gl.constexpr({layout})")
        lines.append(f"ACC = ACC_{self.roles.slice}")
        if self._stores_directly:
            layout = store_layout(self.roles.slice, s.num_warps)
            lines.append(f"OUT = gl.constexpr({layout})")
        return "\n" + "\n".join(lines) + "\n"

    @property
    def _stores_directly(self) -> bool:
        return len(self.tiles.results) < len(self.epilogue.comp.stores)

    def _finish(self, piece: _Piece) -> str:
        e = piece.epilogue
        arguments = [*e.accumulators, *e.given, "row", "column", *e.batch, *self._turns]
        arguments += [*(t.descriptor for t in piece.tiles.results), *self._finish_memory]
        first = ["out = turn % SLOTS"] if self.tiles.results else []
        if self.schedule.pingpong and self.tiles.results:
            own = f"(turn - (round + WARPS) * {self._slices})" if self._turns[1:] else "turn"
            first = [f"out = WARPS * SLOTS + {own} % SLOTS"]
        return function(piece.finish, [*arguments, *self._group_argument], [*first, *e.lines])

    def _prepare(self, piece: _Piece) -> str:
        e = piece.epilogue
        return function(piece.prepare, ["row", *e.batch, *e.memory], e.preparation)

    def _consume(self) -> str:
        accumulators = self.tiles.accumulators
        body = [
            *self.walk.place,
            *map(_zeros, accumulators),
            "started = False",
            *self._await_turn("loops"),
            *self._loop(),
            *self._give_turn("loops"),
            _wait(0, [a.name for a in accumulators]),
            "mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)",
            *self._await_turn("ends"),
            *self._finish_slices(),
            *self._give_turn("ends"),
        ]
        lines = [*self.walk.start, *self._walk_over_tiles(body)]
        lines += ["tma.store_wait(0)"] if self.tiles.results else []
        return function("consume", [*self._consume_arguments, *self._group_argument], lines)

    def _loop(self) -> list[str]:
        """Over the depth, two steps in flight."""
        accumulators = self.tiles.accumulators
        return block("for k in range(0, depth, DEPTH):", [
            "stage = step % STAGES",
            "mbarrier.wait(ready.index(stage), step // STAGES & 1)",
            *map(_multiply, accumulators),
            _wait(len(accumulators), [a.name for a in accumulators]),
            "mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=started)",
            "started = True",
            "step += 1",
        ])  # fmt: skip

    @property
    def _slices(self) -> int:
        """Of each tile."""
        return self.schedule.block_n // self.roles.slice

    @property
    def _turns(self) -> list[str]:
        """What tells a slice its slots. A group's slices take those for results one after the
        other: with an odd number in each tile, `turn` alone would say the same slot twice running,
        while its first result is still being copied."""
        uneven = self.tiles.results and self._slices % self.roles.result_slots
        return ["turn", "round"] if self.schedule.pingpong and uneven else ["turn"]

    @property
    def _group_argument(self) -> list[str]:
        return ["WARPS: gl.constexpr"] if self.schedule.pingpong else []

    def _await_turn(self, barriers: str) -> list[str]:
        """Group 0 goes first."""
        if barriers not in self._barriers:
            return []
        return [f"mbarrier.wait({barriers}.index(WARPS), (round & 1) ^ (1 - WARPS))"]

    def _give_turn(self, barriers: str) -> list[str]:
        if barriers not in self._barriers:
            return []
        return [f"mbarrier.arrive({barriers}.index(1 - WARPS), count=1)"]

    def _walk_over_tiles(self, body: list[str]) -> list[str]:
        """`step` counts steps along the depth, `turn` slices, of all tiles of a block; `round` the
        tiles of a group."""
        slices = self._slices
        if not self.schedule.pingpong:
            return ["step, turn = 0, 0", *block(EVERY_TILE, body)]
        skip = ["step += steps", f"turn += {slices}", "round += 1"]
        return [
            "steps = tl.cdiv(depth, DEPTH)",
            f"step, turn, round = WARPS * steps, WARPS * {slices}, 0",
            "programs = gl.num_programs(0)",
            "first = gl.program_id(0) + WARPS * programs",
            *block("for tile in range(first, tiles, 2 * programs):", [*body, *skip]),
        ]

    def _finish_slices(self) -> list[str]:
        lines, names = [], {}
        for a in self.tiles.accumulators:
            made, cut = slices(a.name, a.columns, self.roles.slice)
            lines += made
            each = len(cut) // len(a.products)
            for k, number in enumerate(a.products):
                names.setdefault(number, []).extend(cut[k * each : (k + 1) * each])
        products = [names[number] for number in sorted(names)]
        return [*lines, *by_piece(self.pieces, partial(self._finish_piece, products))]

    def _finish_piece(self, products: Sequence[list[str]], piece: _Piece, n: str) -> list[str]:
        """`products`: names of the slices of each."""
        e = piece.epilogue
        arguments = ", ".join(["m * ROWS", *e.batch, *e.memory])
        lines = [f"{', '.join(e.given)} = {piece.prepare}({arguments})"] if e.prepared else []
        if self.schedule.pingpong:
            return [*lines, *self._loop_over(products, self._call_finish(piece, products, n))]
        for part in range(len(products[0])):
            left = [names[part:] for names in products]
            lines += self._call_finish(piece, left, n, part)
        return lines

    def _loop_over(self, products: Sequence[list[str]], body: list[str]) -> list[str]:
        """Takes the leftmost slice and moves up the others: moves cost less than instructions that
        are not in the cache, as two groups' epilogues of whole tiles would not be."""
        moves = [f"{', '.join(names[:-1])} = {', '.join(names[1:])}" for names in products
                 if names[1:]]  # fmt: skip
        return block(f"for part in range({len(products[0])}):", [*body, *moves])

    def _call_finish(
        self, piece: _Piece, products: Sequence[list[str]], n: str, part: int | str = "part"
    ) -> list[str]:
        """For the first of the slices in `products`."""
        e = piece.epilogue
        results = (self.descriptors[t] for t in piece.tiles.results)
        arguments = [*(names[0] for names in products), *e.given, "m * ROWS",
                     f"{n} * TILE_COLUMNS + {part} * COLUMNS", *e.batch, *self._turns, *results,
                     *self._finish_memory]  # fmt: skip
        arguments += ["WARPS"] if self.schedule.pingpong else []
        return [f"{piece.finish}({', '.join(arguments)})", "turn += 1"]

    def _produce(self) -> str:
        loop = [
            "stage = step % STAGES",
            "mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)",
            "full = ready.index(stage)",
            f"mbarrier.expect(full, {total_bytes(self.tiles.staged)})",
            *self._copy_factors(),
            "step += 1",
        ]
        steps = block("for k in range(0, depth, DEPTH):", [*self.walk.step, *loop])
        body = [*self.walk.place, *steps]
        lines = [*self.walk.start, "step = 0", *block(EVERY_TILE, body)]
        return function("produce", self._produce_arguments, lines)

    def _copy_factors(self) -> list[str]:
        """What all pieces have in common, then what the tile's has alone."""
        staged = self.tiles.staged
        common = [t for t in staged if all(t in p.tiles.staged for p in self.pieces)]

        def own(piece: _Piece, n: str) -> list[str]:
            mine = (t for t in piece.tiles.staged if t not in common)
            return [self._copy_in(t, t.column, "full", "stage", n) for t in mine]

        copies = [self._copy_in(t, t.column, "full", "stage") for t in common]
        return [*copies, *(by_piece(self.pieces, own) if len(common) < len(staged) else [])]

    def _fetch(self) -> str:
        body = list(self.walk.place)
        for column in range(0, self.schedule.block_n, self.roles.slice):
            body += [
                "slot = turn % FETCHED",
                "mbarrier.wait(used.index(slot), (turn // FETCHED & 1) ^ 1)",
                "full = came.index(slot)",
                f"mbarrier.expect(full, {total_bytes(self.tiles.residuals)})",
                *(self._copy_in(t, column, "full", "slot") for t in self.tiles.residuals),
                "turn += 1",
            ]
        lines = [*self.walk.start, "turn = 0", *block(EVERY_TILE, body)]
        return function("fetch", self._fetch_arguments, lines)

    def _copy_in(self, tile: Tile, column: int, barrier: str, slot: str, n: str = "n") -> str:
        where = corner(tile, column, n)
        return f"copy_in({self.descriptors[tile]}, {where}, {barrier}, {tile.slot(slot)})"

    def _entry(self) -> str:
        lines = [m.allocation for m in self.tiles.memories]
        for name, count in self._barriers.items():
            lines.append(f"{name} = gl.allocate_shared_memory(gl.int64, [{count}, 1], "
                         "mbarrier.MBarrierLayout())")  # fmt: skip
            lines += block(f"for i in gl.static_range({count}):",
                            [f"mbarrier.init({name}.index(i), count=1)"])  # fmt: skip
        if self.schedule.early:
            lines += ["begin_next()", "await_previous()"]
        arguments = [*self.descriptors.values(), *self.epilogue.memory]
        return function(self.name, arguments, [*lines, *self._specialize()])

    @property
    def _barriers(self) -> dict[str, str]:
        """How many of each."""
        residual = {"came": "FETCHED", "used": "FETCHED"} if self.tiles.residuals else {}
        order = {"loops": "2"} if self.schedule.pingpong else {}
        order |= {"ends": "2"} if order and self.tiles.residuals else {}
        return {"ready": "STAGES", "empty": "STAGES"} | residual | order

    def _specialize(self) -> list[str]:
        """Which warps run what."""
        consume = self._consume_arguments
        workers = [("produce", self._produce_arguments, 1, COPY_REGISTERS)]
        if self.tiles.residuals:
            workers.append(("fetch", self._fetch_arguments, 1, COPY_REGISTERS))
        if self.schedule.pingpong:
            workers.insert(0, ("consume", [*consume, "1"], 4, CONSUMER_REGISTERS))
            consume = [*consume, "0"]
        roles = [("consume", consume), *(w[:2] for w in workers)]
        return [
            "gl.warp_specialize([",
            *(f"    ({name}, ({', '.join(arguments)},))," for name, arguments in roles),
            f"], {[w[2] for w in workers]}, {[w[3] for w in workers]})",
        ]


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _zeros(a: Accumulator) -> str:
    return f"{a.name} = gl.zeros((ROWS, {a.columns}), gl.float32, ACC_{a.columns})"


def _multiply(a: Accumulator) -> str:
    left, right = a.left.matrix("stage", "depth"), a.right.matrix("stage", "columns")
    return (f"{a.name} = warpgroup_mma({left}, {right}, {a.name}, is_async=True, "
            "use_acc=started)")  # fmt: skip


def _wait(pending: int, names: Sequence[str]) -> str:
    """Until no more than `pending` products are under way."""
    deps = f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"
    return f"{', '.join(names)} = warpgroup_mma_wait({pending}, deps={deps})"

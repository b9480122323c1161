"""Gluon source of products with their epilogue, for Hopper: persistent blocks, one on each
multiprocessor, in which one warp copies and the others multiply.

    produce   has the TMA unit fill a ring of stages with tiles of the factors, as far ahead as
              there is space, across the borders of output tiles
    fetch     the same of the residual tiles that the epilogue reads, slice by slice
    consume   multiplies what has arrived, two steps in flight, then calls `finish` for each slice
    finish    the epilogue (gluon_epilogue.py)

Barriers: `ready[s]` says that stage s has arrived, `empty[s]` that it has been used; `came` and
`used` the same of residuals. With `pingpong` two groups of warps consume, each every other tile. A
barrier tells only whether an even or an odd number of turns is over, so nobody may wait for one
beyond the next: group g begins its products when `loops[g]` says that all of the other group's have
arrived, and with residuals its epilogue when `ends[g]` says that the other's is over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torchweld.codegen import triton_product
from torchweld.codegen import triton_scalars as scalars
from torchweld.codegen.gluon_epilogue import Epilogue
from torchweld.codegen.gluon_names import HEADER, dialect
from torchweld.codegen.gluon_tiles import Accumulator, Tile, tiles_of, total_bytes
from torchweld.codegen.source import (
    BufferArg,
    GridDim,
    KernelArg,
    KernelBundle,
    KernelSource,
    SizeArg,
)
from torchweld.core.device import named_table
from torchweld.core.errors import InvalidIR
from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.size import Size, product
from torchweld.schedule import product_triton
from torchweld.schedule.access import Accesses, addressed
from torchweld.schedule.contraction import Contraction, contraction_of
from torchweld.schedule.product import ProductSchedule
from torchweld.schedule.product_gluon import roles, valid

COPY_REGISTERS = 24  # of a thread that has TMA copy
CONSUMER_REGISTERS = 240  # of a thread of the second group with pingpong
MAX_REGISTERS = {4: 255, 8: 168}  # of a thread, by warps that multiply: all that there are


def generate(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    schedule: ProductSchedule,
    hints: Mapping[str, int] | None = None,
) -> KernelBundle:
    """The kernel of `comp`, whose products contraction_of finds, tiled by `schedule`. Raises
    InvalidIR if the schedule does not fit."""
    accesses = addressed(comp, buffers, hints)
    contraction = contraction_of(accesses)
    if contraction is None or not valid(schedule, accesses, contraction):
        raise InvalidIR(f"{comp.name} cannot be tiled so: {schedule}")
    source = _Writer(accesses, contraction, buffers, schedule).source()
    other = _otherwise(comp, buffers, accesses, contraction, hints)
    return KernelBundle(comp.name, (replace(source, otherwise=other),))


def _otherwise(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    accesses: Accesses,
    contraction: Contraction,
    hints: Mapping[str, int] | None,
) -> KernelSource:
    """The same in Triton, for addresses that TMA does not take: one kernel without scratch."""
    tiles = next(product_triton.candidates(accesses, contraction, named_table("H100"), hints))
    return triton_product.generate(comp, buffers, replace(tiles, splits=1), hints).sources[0]


class _Writer:
    """The text of one kernel, function by function."""

    def __init__(
        self,
        accesses: Accesses,
        contraction: Contraction,
        buffers: Mapping[str, Buffer],
        schedule: ProductSchedule,
    ) -> None:
        self.accesses, self.contraction, self.buffers = accesses, contraction, buffers
        self.schedule = schedule
        self.roles = roles(accesses, contraction, schedule)
        self.epilogue = Epilogue(accesses, contraction, buffers, schedule, self.roles)
        self.epilogue.emit()
        self.tiles = tiles_of(self.roles, schedule, self.epilogue.accumulators)
        self.name = re.sub(r"\W", "_", accesses.comp.name)
        self.walk = self._walk()

    def source(self) -> KernelSource:
        functions = [self._finish(), self._consume(), self._produce()]
        functions += [self._fetch()] if self.tiles.residuals else []
        functions += [self._entry()]
        helpers = [_PLACE, *([_HALVES] if self._is_sliced else []), *self.epilogue.helpers.values()]
        text = "".join([HEADER, self._constants(), *helpers, *functions])
        pointers, sizes = self.epilogue.arguments
        args: list[KernelArg] = [t.argument for t in self.tiles.all]
        args += [*map(BufferArg, pointers), *map(SizeArg, sizes)]
        signature = [scalars.SIGNATURE[t.window.dtype] for t in self.tiles.all]
        signature += [f"*{scalars.SIGNATURE[self.buffers[b].dtype]}" for b in pointers]
        signature += ["i64"] * len(sizes)
        warps = self.schedule.num_warps
        registers = MAX_REGISTERS[8 if self.schedule.pingpong else warps]
        return KernelSource(
            "gluon", self.name, dialect(text), tuple(args), (self._grid(),), (), tuple(signature),
            warps, max_registers=registers, early=self.schedule.early,
        )  # fmt: skip

    @property
    def _is_sliced(self) -> bool:
        return any(a.columns != self.roles.slice for a in self.tiles.accumulators)

    # sizes

    def _extent(self, axes: Iterable[str]) -> Size:
        return product(self.accesses.comp.extent(a) for a in axes)

    def _grid(self) -> GridDim:
        s, c = self.schedule, self.contraction
        rows = _blocks(self._extent(c.rows), s.block_m)
        columns = _blocks(self._extent(c.columns), s.block_n)
        return GridDim(rows * columns * self._extent(c.batch), 1, s.programs)

    def _walk(self) -> list[str]:
        """Lines that say how many tiles there are, in all functions that walk over them."""
        s, c = self.schedule, self.contraction
        lines = [
            f"tiles_r = {self._count(self._extent(c.rows), s.block_m)}",
            f"tiles_c = {self._count(self._extent(c.columns), s.block_n)}",
            f"depth = {self._number(self._extent(c.depth))}",
        ]
        if not c.batch:
            return [*lines, "tiles = tiles_r * tiles_c"]
        return [*lines, f"tiles = tiles_r * tiles_c * {self._number(self._extent(c.batch))}"]

    def _count(self, size: Size, block: int) -> str:
        if isinstance(size, int):
            return str(-(-size // block))
        return f"tl.cdiv({self.epilogue.size(size)}, {block}).to(tl.int32)"

    def _number(self, size: Size) -> str:
        text = self.epilogue.size(size)
        return text if isinstance(size, int) else f"{text}.to(tl.int32)"

    def _place(self) -> list[str]:
        """Lines that find the place of `tile`."""
        batch = self.contraction.batch
        if not batch:
            return ["m, n = place(tile, tiles_r, tiles_c)"]
        lines = ["m, n = place(tile % (tiles_r * tiles_c), tiles_r, tiles_c)",
                 "batch = tile // (tiles_r * tiles_c)"]  # fmt: skip
        for k, axis in enumerate(batch):
            inner = self._number(self._extent(batch[k + 1 :]))
            wrapped = f" % {self._number(self._extent([axis]))}" if k else ""
            lines.append(f"at_{axis} = batch // {inner}{wrapped}")
        return lines

    def _corner(self, tile: Tile, column: int) -> str:
        """Coordinates of a tile, `column` columns into the output tile."""
        names = {"rows": "m * ROWS", "columns": f"n * TILE_COLUMNS{_plus(column)}", "depth": "k"}
        return f"[{', '.join(names.get(d) or f'at_{d}' for d in tile.window.dims)}]"

    # arguments

    @property
    def _sizes(self) -> list[str]:
        return self.epilogue.memory[len(self.epilogue.arguments[0]) :]

    @property
    def _finish_memory(self) -> list[str]:
        """What `finish` is passed beside its place."""
        residuals, results = self.tiles.residuals, self.tiles.results
        barriers = ["came", "used"] if residuals else []
        return [*(t.descriptor for t in results), *(t.name for t in (*residuals, *results)),
                *barriers, *self.epilogue.memory]  # fmt: skip

    @property
    def _consume_arguments(self) -> list[str]:
        order = [b for b in ("loops", "ends") if b in self._barriers]
        return [*self._staged, "ready", "empty", *order, *self._finish_memory]

    @property
    def _produce_arguments(self) -> list[str]:
        descriptors = [t.descriptor for t in self.tiles.staged]
        return [*descriptors, *self._staged, "ready", "empty", *self._sizes]

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
        every = (_halvings(a.columns, self.roles.slice) for a in self.tiles.accumulators)
        widths = {width for widths in every for width in widths}
        for columns in sorted(widths):
            lines.append(f"ACC_{columns} = gl.constexpr(gl.NVMMADistributedLayout("
                         f"version=[3, 0], warps_per_cta=[{s.num_warps}, 1], "
                         f"instr_shape=[16, {columns}, 16]))")  # fmt: skip
        lines.append(f"ACC = ACC_{self.roles.slice}")
        if self._stores_directly:
            lines.append(f"OUT = gl.constexpr({self._out_layout()})")
        return "\n" + "\n".join(lines) + "\n"

    @property
    def _stores_directly(self) -> bool:
        return len(self.tiles.results) < len(self.accesses.comp.stores)

    def _out_layout(self) -> str:
        """In which eight neighbours share a thread."""
        across = min(self.roles.slice // 8, 32)
        return (f"gl.BlockedLayout([1, 8], [{32 // across}, {across}], "
                f"[{self.schedule.num_warps}, 1], [1, 0])")  # fmt: skip

    def _finish(self) -> str:
        e = self.epilogue
        arguments = [*e.accumulators, "row", "column", *e.batch, "turn", *self._finish_memory]
        first = ["out = turn % SLOTS"] if self.tiles.results else []
        if self.schedule.pingpong and self.tiles.results:
            first = ["out = WARPS * SLOTS + turn % SLOTS"]
        return _function("finish", [*arguments, *self._group_argument], [*first, *e.lines])

    def _consume(self) -> str:
        accumulators = self.tiles.accumulators
        names = [a.name for a in accumulators]
        everything = ", ".join(names)
        deps = f"({everything},)" if len(names) == 1 else f"({everything})"
        loop = [
            "stage = step % STAGES",
            "mbarrier.wait(ready.index(stage), step // STAGES & 1)",
            *map(_multiply, accumulators),
            f"{everything} = warpgroup_mma_wait({len(names)}, deps={deps})",
            "mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)",
            "started = True",
            "step += 1",
        ]
        body = [
            *self._place(),
            *map(_zeros, accumulators),
            "started = False",
            *self._await_turn("loops"),
            *_block("for k in range(0, depth, DEPTH):", loop),
            *self._give_turn("loops"),
            f"{everything} = warpgroup_mma_wait(0, deps={deps})",
            "mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)",
            *self._await_turn("ends"),
            *self._finish_slices(),
            *self._give_turn("ends"),
        ]
        lines = [*self.walk, *self._walk_over_tiles(body)]
        lines += ["tma.store_wait(0)"] if self.tiles.results else []
        return _function("consume", [*self._consume_arguments, *self._group_argument], lines)

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
        slices = self.schedule.block_n // self.roles.slice
        if not self.schedule.pingpong:
            loop = "for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):"
            return ["step, turn = 0, 0", *_block(loop, body)]
        skip = ["step += steps", f"turn += {slices}", "round += 1"]
        return [
            "steps = tl.cdiv(depth, DEPTH)",
            f"step, turn, round = WARPS * steps, WARPS * {slices}, 0",
            "programs = gl.num_programs(0)",
            "first = gl.program_id(0) + WARPS * programs",
            *_block("for tile in range(first, tiles, 2 * programs):", [*body, *skip]),
        ]

    def _finish_slices(self) -> list[str]:
        lines, names = [], {}
        for a in self.tiles.accumulators:
            made, slices = _slices(a.name, a.columns, self.roles.slice)
            lines += made
            each = len(slices) // len(a.products)
            for k, number in enumerate(a.products):
                names.setdefault(number, []).extend(slices[k * each : (k + 1) * each])
        for k, slices in enumerate(zip(*(names[number] for number in sorted(names)))):
            lines += [self._call_finish(slices, k * self.roles.slice), "turn += 1"]
        return lines

    def _call_finish(self, slices: Iterable[str], column: int) -> str:
        arguments = [*slices, "m * ROWS", f"n * TILE_COLUMNS{_plus(column)}", *self.epilogue.batch,
                     "turn", *self._finish_memory]  # fmt: skip
        arguments += ["WARPS"] if self.schedule.pingpong else []
        return f"finish({', '.join(arguments)})"

    def _produce(self) -> str:
        loop = [
            "stage = step % STAGES",
            "mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)",
            "full = ready.index(stage)",
            f"mbarrier.expect(full, {total_bytes(self.tiles.staged)})",
            *(self._copy_in(t, t.column, "full", "stage") for t in self.tiles.staged),
            "step += 1",
        ]
        body = [*self._place(), *_block("for k in range(0, depth, DEPTH):", loop)]
        tiles = "for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):"
        lines = [*self.walk, "step = 0", *_block(tiles, body)]
        return _function("produce", self._produce_arguments, lines)

    def _fetch(self) -> str:
        body = self._place()
        for column in range(0, self.schedule.block_n, self.roles.slice):
            body += [
                "slot = turn % FETCHED",
                "mbarrier.wait(used.index(slot), (turn // FETCHED & 1) ^ 1)",
                "full = came.index(slot)",
                f"mbarrier.expect(full, {total_bytes(self.tiles.residuals)})",
                *(self._copy_in(t, column, "full", "slot") for t in self.tiles.residuals),
                "turn += 1",
            ]
        tiles = "for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):"
        lines = [*self.walk, "turn = 0", *_block(tiles, body)]
        return _function("fetch", self._fetch_arguments, lines)

    def _copy_in(self, tile: Tile, column: int, barrier: str, slot: str) -> str:
        corner = self._corner(tile, column)
        return f"copy_in({tile.descriptor}, {corner}, {barrier}, {tile.slot(slot)})"

    def _entry(self) -> str:
        lines = [m.allocation for m in self.tiles.memories]
        for name, count in self._barriers.items():
            lines.append(f"{name} = gl.allocate_shared_memory(gl.int64, [{count}, 1], "
                         "mbarrier.MBarrierLayout())")  # fmt: skip
            lines += _block(f"for i in gl.static_range({count}):",
                            [f"mbarrier.init({name}.index(i), count=1)"])  # fmt: skip
        if self.schedule.early:
            lines.append(self.epilogue.helper("_await_previous()"))
        arguments = [*(t.descriptor for t in self.tiles.all), *self.epilogue.memory]
        return _function(self.name, arguments, [*lines, *self._specialize()])

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


_PLACE = '''

@gluon.jit
def place(tile, tiles_r, tiles_c):
    """Row and column of a tile: GROUP rows of tiles at a time, column by column, so that what they
    share stays in the last-level cache."""
    width = GROUP * tiles_c
    first = tile // width * GROUP
    rows = tl.minimum(tiles_r - first, GROUP)
    return first + tile % width % rows, tile % width // rows
'''

_HALVES = '''

@gluon.jit
def halves(tile, LAYOUT: gl.constexpr):
    """The left and the right half of the columns: which thread holds what stays."""
    ROWS: gl.constexpr = tile.shape[0]
    COLUMNS: gl.constexpr = tile.shape[1] // 2
    left, right = tile.reshape((ROWS, 2, COLUMNS)).permute((0, 2, 1)).split()
    left = gl.convert_layout(left, LAYOUT, assert_trivial=True)
    return left, gl.convert_layout(right, LAYOUT, assert_trivial=True)
'''


def _zeros(a: Accumulator) -> str:
    return f"{a.name} = gl.zeros((ROWS, {a.columns}), gl.float32, ACC_{a.columns})"


def _multiply(a: Accumulator) -> str:
    left, right = a.left.matrix("stage", "depth"), a.right.matrix("stage", "columns")
    return (f"{a.name} = warpgroup_mma({left}, {right}, {a.name}, is_async=True, "
            "use_acc=started)")  # fmt: skip


def _halvings(columns: int, last: int) -> list[int]:
    """Widths from that of an accumulator down to that of a slice."""
    return [columns] if columns == last else [columns, *_halvings(columns // 2, last)]


def _slices(name: str, columns: int, wanted: int) -> tuple[list[str], list[str]]:
    """Lines that cut an accumulator, and the names of its slices from left to right."""
    if columns == wanted:
        return [], [name]
    left, right = f"{name}l", f"{name}r"
    lines = [f"{left}, {right} = halves({name}, ACC_{columns // 2})"]
    first, lefts = _slices(left, columns // 2, wanted)
    second, rights = _slices(right, columns // 2, wanted)
    return [*lines, *first, *second], [*lefts, *rights]


def _blocks(size: Size, block: int) -> Size:
    """How many blocks; no fewer, where that is not known."""
    return -(-size // block) if isinstance(size, int) else size


def _plus(column: int) -> str:
    return f" + {column}" if column else ""


def _block(header: str, lines: Iterable[str]) -> list[str]:
    return [header, *(f"    {line}" for line in lines)]


def _function(name: str, arguments: Iterable[str], lines: Iterable[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"\n\n@gluon.jit\ndef {name}({', '.join(arguments)}):\n{body}\n"

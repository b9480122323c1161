"""Gluon source of products of few rows with their epilogue (templates/gemm/skinny/schedule.py).

    produce   has the TMA unit fill the ring of stages with tiles of the right factors, waits for
              the end of the kernel in front, goes on with the left factor and the rest
    consume   multiplies what has arrived, the right factor as the left operand, adds up the shares
              of the depth, and calls `finish`
    finish    the epilogue of one piece, printed by the emitter of Triton kernels

`ready[s]` says that stage s has arrived, `empty[s]` that it has been used. Each share writes its
partial results; the one that comes last adds them in the order of the shares and goes on. That is
so in the first row of tiles; in those behind it, if there are any, the first share has all of the
depth and the others have nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchweld.codegen.gluon.names import GRID_CONTROL, HEADER, dialect
from torchweld.codegen.gluon.text import (
    accumulator_layout,
    block,
    by_piece,
    function,
    store_layout,
)
from torchweld.codegen.source import BufferArg, GridDim, KernelBundle, KernelSource, SizeArg
from torchweld.codegen.triton import scalars
from torchweld.core import dtypes
from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Buffer, Comp, store_operands
from torchweld.targets.gpus import H100
from torchweld.templates.gemm.concatenation import Piece, pieces_of
from torchweld.templates.gemm.hopper.epilogue import Epilogue
from torchweld.templates.gemm.hopper.schedule import Roles
from torchweld.templates.gemm.hopper.tiles import Memory, Tile, total_bytes
from torchweld.templates.gemm.hopper.walk import corner
from torchweld.templates.gemm.schedule import ProductSchedule, tiled
from torchweld.templates.gemm.skinny.schedule import Factors, factors, has_known_rows, valid
from torchweld.templates.gemm.triton import generate as triton_product
from torchweld.templates.gemm.triton import schedule as product_triton
from torchweld.templates.pointwise_reduce.gpu.schedule import extent

COPY_REGISTERS = 24  # of a thread that has TMA copy
_FULL = "full = ready.index(stage)"
MAX_REGISTERS = 128  # so that blocks of the kernel behind can be there before this one ends


def generate(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    schedule: ProductSchedule,
    hints: Mapping[str, int] | None = None,
) -> KernelBundle:
    """The kernel of `comp`, whose products contraction_of finds, tiled by `schedule`. Raises
    InvalidIR if the schedule does not fit."""
    accesses, contraction = tiled(comp, buffers, schedule, hints, valid)
    writer = _Writer(comp.name, pieces_of(accesses, contraction), buffers, schedule)
    tiles = product_triton.first(accesses, contraction, H100, hints)
    other = triton_product.generate(comp, buffers, replace(tiles, splits=1), hints).sources[0]
    scratch = tuple(writer.scratch)
    zeroed = tuple(b.name for b in scratch if b.dtype == dtypes.i32)
    return KernelBundle(comp.name, (replace(writer.source(), otherwise=other),), scratch, zeroed)


class _Epilogue(Epilogue):
    """Its products are tiles in the layout OUT, in which neighbours in memory share a thread, and
    all that it loads and stores is loaded and stored from registers."""

    def emit(self) -> None:
        self._define_tile("OUT", "r", "c")
        if not self.contraction.rows:
            for p in self.contraction.products:  # the first row of the tile's
                first = f"tl.where(r == 0, {self.known[p.value]}, 0.0)"
                self.assign(p.value, f"tl.sum({first}, axis=0)[None, :]")
        self.compute([v for s in self.comp.stores for v in store_operands(s)])
        for position in range(len(self.comp.stores)):
            self.store(position)


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece: `finish`, the name of its function; `first`, the number of its first tile; `tiles`
    of its right factors."""

    finish: str
    first: int
    tiles: tuple[Tile, ...]
    epilogue: _Epilogue


class _Writer:
    """The text of one kernel, function by function. `left`: the tile that all products share;
    `scratch`: for the results of shares, by product, and how many of a tile's are done."""

    def __init__(
        self,
        name: str,
        pieces: Sequence[Piece],
        buffers: Mapping[str, Buffer],
        schedule: ProductSchedule,
    ) -> None:
        self.name, self.schedule = re.sub(r"\W", "_", name), schedule
        self.contraction = pieces[0].contraction
        self.accesses: Accesses = pieces[0].accesses
        found = [factors(p) for p in pieces]
        block_x = found[0].left.block(rows=schedule.block_m, depth=schedule.block_k)
        self.left = Tile("x", found[0].left, block_x, "x")
        self.tiles_c = sum(-(-p.columns // schedule.block_n) for p in pieces)
        self.scratch = self._scratch(name, buffers) if schedule.splits > 1 else []
        self.buffers = {**buffers, **{b.name: b for b in self.scratch}}
        self.parts = self._parts(pieces, found)
        self.epilogue = self.parts[0].epilogue
        self.partials = [self.epilogue.pointer(b.name) for b in self.scratch]
        rows = extent(self.accesses, self.contraction.rows)
        known = has_known_rows(self.accesses, self.contraction)
        self.has_more_tiles = not known or rows > schedule.block_m
        self.rows_at_call = "" if known or schedule.splits == 1 else self.epilogue.size(rows)
        weights = {t.window.buffer for p in self.parts for t in p.tiles}
        self.fills_early = schedule.early and all(buffers[w].frozen for w in weights)

    def _scratch(self, name: str, buffers: Mapping[str, Buffer]) -> list[Buffer]:
        s, c = self.schedule, self.contraction
        device = buffers[self.accesses.comp.stores[0].buffer].device
        points = s.splits * self.tiles_c * s.block_m * s.block_n
        made = [Buffer(f"{name}_part{k}", (points,), dtypes.f32, (1,), device)
                for k in range(len(c.products))]  # fmt: skip
        return [*made, Buffer(f"{name}_done", (self.tiles_c,), dtypes.i32, (1,), device)]

    def _parts(self, pieces: Sequence[Piece], found: Sequence[Factors]) -> list[_Part]:
        made: list[_Part] = []
        first, s = 0, self.schedule
        for number, (piece, windows) in enumerate(zip(pieces, found)):
            beside = made[0].epilogue if made else None
            epilogue = _Epilogue(piece.accesses, piece.contraction, self.buffers, s,
                                 Roles((), {}, {}, {}), beside)  # fmt: skip
            epilogue.emit()
            tiles = tuple(
                Tile(f"w{k}_{number}", w, w.block(columns=s.block_n, depth=s.block_k), f"w{k}")
                for k, w in enumerate(windows.right)
            )
            made.append(_Part(f"finish_{number}", first, tiles, epilogue))
            first = first + -(-piece.columns // s.block_n) if len(pieces) > 1 else 0
        return made

    def source(self) -> KernelSource:
        functions = [*map(self._finish, self.parts), self._consume(), self._produce()]
        text = "".join([self._constants(), *self.epilogue.helpers.values(), *functions])
        text = HEADER + GRID_CONTROL + dialect(text + self._entry())
        pointers, sizes = self.epilogue.arguments
        args = [t.argument for t in self._tiles]
        args += [*map(BufferArg, pointers), *map(SizeArg, sizes)]
        signature = [scalars.SIGNATURE[t.window.dtype] for t in self._tiles]
        signature += [f"*{scalars.SIGNATURE[self.buffers[b].dtype]}" for b in pointers]
        signature += ["i64"] * len(sizes)
        s = self.schedule
        rows = GridDim(extent(self.accesses, self.contraction.rows), s.block_m)
        grid = (GridDim(self.tiles_c), rows, GridDim(s.splits))
        return KernelSource(
            "gluon", self.name, text, tuple(args), grid, (), tuple(signature), s.num_warps,
            max_registers=MAX_REGISTERS, early=s.early,
        )  # fmt: skip

    # names

    @property
    def _tiles(self) -> list[Tile]:
        return [self.left, *(t for p in self.parts for t in p.tiles)]

    @property
    def _memories(self) -> list[Memory]:
        return [Memory(t.memory, "STAGES", t.block, t) for t in (self.left, *self.parts[0].tiles)]

    @property
    def _values(self) -> list[str]:
        """Of the products, the same for all pieces."""
        return [f"acc{k}" for k in range(len(self.contraction.products))]

    @property
    def _place(self) -> list[str]:
        return ["m", "n", "first", "steps"]

    @property
    def _shared(self) -> list[str]:
        return [*(m.name for m in self._memories), "ready", "empty"]

    # functions

    def _constants(self) -> str:
        s = self.schedule
        numbers = {"ROWS": s.block_m, "COLUMNS": s.block_n, "TILE_COLUMNS": s.block_n,
                   "DEPTH": s.block_k, "STAGES": s.stages, "SHARES": s.splits}  # fmt: skip
        lines = [f"{name} = gl.constexpr({number})" for name, number in numbers.items()]
        lines.append(f"ACC = gl.constexpr({accumulator_layout(s.block_m, s.num_warps)})")
        lines.append(f"OUT = gl.constexpr({store_layout(s.block_n, s.num_warps)})")
        return "\n" + "\n".join(lines) + "\n"

    def _finish(self, part: _Part) -> str:
        e = part.epilogue
        return function(part.finish, [*e.accumulators, "row", "column", *e.memory], e.lines)

    def _consume(self) -> str:
        values = self._values
        lines = [f"{v} = gl.zeros((COLUMNS, ROWS), gl.float32, ACC)" for v in values]
        lines += ["started = False", *self._loop(), *_wait(0, values), "await_previous()"]
        lines += [f"{v} = gl.convert_layout({v}.permute((1, 0)), OUT)" for v in values]
        lines += self._merge() if self.schedule.splits > 1 else self._call_finish()
        return function("consume", [*self._shared, *self._place, *self.epilogue.memory], lines)

    def _loop(self) -> list[str]:
        left, *rights = self._memories
        rows = left.matrix("stage", "rows")
        products = [
            f"{v} = warpgroup_mma({w.matrix('stage', 'depth')}, {rows}, {v}, is_async=True, "
            "use_acc=started)"
            for v, w in zip(self._values, rights)
        ]
        return block("for step in range(steps):", [
            "stage = step % STAGES",
            "mbarrier.wait(ready.index(stage), step // STAGES & 1)",
            *products,
            *_wait(len(products), self._values),
            "mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=started)",
            "started = True",
        ])  # fmt: skip

    def _merge(self) -> list[str]:
        *partials, done = self.partials
        place = "(ROWS * COLUMNS) + lanes"
        lines = [
            "r = gl.arange(0, ROWS, gl.SliceLayout(1, OUT))[:, None]",
            "lanes = r * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))[None, :]",
            "tiles = gl.num_programs(0)",
            "start = gl.program_id(2) * tiles + n",
        ]
        kept = f", mask=r < {self.rows_at_call}" if self.rows_at_call else ""
        lines += [f"tl.store({p} + (start * {place}), {v}{kept})"
                  for p, v in zip(partials, self._values)]  # fmt: skip
        lines += ["synchronize()", f"arrived = tl.atomic_add({done} + n, 1)",
                  "is_last = arrived == SHARES - 1"]  # fmt: skip
        added = []
        for p, v in zip(partials, self._values):
            read = f'tl.load({p} + ({{}} * {place}){kept}, cache_modifier=".cg")'
            added.append(f"{v} = {read.format('n')}")
            added += block("for other in gl.static_range(1, SHARES):",
                           [f"{v} += {read.format('(other * tiles + n)')}"])  # fmt: skip
        lines += block("if is_last:", [*added, f"tl.store({done} + n, 0)"])
        if self.has_more_tiles:
            lines = ["is_last = gl.program_id(2) == 0", *block("if m == 0:", lines)]
        return [*lines, *block("if is_last:", self._call_finish())]

    def _call_finish(self) -> list[str]:
        memory = self.epilogue.memory

        def call(part: _Part, n: str) -> list[str]:
            arguments = [*self._values, "m * ROWS", f"{n} * COLUMNS", *memory]
            return [f"{part.finish}({', '.join(arguments)})"]

        return by_piece(self.parts, call)

    def _undivided(self) -> list[str]:
        """Behind the first row of tiles the first share has all of the depth."""
        if self.schedule.splits == 1 or not self.has_more_tiles:
            return []
        return ["share = tl.where(m == 0, share, tl.where(first == 0, steps, 0))",
                "first = tl.where(m == 0, first, 0)"]  # fmt: skip

    def _produce(self) -> str:
        count = total_bytes([self.left, *self.parts[0].tiles])
        expect = [_FULL, f"mbarrier.expect(full, {count})"]
        rest = [
            "stage = step % STAGES",
            "mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)",
            *expect, *self._copy_right("step"), *self._copy_left("step"),
        ]  # fmt: skip
        lines = [
            "filled = tl.minimum(steps, STAGES)",
            *([] if self.fills_early else ["await_previous()"]),
            *block("for stage in range(filled):", [*expect, *self._copy_right("stage")]),
            *(["await_previous()"] if self.fills_early else []),
            *block("for stage in range(filled):", [_FULL, *self._copy_left("stage")]),
            *block("for step in range(filled, steps):", rest),
        ]  # fmt: skip
        descriptors = [t.descriptor for t in self._tiles]
        return function("produce", [*descriptors, *self._shared, *self._place], lines)

    def _copy_left(self, step: str) -> list[str]:
        return [f"k = (first + {step}) * DEPTH", _copy_in(self.left, "n")]

    def _copy_right(self, step: str) -> list[str]:
        copies = by_piece(self.parts, lambda part, n: [_copy_in(t, n) for t in part.tiles])
        return [f"k = (first + {step}) * DEPTH", *copies]

    def _entry(self) -> str:
        depth = extent(self.accesses, self.contraction.depth)
        lines = ["begin_next()"] if self.schedule.early else []
        lines += [m.allocation for m in self._memories]
        for name in ("ready", "empty"):
            lines.append(f"{name} = gl.allocate_shared_memory(gl.int64, [STAGES, 1], "
                         "mbarrier.MBarrierLayout())")  # fmt: skip
            lines += block("for i in gl.static_range(STAGES):",
                           [f"mbarrier.init({name}.index(i), count=1)"])  # fmt: skip
        lines += [
            "n, m = gl.program_id(0), gl.program_id(1)",
            f"steps = tl.cdiv({depth}, DEPTH)",
            "share = tl.cdiv(steps, SHARES)",
            "first = gl.program_id(2) * share",
            *self._undivided(),
            "steps = tl.minimum(share, steps - first)",
            "gl.warp_specialize([",
            f"    (consume, ({', '.join([*self._shared, *self._place, *self.epilogue.memory])},)),",
            f"    (produce, ({', '.join([t.descriptor for t in self._tiles] + self._shared)}, "
            f"{', '.join(self._place)})),",
            f"], [1], [{COPY_REGISTERS}])",
        ]
        arguments = [*(t.descriptor for t in self._tiles), *self.epilogue.memory]
        return function(self.name, arguments, lines)


def _copy_in(tile: Tile, n: str) -> str:
    return f"copy_in({tile.descriptor}, {corner(tile, 0, n)}, full, {tile.slot('stage')})"


def _wait(pending: int, names: Sequence[str]) -> list[str]:
    """Until no more than `pending` products are under way."""
    deps = f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"
    return [f"{', '.join(names)} = warpgroup_mma_wait({pending}, deps={deps})"]

"""A score nest as one Gluon kernel for Hopper (templates/attention/nest.py has the form).

    produce   one warp has TMA copy the row factors of all groups, then blocks of key factors, into
              rings of stages, as far ahead as there is space
    consume   each group of four warps has 64 rows, and walks over the blocks (walk.py)

Barriers: `ready_b0[i]` says that stage i of the ring b0 has arrived, `empty_b0[i]` that all groups
have used it; `ready` and `used` are the same of the row factors.

A program takes tile after tile: the factors of the next are on their way while the results of one
are stored. Every second time programs choose in the other order. With causal masks tiles with many
keys come first, and what a program has of them then differs by a few percent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

from torchweld.codegen.gluon.names import HEADER, dialect
from torchweld.codegen.gluon.text import accumulator_layout, block, function
from torchweld.codegen.source import BufferArg, GridDim, KernelArg, KernelBundle, KernelSource
from torchweld.codegen.triton import scalars
from torchweld.ir.access import unmerged
from torchweld.ir.nodes import Buffer, Comp
from torchweld.templates.attention.gpu import generate as triton_nest
from torchweld.templates.attention.gpu.keys import limit
from torchweld.templates.attention.gpu.schedule import NestSchedule, padded
from torchweld.templates.attention.gpu.tiles import Tiles
from torchweld.templates.attention.hopper.faces import tiles_of
from torchweld.templates.attention.hopper.factors import Factors, factors_of
from torchweld.templates.attention.hopper.schedule import HopperSchedule, Windows
from torchweld.templates.attention.hopper.walk import consume
from torchweld.templates.attention.nest import Nest
from torchweld.templates.gemm.hopper.tiles import Memory, total_bytes
from torchweld.templates.pointwise_reduce.gpu.schedule import extent

# Groups -> registers of a thread: as many as all have when they start, of a group, and of those
# that have TMA copy. A multiprocessor has 65536, and four warps are the least that get some.
_REGISTERS = {2: (168, 240, 24), 3: (128, 160, 32)}


def generate(
    comp: Comp, buffers: Mapping[str, Buffer], nest: Nest, schedule: HopperSchedule,
    windows: Windows, otherwise: NestSchedule,
) -> KernelBundle:  # fmt: skip
    """The kernel of `comp`, which is `nest`. `otherwise`: how Triton tiles it, for addresses that
    TMA does not take."""
    accesses = unmerged(comp, buffers)
    depths = [padded(extent(accesses, i.depth)) for i in nest.inners]
    columns = [padded(extent(accesses, o.columns)) for o in nest.outers]
    writer = _Writer(
        tiles_of(accesses, buffers, nest, schedule), buffers,
        factors_of(windows, schedule, depths, columns), tuple(columns),
    )  # fmt: skip
    other = triton_nest.generate(comp, buffers, nest, replace(otherwise, splits=1), False)
    return KernelBundle(comp.name, (replace(writer.source(), otherwise=other.sources[0]),))


@dataclass(frozen=True, slots=True)
class _Writer:
    """The text of one kernel, function by function. `columns`: of the results."""

    t: Tiles
    buffers: Mapping[str, Buffer]
    factors: Factors
    columns: tuple[int, ...]

    @property
    def schedule(self) -> HopperSchedule:
        return self.t.schedule

    def source(self) -> KernelSource:
        k, s = self.t.score, self.schedule
        walked, copied = self._lines(self._consume), self._lines(self._produce)
        memory, (pointers, _) = k.memory, k.arguments
        tiles = [m.tile for m in self.factors.all]
        descriptors = [t.descriptor for t in tiles]
        name = re.sub(r"\W", "_", self.t.comp.name)
        functions = [
            function("consume", [*self._shared, *memory, "GROUP: gl.constexpr"], walked),
            function("produce", [*descriptors, *self._shared], copied),
            function(name, [*descriptors, *memory], self._entry(descriptors, memory)),
        ]
        text = HEADER + dialect("".join([self._constants(), *k.helpers.values(), *functions]))
        args: list[KernelArg] = [*(t.argument for t in tiles), *map(BufferArg, pointers)]
        signature = [scalars.SIGNATURE[t.window.dtype] for t in tiles]
        signature += [f"*{scalars.SIGNATURE[self.buffers[b].dtype]}" for b in pointers]
        return KernelSource(
            "gluon", name, text, tuple(args), (GridDim(self._programs),), (), tuple(signature),
            s.num_warps,
            max_registers=_REGISTERS[s.groups][0],
        )  # fmt: skip

    @property
    def _tiles(self) -> tuple[int, int]:
        """Points of the batch, and tiles of rows of each."""
        return self.t.points(self.t.batch), -(-self.t.rows // self.schedule.tile_rows)

    @property
    def _programs(self) -> int:
        return min(self.schedule.programs, prod(self._tiles))

    def _lines(self, emit) -> list[str]:
        """What `emit` writes."""
        texts = self.t.score.text_lines
        emit()
        lines = [text[4:] for text in texts]
        texts.clear()
        return lines

    def _constants(self) -> str:
        s = self.schedule
        numbers = {"ROWS": s.block_rows, "GROUPS": s.groups, "KEYS": s.block_keys,
                   "STAGES": s.stages, "PROGRAMS": self._programs}  # fmt: skip
        layouts = {"SCORES": s.block_keys} | {f"RESULT_{n}": n for n in self.columns}
        lines = [f"{name} = gl.constexpr({number})" for name, number in numbers.items()]
        for name, columns in layouts.items():
            layout = accumulator_layout(columns, s.num_warps)
            lines.append(f"{name} = gl.constexpr({layout})")
            if name != "SCORES":
                operand = f"gl.DotOperandLayout(0, {layout}, 2)"
                lines.append(f"SHARES_{columns} = gl.constexpr({operand})")
        return "\n" + "\n".join(lines) + "\n"

    @property
    def _barriers(self) -> dict[str, tuple[str, str]]:
        """How many there are, and how many arrivals each expects."""
        rings = [m.name for m in self.factors.rings]
        ready = {f"ready_{ring}": ("STAGES", "1") for ring in rings}
        empty = {f"empty_{ring}": ("STAGES", "GROUPS") for ring in rings}
        return {"ready": ("1", "1"), "used": ("1", "GROUPS")} | ready | empty

    @property
    def _shared(self) -> list[str]:
        return [*(m.name for m in self.factors.all), *self._barriers]

    def _entry(self, descriptors: Sequence[str], memory: Sequence[str]) -> list[str]:
        lines = [m.allocation for m in self.factors.all]
        for name, (slots, arrivals) in self._barriers.items():
            lines.append(f"{name} = gl.allocate_shared_memory(gl.int64, [{slots}, 1], "
                         "mbarrier.MBarrierLayout())")  # fmt: skip
            lines += block(f"for i in gl.static_range({slots}):",
                           [f"mbarrier.init({name}.index(i), count={arrivals})"])  # fmt: skip
        groups = self.schedule.groups
        _, registers, copying = _REGISTERS[groups]
        roles = [("consume", [*self._shared, *memory, str(g)]) for g in range(groups)]
        roles.append(("produce", [*descriptors, *self._shared]))
        return [
            *lines,
            "gl.warp_specialize([",
            *(f"    ({name}, ({', '.join(args)},))," for name, args in roles),
            f"], {[4] * (groups - 1) + [1]}, {[registers] * (groups - 1) + [copying]})",
        ]

    def _consume(self) -> None:
        with self._each_tile():
            self.t.score.line("tile = tile * GROUPS + GROUP")
            consume(self.t, self.factors, self.columns)

    def _produce(self) -> None:
        k = self.t.score
        with self._each_tile():
            size = total_bytes(m.tile for m in self.factors.fixed)
            k.line("mbarrier.wait(used.index(0), (turn & 1) ^ 1)")
            k.line(f"mbarrier.expect(ready.index(0), GROUPS * {size})")
            with k.indented("for group in gl.static_range(GROUPS):"):
                for memory in self.factors.fixed:
                    start = "tile * (GROUPS * ROWS) + group * ROWS"
                    self._copy(memory, "ready.index(0)", "group", start)
            with k.indented("for at in range(first, last):"):
                k.line("stage = step % STAGES")
                for memory in self.factors.rings:
                    ready, empty = (f"{w}_{memory.name}.index(stage)" for w in ("ready", "empty"))
                    k.line(f"mbarrier.wait({empty}, (step // STAGES & 1) ^ 1)")
                    k.line(f"mbarrier.expect({ready}, {memory.tile.bytes})")
                    self._copy(memory, ready, "stage", "at * KEYS")
                k.line("step += 1")

    def _copy(self, memory: Memory, barrier: str, slot: str, start: str) -> None:
        k, dims = self.t.score, memory.tile.window.dims
        places = {"depth": "0", "rows": start, "keys": start}
        where = ", ".join(places.get(d) or k.axis_variable(d) for d in dims)
        k.line(f"copy_in({memory.tile.descriptor}, [{where}], {barrier}, "
               f"{memory.name}.index({slot}))")  # fmt: skip

    @contextmanager
    def _each_tile(self) -> Iterator[None]:
        """`turn`: of this program's tiles; `step`: of its blocks of keys."""
        k, tiles = self.t.score, prod(self._tiles)
        k.line("step = 0")
        with k.indented(f"for turn in range({-(-tiles // self._programs)}):"):
            k.line("place = gl.program_id(0)")
            k.line("number = turn * PROGRAMS + place + turn % 2 * (PROGRAMS - 1 - 2 * place)")
            with k.indented(f"if number < {tiles}:"):
                self._position()
                yield

    def _position(self) -> None:
        """The point of the batch and tile of a number, and its blocks of keys, `first` to
        `last`."""
        t, k, s = self.t, self.t.score, self.schedule
        batch, tiles = self._tiles
        at = f"number % {batch}, number // {batch}"
        if s.group:
            at = f"_tile_at({at}, {batch}, {tiles}, {s.group})"
        k.line(k.helper(f"batch, tile = {at}"))
        if triton_nest.more_keys_later(t.nest):
            k.line(f"tile = {tiles - 1} - tile")
        k.split_axes("batch", t.batch)
        k.line(f"first, last = 0, {-(-t.keys // s.block_keys)}")
        whole = replace(t, schedule=replace(s, block_rows=s.tile_rows))
        limit(whole, "first", t.nest.bound.low, most=False, up=False)
        limit(whole, "last", t.nest.bound.high, most=True, up=True)

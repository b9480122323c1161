"""A score nest as one Gluon kernel for Hopper (templates/attention/nest.py has the form).

    produce   one warp has TMA copy the row factors of all groups, then blocks of key factors, into
              two rings of stages, as far ahead as there is space
    consume   each group of four warps has 64 rows, and walks over the blocks

While a group works on the scores of one block, the tensor cores multiply the shares of the block
before with their values:

    s = q k[0]^T;  p = share of s
    for each further block:
        s = q k^T            both products are under way ...
        o += p v[before]
        p' = share of s      ... and the second still is here
        o = o * kept;  p = p'
    o += p v[last]

Barriers: `k_ready[i]` says that stage i has arrived, `k_empty[i]` that all groups have used it; `v`
alike. The order of products and the use of registers follow Shah et al., "FlashAttention-3", 2024.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchweld.codegen.gluon.names import HEADER, dialect
from torchweld.codegen.gluon.text import accumulator_layout, block, function
from torchweld.codegen.source import BufferArg, GridDim, KernelArg, KernelBundle, KernelSource
from torchweld.codegen.triton import scalars
from torchweld.codegen.triton.scalars import TYPES
from torchweld.core import dtypes
from torchweld.ir.access import unmerged
from torchweld.ir.nodes import Buffer, Comp, Load, Value, needed, operands, store_axes
from torchweld.templates.attention.gpu import generate as triton_nest
from torchweld.templates.attention.gpu import keys as bounds
from torchweld.templates.attention.gpu.schedule import NestSchedule, padded
from torchweld.templates.attention.gpu.tiles import Face, Tiles
from torchweld.templates.attention.gpu.walk import arguments, hoist, masked, rising
from torchweld.templates.attention.hopper.faces import tiles_of
from torchweld.templates.attention.hopper.schedule import HopperSchedule, Windows, points
from torchweld.templates.attention.nest import Nest
from torchweld.templates.gemm.hopper.schedule import Window
from torchweld.templates.gemm.hopper.tiles import Memory, Tile
from torchweld.templates.pointwise_reduce.gpu import forms
from torchweld.templates.pointwise_reduce.gpu.reduce import combined, identity
from torchweld.templates.pointwise_reduce.gpu.walks import rounded

# Groups -> registers of a thread: as many as all have when they start, of a group, and of those
# that have TMA copy. A multiprocessor has 65536, and four warps are the least that get some.
_REGISTERS = {2: (168, 240, 24), 3: (128, 160, 32)}
_RINGS = ("k", "v")
_NOTHING = 'float("-inf")'


def generate(
    comp: Comp, buffers: Mapping[str, Buffer], nest: Nest, schedule: HopperSchedule,
    windows: Windows, otherwise: NestSchedule,
) -> KernelBundle:  # fmt: skip
    """The kernel of `comp`, which is `nest`. `otherwise`: how Triton tiles it, for addresses that
    TMA does not take."""
    source = _Writer(comp, buffers, nest, schedule, windows).source()
    other = triton_nest.generate(comp, buffers, nest, replace(otherwise, splits=1), False)
    return KernelBundle(comp.name, (replace(source, otherwise=other.sources[0]),))


@dataclass(frozen=True, slots=True)
class _Block:
    """What a loop over blocks is printed for. `covered`: the keys of its blocks, None if some may
    be out of bounds; `face`: that of its scores."""

    face: Face
    covered: int | None


@dataclass
class _Writer:
    """The text of one kernel, function by function."""

    comp: Comp
    buffers: Mapping[str, Buffer]
    nest: Nest
    schedule: HopperSchedule
    windows: Windows
    t: Tiles = field(init=False)
    tiles: dict[str, Tile] = field(init=False)
    memories: dict[str, Memory] = field(init=False)

    def __post_init__(self) -> None:
        accesses, s = unmerged(self.comp, self.buffers), self.schedule
        self.t = tiles_of(accesses, self.buffers, self.nest, s)
        depth, columns = (
            padded(points(accesses, axes))
            for axes in (self.nest.inners[0].depth, self.nest.outers[0].columns)
        )
        sides = {"rows": s.block_rows, "keys": s.block_keys, "depth": depth, "columns": columns}
        w = self.windows
        self.tiles = {
            name: Tile(name, window, window.block(**sides), name)
            for name, window in (("q", w.rows), ("k", w.keys), ("v", w.values))
        }
        slots = {"q": "GROUPS", "k": "STAGES", "v": "STAGES"}
        self.memories = {n: Memory(n, slots[n], t.block, t) for n, t in self.tiles.items()}
        self.width = columns

    def source(self) -> KernelSource:
        consume, produce = self._lines(self._consume), self._lines(self._produce)
        k = self.t.score
        memory = k.memory
        barriers = ["q_ready", *(f"{r}_{what}" for r in _RINGS for what in ("ready", "empty"))]
        shared = [*self.memories, *barriers]
        descriptors = [t.descriptor for t in self.tiles.values()]
        functions = [
            function("consume", [*shared, *memory, "GROUP: gl.constexpr"], consume),
            function("produce", [*descriptors, *shared], produce),
            function(self._name, [*descriptors, *memory], self._entry(barriers, memory)),
        ]
        text = HEADER + dialect("".join([self._constants(), *k.helpers.values(), *functions]))
        args: list[KernelArg] = [t.argument for t in self.tiles.values()]
        pointers, _ = k.arguments
        args += map(BufferArg, pointers)
        signature = [scalars.SIGNATURE[t.window.dtype] for t in self.tiles.values()]
        signature += [f"*{scalars.SIGNATURE[self.buffers[b].dtype]}" for b in pointers]
        s = self.schedule
        grid = GridDim(self.t.points(self.t.batch)), GridDim(self.t.rows, s.tile_rows)
        return KernelSource(
            "gluon", self._name, text, tuple(args), grid, (), tuple(signature), s.num_warps,
            max_registers=_REGISTERS[s.groups][0],
        )  # fmt: skip

    @property
    def _name(self) -> str:
        return re.sub(r"\W", "_", self.comp.name)

    def _lines(self, emit) -> list[str]:
        """What `emit` writes."""
        k = self.t.score
        emit()
        lines, k.text_lines[:] = [text[4:] for text in k.text_lines], []
        return lines

    def _constants(self) -> str:
        s = self.schedule
        numbers = {"ROWS": s.block_rows, "GROUPS": s.groups, "KEYS": s.block_keys,
                   "COLUMNS": self.width, "STAGES": s.stages}  # fmt: skip
        layouts = {"SCORES": s.block_keys, "RESULT": self.width}
        lines = [f"{name} = gl.constexpr({number})" for name, number in numbers.items()]
        lines += [
            f"{name} = gl.constexpr({accumulator_layout(columns, s.num_warps)})"
            for name, columns in layouts.items()
        ]
        result = accumulator_layout(self.width, s.num_warps)
        lines.append(f"SHARES = gl.constexpr(gl.DotOperandLayout(0, {result}, 2))")
        return "\n" + "\n".join(lines) + "\n"

    # functions

    def _entry(self, barriers: Sequence[str], memory: Sequence[str]) -> list[str]:
        s = self.schedule
        lines = [m.allocation for m in self.memories.values()]
        for name in barriers:
            slots = "1" if name == "q_ready" else "STAGES"
            arrivals = "GROUPS" if name.endswith("empty") else "1"
            lines.append(f"{name} = gl.allocate_shared_memory(gl.int64, [{slots}, 1], "
                         "mbarrier.MBarrierLayout())")  # fmt: skip
            lines += block(f"for i in gl.static_range({slots}):",
                           [f"mbarrier.init({name}.index(i), count={arrivals})"])  # fmt: skip
        shared = [*self.memories, *barriers]
        groups = [("consume", [*shared, *memory, str(g)]) for g in range(s.groups)]
        copies = ("produce", [*(t.descriptor for t in self.tiles.values()), *shared])
        warps = [4] * (s.groups - 1) + [1]
        _, group, copying = _REGISTERS[s.groups]
        registers = [group] * (s.groups - 1) + [copying]
        return [
            *lines,
            "gl.warp_specialize([",
            *(f"    ({name}, ({', '.join(args)},))," for name, args in (*groups, copies)),
            f"], {warps}, {registers})",
        ]

    def _produce(self) -> None:
        k = self.t.score
        self._position()
        rows = "tile * (GROUPS * ROWS)"
        with k.indented("if first < last:"):
            k.line(f"mbarrier.expect(q_ready.index(0), GROUPS * {_bytes(self.tiles['q'])})")
            with k.indented("for group in gl.static_range(GROUPS):"):
                self._copy("q", "q_ready.index(0)", "group", f"{rows} + group * ROWS")
            k.line("step = 0")
            with k.indented("for at in range(first, last):"):
                k.line("stage = step % STAGES")
                for ring in _RINGS:
                    k.line(f"mbarrier.wait({ring}_empty.index(stage), (step // STAGES & 1) ^ 1)")
                    ready = f"{ring}_ready.index(stage)"
                    k.line(f"mbarrier.expect({ready}, {_bytes(self.tiles[ring])})")
                    self._copy(ring, ready, "stage", "at * KEYS")
                k.line("step += 1")

    def _copy(self, name: str, barrier: str, slot: str, start: str) -> None:
        tile, k = self.tiles[name], self.t.score
        where = ", ".join(self._coordinate(tile.window, d, start) for d in tile.window.dims)
        k.line(f"copy_in({tile.descriptor}, [{where}], {barrier}, {name}.index({slot}))")

    def _coordinate(self, window: Window, dim: str, start: str) -> str:
        if dim in ("depth", "columns"):
            return "0"
        return start if dim in ("rows", "keys") else self.t.score.axis_variable(dim)

    def _position(self) -> None:
        """The program's point of the batch and tile, and its blocks of keys, `first` to `last`."""
        t, k, s = self.t, self.t.score, self.schedule
        at = "gl.program_id(0), gl.program_id(1)"
        if s.group:
            at = f"_tile_at({at}, gl.num_programs(0), gl.num_programs(1), {s.group})"
        k.line(k.helper(f"batch, tile = {at}"))
        if triton_nest.more_keys_later(self.nest):
            k.line("tile = gl.num_programs(1) - 1 - tile")
        k.split_axes("batch", t.batch)
        k.line(f"first, last = 0, {-(-t.keys // s.block_keys)}")
        whole = replace(t, schedule=replace(s, block_rows=s.tile_rows))
        self._limit("first", "low", whole, False, up=False)
        self._limit("last", "high", whole, True, up=True)

    def _limit(self, name: str, side: str, t: Tiles, most: bool, up: bool) -> None:
        """`name`: the block at a bound, the least or the most of the rows of `t`."""
        index, block_keys = getattr(self.nest.bound, side), self.schedule.block_keys
        if index is None:
            return
        value = f"tl.minimum(tl.maximum({bounds.extremes(t, index)[most]}, 0), {t.keys})"
        text = f"tl.cdiv({value}, {block_keys})" if up else f"{value} // {block_keys}"
        self.t.score.line(f"{name} = {text}")

    # consume

    def _consume(self) -> None:
        t, k, s = self.t, self.t.score, self.schedule
        self._position()
        k.line("tile = tile * GROUPS + GROUP")
        first, loops = self._loops()
        covered = rounded(t.rows, s.tile_rows)
        k.block("r", "tile", s.block_rows, s.rows, covered)
        self._start()
        (walk,) = self.nest.walks
        hoist(t, walk)
        known = dict(k.known)
        with k.indented("if first < last:"):
            self._first(first)
            for header, part in loops:
                k.known = dict(known)
                with k.indented(header):
                    self._step(part)
            k.line("old = (step - 1) % STAGES")
            self._multiply("(step - 1) // STAGES & 1")
            k.line("o, p = warpgroup_mma_wait(0, deps=(o, p))")
        k.known = dict(known)
        self._finish(covered)

    def _loops(self) -> tuple[_Block, list[tuple[str, _Block]]]:
        """How the first block is printed, and the loops over the others: those that a mask cuts,
        whole ones, and cut ones again."""
        t, k, s, bound = self.t, self.t.score, self.schedule, self.nest.bound
        every = rounded(t.keys, s.block_keys)
        whole, cut = _Block(t.whole, t.keys), _Block(k, every)
        masked = bound.low is not None or bound.high is not None
        if not masked and every == t.keys:
            return whole, [("for at in range(first + 1, last):", whole)]
        k.line(f"inner, outer = first + 1, {t.keys // s.block_keys}")
        self._limit("inner", "low", t, True, up=True)
        self._limit("outer", "high", t, False, up=False)
        k.line("inner = tl.minimum(tl.maximum(inner, first + 1), last)")
        k.line("outer = tl.maximum(tl.minimum(outer, last), inner)")
        loops = [("for at in range(inner, outer):", whole)]
        if bound.low is not None:
            loops.insert(0, ("for at in range(first + 1, inner):", cut))
        loops.append(("for at in range(outer, last):", cut))
        alone = masked or t.keys < s.block_keys
        return (cut if alone else whole), loops

    def _start(self) -> None:
        k, (walk,), (outer,) = self.t.score, self.nest.walks, self.nest.outers
        layout = "gl.SliceLayout(1, SCORES)"
        for value in walk.reductions:
            if value != outer.value:
                start = identity(k.body[value].monoid, dtypes.f32)
                k.line(f"acc{value} = gl.full((ROWS,), {start}, gl.float32, {layout})")
        k.line("o = gl.zeros((ROWS, COLUMNS), gl.float32, RESULT)")

    def _first(self, part: _Block) -> None:
        k = self.t.score
        k.line("mbarrier.wait(q_ready.index(0), 0)")
        k.line("mbarrier.wait(k_ready.index(0), 0)")
        k.line("at = first")
        self._begin(part, "0")
        k.line("s = warpgroup_mma_wait(0, deps=(s,))")
        k.line("mbarrier.arrive(k_empty.index(0), count=1)")
        self._weigh(part)
        k.line("p = gl.convert_layout(share, SHARES)")
        k.line("step = 1")

    def _step(self, part: _Block) -> None:
        """A block: its scores, and the product of the block before."""
        k, (walk,), (outer,) = self.t.score, self.nest.walks, self.nest.outers
        k.line("stage = step % STAGES")
        k.line("old = (step - 1) % STAGES")
        k.line("mbarrier.wait(k_ready.index(stage), step // STAGES & 1)")
        self._begin(part, "stage")
        self._multiply("(step - 1) // STAGES & 1")
        k.line("s = warpgroup_mma_wait(1, deps=(s,))")
        k.line("mbarrier.arrive(k_empty.index(stage), count=1)")
        self._weigh(part)
        k.line("o, p = warpgroup_mma_wait(0, deps=(o, p))")
        k.line("mbarrier.arrive(v_empty.index(old), count=1)")
        base = dict(walk.rescaled).get(outer.value)
        if base is not None:
            k.line(f"o = o * {_wide(f'kept{base}')}")
        k.line("p = gl.convert_layout(share, SHARES)")
        k.line("step += 1")

    def _begin(self, part: _Block, stage: str) -> None:
        """The product that makes the scores of a block, under way; where its keys are, and what is
        loaded for them meanwhile."""
        k, face, s = self.t.score, part.face, self.schedule
        q = self.memories["q"].matrix("GROUP", "depth")
        keys = self.memories["k"].matrix(stage, "keys")
        k.line("s = gl.zeros((ROWS, KEYS), gl.float32, SCORES)")
        k.line(f"s = warpgroup_mma({q}, {keys}, s, is_async=True, use_acc=False)")
        face.known = dict(k.known)
        face.block("lc", "at", s.block_keys, s.keys, part.covered)
        (walk,), (inner,) = self.nest.walks, self.nest.inners
        wanted = needed(face.body, arguments(self.t, face, walk), stop={*face.known, inner.value})
        for value in sorted(wanted):
            instr = face.body[value]
            plain = isinstance(instr, Load) and not operands(instr)
            if plain and face.along(face.axes[value]) == "rc":
                face.value(value)
        face.known[inner.value] = "s"

    def _multiply(self, parity: str) -> None:
        k = self.t.score
        values = self.memories["v"].matrix("old", "columns")
        k.line(f"mbarrier.wait(v_ready.index(old), {parity})")
        k.line(f"o = warpgroup_mma(p, {values}, o, is_async=True)")

    def _weigh(self, part: _Block) -> None:
        """The statistics with a block taken in, and `share`: what its values are multiplied by."""
        face, (walk,), (outer,) = part.face, self.nest.walks, self.nest.outers
        for value in walk.reductions:
            if value == outer.value:
                dtype = TYPES[face.body[outer.key].dtype]
                face.line(f"share = {masked(face, 'sum', outer.weight)}.to({dtype})")
            elif face.body[value].monoid == "sum":
                base = dict(walk.rescaled).get(value)
                before = f"acc{value}" if base is None else f"acc{value} * kept{base}"
                tile = masked(face, "sum", face.arg(value))
                face.line(f"acc{value} = {before} + gl.sum({tile}, 1)")
            else:
                self._extreme(face, value)

    def _extreme(self, face: Face, value: Value) -> None:
        """As in Triton (gpu/walk.py), but that statistics have one dimension."""
        x, scale = rising(face, face.arg(value))
        tile = masked(face, "max", x)
        face.helper("_reduce_maximum(")
        found = f"gl.reduce({tile}, 1, _reduce_maximum)" + (f" * {scale!r}" if scale != 1.0 else "")
        face.line(f"new = {combined(face, 'max', dtypes.f32, f'acc{value}', found)}")
        if any(base == value for _, base in self.nest.walks[0].rescaled):
            face.line(f"base{value} = tl.where(new == {_NOTHING}, 0.0, new)")
            face.line(f"kept{value} = exp_flushed(acc{value} - base{value})")
            face.known[value] = f"base{value}[:, None]"
        face.line(f"acc{value} = new")

    # what follows

    def _finish(self, covered: int | None) -> None:
        t, k, (walk,) = self.t, self.t.score, self.nest.walks
        ((columns, end),) = t.ends.items()
        width = padded(t.points(columns))
        end.block("ro", "tile", self.schedule.block_rows, self.schedule.rows, covered)
        end.block("e0c", "", width, columns, width)
        (outer,) = self.nest.outers
        for total, base in walk.rescaled:
            if not triton_nest.is_guarded(self.comp, base):
                self._restore("o" if total == outer.value else f"acc{total}", base)
        for value in walk.reductions:
            if value == outer.value:
                end.known[value] = "o"
            else:
                k.known[value] = f"acc{value}[:, None]"
                end.known[value] = _wide(f"acc{value}")
        for position, store in enumerate(self.comp.stores):
            face = end if store_axes(self.comp, store, k.axes) & set(columns) else k
            face.compute(forms.stored(face, [position]))
            face.store(position)

    def _restore(self, name: str, base: Value) -> None:
        """A sum of exp(x - max(x)) is NaN where the maximum is -inf, unless the Comp has zero in
        its place."""
        top = _wide(f"acc{base}") if name == "o" else f"acc{base}"
        self.t.score.line(f'{name} = tl.where({top} == {_NOTHING}, float("nan"), {name})')


def _wide(name: str) -> str:
    """A statistic of the scores, along the columns of the result."""
    return f"gl.convert_layout({name}, gl.SliceLayout(1, RESULT))[:, None]"


def _bytes(tile: Tile) -> int:
    size = tile.window.dtype.bytes
    for extent in tile.block:
        size *= extent
    return size

"""Products with their neighbours as one Triton kernel (schedule.py has the tiles).

    acc = 0
    for each block of the depth:
        left [BM, BK], right [BK, BN]: loaded, or computed from loads and rounded to 16 bits
        acc += dot(left, right)                     for each product
        sums += what is reduced of the left factor  lane by lane
    epilogue over [BM, BN], stores

Numbers of few bits, several in one byte, are unpacked in phases: a tile of bytes is read once, and
each of its parts multiplied with the left factor's elements at the same places.

Three faces of one `Kernel` print the three kinds of tiles: rows x depth, depth x columns and
rows x columns. With `splits`, programs share the depth of a tile: each writes partial results, and
the one that comes last adds them in the order of the shares and goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from torchweld.codegen.source import GridDim, KernelBundle
from torchweld.codegen.triton import scalars
from torchweld.codegen.triton.wide import TF32X3
from torchweld.core import dtypes
from torchweld.ir.access import Access, Accesses, linear
from torchweld.ir.affine import Affine
from torchweld.ir.contraction import Contraction, operand
from torchweld.ir.nodes import Buffer, Comp, Load, Value
from torchweld.ir.size import Size, known_factor
from torchweld.templates.gemm.alignment import WHOLE
from torchweld.templates.gemm.column_sums import sums_of
from torchweld.templates.gemm.concatenation import parts_of
from torchweld.templates.gemm.schedule import ProductSchedule, tiled
from torchweld.templates.gemm.triton.schedule import one_at_a_time, phases_of, points_of, valid
from torchweld.templates.pointwise_reduce.gpu import forms
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.reduce import combined
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule, extent, next_pow2
from torchweld.templates.pointwise_reduce.gpu.walks import quotient, rounded

LINE = 64  # elements of a line of L2
EARLY_BYTES = 32 << 10  # that a program has fetched before it waits
_PRECISION = {dtypes.f32: f", {TF32X3}", dtypes.i8: ", out_dtype=tl.int32"}  # of a dot
# Shares of a depth whose sums are loaded one after the other without a loop, and those that are in
# a turn of the loop over the rest: 32 at once are more than registers hold.
_MERGED_AT_ONCE, _MERGED_IN_TURN = 16, 4
STREAM_REGISTERS = 255  # without a limit, ptxas spills a few so that more blocks fit


@dataclass(frozen=True, slots=True)
class _Template:
    """The faces: `end` is that of the epilogue, `sums` of what is reduced of the left factor.
    `starts`: of a right factor of parts, the variable that holds where this tile's part begins.
    `totals`: where sums of a tile's columns go, by position of the store. `phases`: axes of the
    depth along which packed numbers are adjacent; blocks of the depth go along the others."""

    contraction: Contraction
    schedule: ProductSchedule
    left: Kernel
    right: Kernel
    sums: Kernel
    end: Kernel
    starts: dict[Value, str]
    totals: Mapping[int, Buffer]
    phases: tuple[str, ...]

    @property
    def depth(self) -> tuple[str, ...]:
        """The axes that blocks of the depth go along."""
        return tuple(a for a in self.contraction.depth if a not in self.phases)

    @property
    def block_k(self) -> int:
        """Of a block, along those."""
        return self.left.block_columns

    def extent(self, axes: tuple[str, ...]) -> Size:
        return extent(self.end.accesses, axes)

    @property
    def reductions(self) -> tuple[Value, ...]:
        return (*(p.value for p in self.contraction.products), *self.contraction.row_sums)


def generate(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    schedule: ProductSchedule,
    hints: Mapping[str, int] | None = None,
) -> KernelBundle:
    """The kernel of `comp`, tiled by `schedule` of form "triton" or "stream".

    Raises InvalidIR if `comp` makes no products or the schedule does not fit."""
    accesses, contraction = tiled(comp, buffers, schedule, hints, valid)
    partials = _partials(accesses, contraction, buffers, schedule)
    sums = sums_of(accesses, contraction, buffers, schedule)
    scratch = (*partials.values(), *sums.scratch.values())
    every = {**buffers, **{b.name: b for b in scratch}}
    t = _template(accesses, contraction, every, schedule, sums.scratch)
    _position(t)
    _choose_parts(t)
    if schedule.early:
        _begin_early(t)
    _main_loop(t)
    _single_rows(t)
    if schedule.splits == 1:
        _epilogue(t)
    else:
        _merge(t, partials)
    blocks = (
        GridDim(t.extent(contraction.rows), schedule.block_m),
        GridDim(t.extent(contraction.columns), schedule.block_n),
        GridDim(t.extent(contraction.batch) * schedule.splits),
    )
    zeroed = tuple(b.name for value, b in partials.items() if value is None)
    registers = STREAM_REGISTERS if schedule.form == "stream" else None
    source = replace(t.end.source(blocks), early=schedule.early, max_registers=registers)
    return KernelBundle(comp.name, (source, *sums.sources(every, schedule.early)), scratch, zeroed)


def _template(
    accesses: Accesses,
    c: Contraction,
    buffers: Mapping[str, Buffer],
    s: ProductSchedule,
    totals: Mapping[int, Buffer],
) -> _Template:
    def tile(rows, columns, block_rows: int, block_columns: int) -> Schedule:
        return Schedule("grid", rows, columns, block_rows, block_columns, s.num_warps)

    ends = tile(c.rows, c.columns, s.block_m, s.block_n)
    end = Kernel(accesses, buffers, ends, (c.batch, c.rows, c.columns, c.depth))
    phases = phases_of(accesses, c)
    depth = tuple(a for a in c.depth if a not in phases)
    block_k = s.block_k // points_of(accesses, phases)
    left = end.facing(tile(c.rows, depth, s.block_m, block_k), "r", "ck")
    right = end.facing(tile(depth, c.columns, block_k, s.block_n), "rk", "c")
    # To the dots, a single row is a tile of rows of which all but one are out of bounds.
    sums = left if c.rows else left.facing(left.schedule, "r", "ck")
    return _Template(c, s, left, right, sums, end, {}, totals, phases)


def _position(t: _Template) -> None:
    """Which tile, of which batch and share, and the indices of its rows and columns."""
    k, s, c = t.end, t.schedule, t.contraction
    at = "tl.program_id(0), tl.program_id(1)"
    if s.group > 1:
        at = k.helper(f"_tile_at({at}, tl.num_programs(0), tl.num_programs(1), {s.group})")
    k.line(f"tile_r, tile_c = {at}")
    if s.splits > 1:
        k.line(f"share = tl.program_id(2) % {s.splits}")
    if c.batch:
        k.line(f"batch = {_wide(k, f'(tl.program_id(2) // {s.splits})')}")
        k.split_axes("batch", c.batch)
    _define(k, "r", _wide(k, "tile_r"), s.block_m, c.rows)
    _define(k, "c", _wide(k, "tile_c"), s.block_n, c.columns)


def _choose_parts(t: _Template) -> None:
    """Where the part of a right factor begins in whose columns the tile is."""
    k, s = t.end, t.schedule
    for value in dict.fromkeys(operand(k.body, p.right) for p in t.contraction.products):
        parts = one_at_a_time(k.accesses, t.contraction, s, value)
        text = ""  # from the last part to the first
        for part, end in zip(reversed(parts), (None, *(p.first for p in reversed(parts)))):
            access = k.accesses.loads[part.load]
            start = f"{k.pointer(access.buffer)} + {k.size(access.offset.const)}"
            text = f"tl.where(tile_c < {end // s.block_n}, {start}, {text})" if text else start
        if parts:
            t.starts[value] = f"start{value}"
            k.line(f"start{value} = {text}")


def _address(t: _Template, face: Kernel, value: Value) -> str | None:
    """Of a tile of a factor that is read as it is, None of one that is computed."""
    access = _access(t, value)
    if access is None or value not in t.starts:
        return access and face.address(access, "rc")
    return f"{t.starts[value]} + ({face.offset(Affine(access.offset.terms))})"


def _access(t: _Template, value: Value) -> Access | None:
    """How a factor is read that is not computed; of one in parts, the first."""
    if value in t.starts:
        value = parts_of(t.end.accesses, t.contraction, value)[0].load
        return t.end.accesses.loads[value]
    instr = t.end.body[value]
    plain = isinstance(instr, Load) and instr.guard is None
    return t.end.accesses.loads[value] if plain else None


def _wide(k: Kernel, number: str) -> str:
    return number if k.index_type == "tl.int32" else f"{number}.to(tl.int64)"


def _define(
    k: Kernel, name: str, block: str, points: int, axes: tuple[str, ...], steps: int = 1,
    uniform: bool = False,
):  # fmt: skip
    lanes = f"tl.arange(0, {points})[{':, None' if name[0] == 'r' else 'None, :'}]"
    covered = rounded(extent(k.accesses, axes), points * steps)
    k.define(name, f"{block} * {points}", lanes, axes, covered, points * uniform)


def _begin_early(t: _Template) -> None:
    """The first weights are fetched while the kernel before, which may write the left factor, still
    runs."""
    k, s, c = t.end, t.schedule, t.contraction
    lines = max(1, EARLY_BYTES // (2 * LINE * s.block_n * len(c.products)))
    lines = next_pow2(lines + 1) // 2  # the power of two below
    tile = Schedule("grid", c.depth, c.columns, lines, s.block_n, s.num_warps)
    face = t.right.facing(tile, "line", "c")
    start = "0" if s.splits == 1 else f"share * {_steps(t)} * {s.block_k}"
    face.define("line", start, f"tl.arange(0, {lines})[:, None] * {LINE}", c.depth, None)
    for value in dict.fromkeys(operand(k.body, p.right) for p in c.products):
        access = _access(t, value)
        if access and not access.refs and linear(k.accesses, access.offset, c.depth) == 1:
            k.line(k.helper(f"_prefetch({_address(t, face, value)}, {face.mask('rc')})"))
    k.line(k.helper("_await_previous()"))


def _steps(t: _Template) -> str:
    """Blocks of the depth that a program walks over."""
    s = t.schedule
    return quotient(t.end, t.extent(t.depth), t.block_k * s.splits, up=True)


def _main_loop(t: _Template) -> None:
    k, s, c = t.end, t.schedule, t.contraction
    for p in c.products:
        kind = scalars.TYPES[k.body[p.value].dtype]
        k.line(f"acc{p.value} = tl.zeros([{s.block_m}, {s.block_n}], {kind})")
        k.known[p.value] = f"acc{p.value}"
    for value in c.row_sums:
        forms.accumulator(t.sums, value, _lanes(t, value))
    forms.hoist(t.left, [operand(k.body, p.left) for p in c.products], "r", t.phases)
    rights = (operand(k.body, p.right) for p in c.products)
    forms.hoist(t.right, [v for v in rights if v not in t.starts], "c", t.phases)
    steps = _steps(t)
    with k.indented(f"for block in tl.range({steps}, num_stages={s.stages}):"):
        step = "block" if s.splits == 1 else f"(share * {steps} + block)"
        for face, name in ((t.left, "ck"), (t.right, "rk")):
            uniform = face is t.right and all(p.right_load is None for p in c.products)
            _define(face, name, step, t.block_k, t.depth, s.splits, uniform)
        lefts = _dealt(t, step)
        for number in _each_phase(t):
            t.left.known |= {v: names[number] for v, names in lefts.items()}
            _multiply(t)
        for value in c.row_sums:
            forms.accumulate(t.sums, value, _lanes(t, value), over="c")
    for value in c.row_sums:
        forms.finish_accumulator(t.sums, value, 1)
        k.known[value] = t.sums.known[value]


def _dealt(t: _Template, step: str) -> dict[Value, list[str]]:
    """Left factors that are adjacent along the whole depth, loaded in one piece and dealt out to
    the phases: for each the tiles by phase. Elements that are some apart would be loaded singly."""
    s, accesses, depth = t.schedule, t.end.accesses, (*t.depth, *t.phases)
    if not t.phases:
        return {}
    tile = replace(t.left.schedule, columns=depth, block_columns=s.block_k)
    face = t.left.facing(tile, "r", "cw")
    loads = dict.fromkeys(p.left_load for p in t.contraction.products)
    plain = [v for v in loads if v is not None and not accesses.loads[v].refs]
    plain = [v for v in plain if linear(accesses, accesses.loads[v].offset, depth) == 1]
    if plain:
        _define(face, "cw", step, s.block_k, depth, s.splits)
    return {v: _parts(t, f"x{v}", _factor(t, face, v, "cw")) for v in plain}


def _parts(t: _Template, name: str, tile: str) -> list[str]:
    """The parts of a tile [rows, depth] whose neighbours along the depth are in different phases,
    by phase. A split deals out pairs: the last bit of the phase first."""
    bits = (t.schedule.block_k // t.block_k).bit_length() - 1
    shape = ", ".join(map(str, (t.schedule.block_m, t.block_k, *[2] * bits)))
    t.end.line(f"{name} = tl.reshape({tile}, ({shape}))")
    names = [name]
    for _ in range(bits):
        pairs = [(f"{n}_0", f"{n}_1") for n in names]
        for part, (low, high) in zip(names, pairs):
            t.end.line(f"{low}, {high} = tl.split({part})")
        names = [low for low, _ in pairs] + [high for _, high in pairs]
    return names


def _each_phase(t: _Template) -> Iterator[int]:
    """The number of each point of the phases, after the text says which it is; what varies along
    them is made anew each time."""
    k = t.end
    for number, point in enumerate(product(*(range(k.comp.extent(a)) for a in t.phases))):
        for axis, at in zip(t.phases, point):
            k.line(f"{k.axis_variable(axis)} = tl.full((), {at}, tl.int32)")
        kept = [dict(face.known) for face in (t.left, t.right)]
        yield number
        for face, before in zip((t.left, t.right), kept):
            fixed = {v: n for v, n in face.known.items() if not face.axes[v] & set(t.phases)}
            face.known = before | fixed


def _multiply(t: _Template) -> None:
    """Adds the products of one tile of each factor."""
    k = t.end
    for p in t.contraction.products:
        a = _factor(t, t.left, operand(k.body, p.left), "ck")
        b = _factor(t, t.right, operand(k.body, p.right), "rk")
        more = _PRECISION.get(k.body[operand(k.body, p.left)].dtype, "")
        k.line(f"acc{p.value} = tl.dot({a}, {b}, acc{p.value}{more})")


def _lanes(t: _Template, value: Value) -> str:
    """Which dimensions the accumulator of a reduction of the left factor has."""
    return t.sums.along(t.sums.axes[value]) + "c"


def _factor(t: _Template, face: Kernel, value: Value, depth: str) -> str:
    """The tile of a factor, zero beyond the depth; what is beyond the rows or columns is never
    stored."""
    if value in face.known:
        return face.known[value]
    if (address := _address(t, face, value)) is not None:
        mask = _bounds(t, face, value)
        zero = f", mask={mask}, other={_zero(face, value)}" if mask else ""
        return face.assign(value, f"tl.load({address}{zero})")
    text = face.value(value)
    if face is t.right:  # what is the same for a whole block may be read once
        text = face.assign(value, f"tl.broadcast_to({text}, {face.shape('rc')})")
    inside = f"tl.where({depth}m, {text}, {_zero(face, value)})" if face.masked(depth) else text
    return face.assign(value, inside)


def _bounds(t: _Template, face: Kernel, value: Value) -> str:
    """The mask of a factor's tile. Of one that lies along the rows or columns, in lines that begin
    at multiples of 16 bytes, the whole of the last 16 are loaded: Triton takes as many at once as
    it knows to be in bounds together, and does not pipeline loads of less than 4 bytes."""
    side, depth = ("r", "c") if face is t.left else ("c", "r")
    axes = t.contraction.rows if face is t.left else t.contraction.columns
    access, end = _access(t, value), t.extent(axes)
    lanes, masked = WHOLE // face.body[value].dtype.bytes, face.masked(side)
    if value in t.starts or access.refs or not masked or not isinstance(end, int):
        return face.mask("rc")
    offset = access.offset
    steps = (offset.const, *(offset.coefficient(a) for a in set(offset.axes) - set(axes)))
    if linear(face.accesses, offset, axes) != 1 or any(known_factor(n) % lanes for n in steps):
        return face.mask("rc")
    return face.mask(depth, f"({side} < {-(-end // lanes) * lanes})")


def _zero(k: Kernel, value: Value) -> str:
    return scalars.literal(0, k.body[value].dtype)


def _single_rows(t: _Template) -> None:
    """Products of a single row: the first of the tile's rows."""
    k = t.end
    if not t.contraction.rows:
        for p in t.contraction.products:
            first = f"tl.where(r == 0, {k.known[p.value]}, {_zero(k, p.value)})"
            k.assign(p.value, f"tl.sum({first}, axis=0, keep_dims=True)")


def _epilogue(t: _Template) -> None:
    k = t.end
    positions = range(len(k.comp.stores))
    k.compute(forms.stored(k, positions))
    for position in positions:
        if position in t.totals:
            _store_sum(t, position)
        else:
            k.store(position)


def _store_sum(t: _Template, position: int) -> None:
    """Of the tile's rows in each column."""
    k, partial = t.end, t.totals[position]
    value = k.value(k.comp.stores[position].value)
    inside = f"tl.where(rm, {value}, 0.0)" if k.masked("r") else value
    total = f"tl.sum({inside}, axis=0, keep_dims=True)"
    place = f"tile_r * {k.size(t.extent(t.contraction.columns))} + c"
    k.write("store", f"{k.pointer(partial.name)} + ({place})", total, k.mask("c"))


# shares of the depth


def _partials(
    accesses: Accesses, c: Contraction, buffers: Mapping[str, Buffer], s: ProductSchedule
) -> dict[Value | None, Buffer]:
    """Scratch for the partial results of each Reduce, tile by tile, and (None) how many shares of
    each tile are done."""
    if s.splits == 1:
        return {}
    rows, columns, batch = (extent(accesses, axes) for axes in (c.rows, c.columns, c.batch))
    tiles = -(-rows // s.block_m) * -(-columns // s.block_n) * batch
    comp = accesses.comp
    device = buffers[comp.stores[0].buffer].device
    points = {p.value: (s.block_m if c.rows else 1) * s.block_n for p in c.products}
    points |= {v: s.block_m if c.rows else 1 for v in c.row_sums}
    made: dict[Value | None, Buffer] = {
        v: Buffer(f"{comp.name}_part{v}", (s.splits * tiles * n,), comp.body[v].dtype, (1,), device)
        for v, n in points.items()
    }
    made[None] = Buffer(f"{comp.name}_done", (tiles,), dtypes.i32, (1,), device)
    return made


def _merge(t: _Template, partials: Mapping[Value | None, Buffer]) -> None:
    """Writes what this share has; the last share of a tile adds all and does the rest. Each sum is
    read back in the order of the shares, so that it does not depend on who is last."""
    k, splits = t.end, t.schedule.splits
    done = k.pointer(partials[None].name)
    k.line("tile = tile_r + tile_c * tl.num_programs(0)")
    k.line("tiles = tl.num_programs(0) * tl.num_programs(1)")
    if t.contraction.batch:
        k.line("tile += batch * tiles")
        k.line(f"tiles *= tl.num_programs(2) // {splits}")
    for value in t.reductions:
        address = _partial(k, value, partials[value], "share")
        k.line(f"tl.store({address}, {k.known[value]})")
    k.line("tl.debug_barrier()")
    k.line(f"arrived = tl.atomic_add({done} + tile, 1)")
    with k.indented(f"if arrived == {splits - 1}:"):
        for value in t.reductions:
            first = min(splits, _MERGED_AT_ONCE)
            for share in range(first):
                _add_share(k, value, partials[value], str(share), first=share == 0)
            if first < splits:
                how = f"{first}, {splits}, loop_unroll_factor={_MERGED_IN_TURN}"
                with k.indented(f"for other in tl.range({how}):"):
                    _add_share(k, value, partials[value], "other")
        _epilogue(t)
        k.line(f"tl.store({done} + tile, 0)")


def _add_share(k: Kernel, value: Value, partial: Buffer, share: str, first: bool = False) -> None:
    """To what is known of a Reduce, or as the first of it."""
    text = f'tl.load({_partial(k, value, partial, share)}, cache_modifier=".cg")'
    if not first:
        instr = k.body[value]
        text = combined(k, instr.monoid, instr.dtype, k.known[value], text)
    k.assign(value, text)


def _partial(k: Kernel, value: Value, buffer: Buffer, share: str) -> str:
    """Where a share of a tile has its part of a Reduce."""
    along = k.along(k.axes[value])
    width = k.block_columns if "c" in along else 1
    rows = f"tl.arange(0, {k.block_rows})[:, None] * {width}"
    columns = f"tl.arange(0, {width})[None, :]"
    lanes = [text for d, text in (("r", rows), ("c", columns)) if d in along]
    points = width * (k.block_rows if "r" in along else 1)
    start = f"({share} * tiles + tile) * {points}"
    lanes = " + ".join(lanes or ["tl.zeros([1, 1], tl.int32)"])
    return f"{k.pointer(buffer.name)} + ({start} + {lanes})"

"""Attention of a few queries over many keys as one Triton kernel (schedule.py has the
form and the tiles).

    query [BM, BD]
    for each block of the keys:
        scores [BM, BL] = dot(query, key [BD, BL]), then what is pointwise: scale, mask
        the running maximum moves; total and mix are rescaled
        total += weights; mix [BM, BE] += dot(weights, value [BL, BE])
    epilogue over [BM, BE], stores

Four faces of one `Kernel` print the four kinds of tiles. With `splits`, each program writes its
maximum, total and mix, and the one that comes last merges them in the order of the shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.codegen.source import GridDim, KernelBundle
from torchweld.codegen.triton.scalars import TYPES
from torchweld.core import dtypes
from torchweld.ir.access import unmerged
from torchweld.ir.nodes import Buffer, Comp, Load, Value
from torchweld.ir.size import Size
from torchweld.templates.attention.schedule import Attention, AttentionSchedule, extent
from torchweld.templates.pointwise_reduce.gpu import forms
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule
from torchweld.templates.pointwise_reduce.gpu.walks import quotient, rounded


@dataclass(frozen=True, slots=True)
class _Template:
    """`end` is the face of rows and columns."""

    comp: Comp
    attention: Attention
    schedule: AttentionSchedule
    query: Kernel
    key: Kernel
    scores: Kernel
    value: Kernel
    end: Kernel


def generate(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    attention: Attention,
    schedule: AttentionSchedule,
    early: bool,
) -> KernelBundle:
    """The kernel of `comp`, which is `attention`. `early`: it begins while the one before still
    runs."""
    scratch = _partials(comp, buffers, attention, schedule)
    t = _template(comp, {**buffers, **{b.name: b for b in scratch}}, attention, schedule)
    k = t.end
    _position(t)
    if early:
        k.line(k.helper("_await_previous()"))
    _walk(t)
    if schedule.splits > 1:
        _merge(t, *scratch)
    else:
        _finish(t)
    grid = (
        GridDim(extent(comp, attention.batch)),
        GridDim(extent(comp, attention.rows), schedule.block_rows),
        GridDim(schedule.splits),
    )
    zeroed = tuple(b.name for b in scratch if b.dtype == dtypes.i32)
    return KernelBundle(comp.name, (replace(k.source(grid), early=early),), scratch, zeroed)


def _template(
    comp: Comp, buffers: Mapping[str, Buffer], a: Attention, s: AttentionSchedule
) -> _Template:
    def tile(rows, columns, block_rows: int, block_columns: int) -> Schedule:
        return Schedule("grid", rows, columns, block_rows, block_columns, s.num_warps)

    ends = tile(a.rows, a.columns, s.block_rows, s.block_columns)
    dimensions = (a.batch, a.rows, a.columns, a.depth, a.keys)
    end = Kernel(unmerged(comp, buffers), buffers, ends, dimensions)
    query = end.facing(tile(a.rows, a.depth, s.block_rows, s.block_depth), "r", "dc")
    key = end.facing(tile(a.depth, a.keys, s.block_depth, s.block_keys), "dr", "lc")
    scores = end.facing(tile(a.rows, a.keys, s.block_rows, s.block_keys), "r", "lc")
    value = end.facing(tile(a.keys, a.columns, s.block_keys, s.block_columns), "lr", "c")
    return _Template(comp, a, s, query, key, scores, value, end)


def _position(t: _Template) -> None:
    """Which heads, rows and share; what does not change from key to key."""
    k, a, s = t.end, t.attention, t.schedule
    k.line(f"batch = {k.program(0)}")
    k.split_axes("batch", a.batch)
    if s.splits > 1:
        k.line("share = tl.program_id(2)")
    covered = rounded(extent(t.comp, a.rows), s.block_rows)
    _define(k, "r", k.program(1), s.block_rows, a.rows, covered)
    for face, name, points, axes in (
        (k, "c", s.block_columns, a.columns), (t.query, "dc", s.block_depth, a.depth),
        (t.key, "dr", s.block_depth, a.depth),
    ):  # fmt: skip
        _define(face, name, "0", points, axes, covered=points)


def _define(k: Kernel, name: str, block: str, points: int, axes, covered: Size) -> None:
    """The indices `name` of a block of `axes`, for the face that calls them so; `covered`: points
    of all blocks together."""
    lanes = f"tl.arange(0, {points})[{':, None' if name[-1] == 'r' else 'None, :'}]"
    k.define(name, f"{block} * {points}", lanes, axes, covered)


def _walk(t: _Template) -> None:
    """One pass over the keys of this share."""
    k, a, s = t.end, t.attention, t.schedule
    rows, columns = s.block_rows, s.block_columns
    k.line(f"q = {_factor(t.query, a.query)}")
    k.line(f'top = tl.full([{rows}, 1], float("-inf"), tl.float32)')
    k.line(f"total = tl.zeros([{rows}, 1], tl.float32)")
    k.line(f"mix = tl.zeros([{rows}, {columns}], tl.float32)")
    steps = quotient(k, extent(t.comp, a.keys), s.block_keys * s.splits, up=True)
    narrow = TYPES[k.body[a.value].dtype]
    with k.indented(f"for block in tl.range({steps}, num_stages={s.stages}):"):
        step = "block" if s.splits == 1 else f"(share * {steps} + block)"
        covered = rounded(extent(t.comp, a.keys), s.block_keys * s.splits)
        for face, name in ((t.scores, "lc"), (t.value, "lr")):
            _define(face, name, step, s.block_keys, a.keys, covered)
        t.scores.assign(a.scores, f"tl.dot(q, {_factor(t.key, a.key)})")
        shifted = t.scores.value(a.shifted)
        if k.masked("lc"):
            shifted = f'tl.where(lcm, {shifted}, float("-inf"))'
        k.line(f"t = {shifted}")
        k.line("higher = tl.maximum(top, tl.max(t, axis=1, keep_dims=True))")
        k.line(k.helper("base = _finite(higher)"))
        k.line("weight = tl.exp(t - base)")
        k.line("kept = tl.exp(top - base)")
        k.line("total = total * kept + tl.sum(weight, axis=1, keep_dims=True)")
        k.line(f"mix = tl.dot(weight.to({narrow}), {_factor(t.value, a.value)}, mix * kept)")
        k.line("top = higher")


def _factor(face: Kernel, value: Value) -> str:
    """The tile of a factor, zero out of bounds."""
    instr, mask = face.body[value], face.mask("rc")
    if isinstance(instr, Load) and instr.guard is None:
        zero = f", mask={mask}, other=0.0" if mask else ""
        return f"tl.load({face.address(face.accesses.loads[value], 'rc')}{zero})"
    text = face.value(value)
    return f"tl.where({mask}, {text}, 0.0)" if mask else text


def _finish(t: _Template) -> None:
    k, a = t.end, t.attention
    k.known |= {a.mix: "mix", a.total: "total", a.top: "top"}
    k.compute(forms.stored(k, [0]))
    k.store(0)


# shares of the keys


def _partials(
    comp: Comp, buffers: Mapping[str, Buffer], a: Attention, s: AttentionSchedule
) -> tuple[Buffer, ...]:
    """Scratch: the maximum and total of each row and share, its mix, and how many shares of each
    tile are done."""
    if s.splits == 1:
        return ()
    device = buffers[comp.stores[0].buffer].device
    tiles = extent(comp, a.batch) * -(-extent(comp, a.rows) // s.block_rows)
    rows = tiles * s.splits * s.block_rows
    lengths = {"top": rows, "total": rows, "mix": rows * s.block_columns}
    parts = {n: (length, dtypes.f32) for n, length in lengths.items()}
    parts["done"] = tiles, dtypes.i32
    return tuple(
        Buffer(f"{comp.name}_{n}", (length,), dtype, (1,), device)
        for n, (length, dtype) in parts.items()
    )


def _merge(t: _Template, top: Buffer, total: Buffer, mix: Buffer, done: Buffer) -> None:
    """Writes what this share has; the last share of a tile merges all and does the rest, in the
    order of the shares, so that it does not depend on who is last."""
    k, s = t.end, t.schedule
    places = {"top": (top, 1), "total": (total, 1), "mix": (mix, s.block_columns)}
    k.line("tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)")
    for name in places:
        k.line(f"tl.store({_partial(t, *places[name], 'share')}, {name})")
    k.line("tl.debug_barrier()")
    k.line(f"arrived = tl.atomic_add({k.pointer(done.name)} + tile, 1)")
    with k.indented(f"if arrived == {s.splits - 1}:"):
        shares = f"for other in tl.static_range({s.splits}):"
        with k.indented(shares):
            k.line(f"top = tl.maximum(top, {_read(t, *places['top'])})")
        k.line(k.helper("base = _finite(top)"))
        k.line("total, mix = tl.zeros_like(total), tl.zeros_like(mix)")
        with k.indented(shares):
            k.line(f"kept = tl.exp({_read(t, *places['top'])} - base)")
            k.line(f"total += kept * {_read(t, *places['total'])}")
            k.line(f"mix += kept * {_read(t, *places['mix'])}")
        _finish(t)
        k.line(f"tl.store({k.pointer(done.name)} + tile, 0)")


def _partial(t: _Template, buffer: Buffer, width: int, share: str) -> str:
    """Where a share of the tile has its part."""
    s = t.schedule
    rows = f"(tile * {s.splits} + {share}) * {s.block_rows} + tl.arange(0, {s.block_rows})[:, None]"
    columns = f" * {width} + tl.arange(0, {width})[None, :]" if width > 1 else ""
    return f"{t.end.pointer(buffer.name)} + ({f'({rows})' if columns else rows}{columns})"


def _read(t: _Template, buffer: Buffer, width: int) -> str:
    return f'tl.load({_partial(t, buffer, width, "other")}, cache_modifier=".cg")'

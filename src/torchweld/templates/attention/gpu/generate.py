"""A score nest as one Triton kernel (templates/attention/nest.py has the form).

    row factors [rows, depth]
    for each walk: for each block of keys that the mask's bound leaves:
        scores [rows, keys] = dot(row factor, key factor), then what is pointwise on them
        statistics and outer contractions [rows, columns], rescaled as a maximum rises
    what follows, and stores

With `splits`, programs share the keys of a tile. Each writes what it has, and the one that comes
last merges all in the order of the shares, so that results repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.codegen.source import GridDim, KernelBundle
from torchweld.core import dtypes
from torchweld.ir.nodes import Buffer, Comp, Op, Value, store_axes
from torchweld.ir.size import Size, product
from torchweld.templates.attention.gpu.schedule import NestSchedule, batch_of, is_fast, padded
from torchweld.templates.attention.gpu.tiles import Tiles, tiles_of
from torchweld.templates.attention.gpu.walk import factor, walk
from torchweld.templates.attention.nest import Nest, Walk
from torchweld.templates.pointwise_reduce.gpu import forms
from torchweld.templates.pointwise_reduce.gpu.walks import rounded


def generate(
    comp: Comp, buffers: Mapping[str, Buffer], nest: Nest, schedule: NestSchedule, early: bool
) -> KernelBundle:
    """The kernel of `comp`, which is `nest`. `early`: it begins while the one before still runs."""
    scratch = _partials(comp, buffers, nest, schedule)
    every = {**buffers, **{b.name: b for b in scratch.values()}}
    t = tiles_of(comp, every, nest, schedule, is_fast(comp, nest))
    k = t.score
    _position(t)
    if early:
        k.line(k.helper("_await_previous()"))
    _load_rows(t)
    for w in nest.walks:
        walk(t, w)
        if schedule.splits == 1:
            _know(t, w)
    if schedule.splits == 1:
        store(t)
    else:
        _merge(t, scratch)
    grid = (
        GridDim(t.points(t.batch)), GridDim(t.rows, schedule.block_rows), GridDim(schedule.splits),
    )  # fmt: skip
    zeroed = tuple(b.name for b in scratch.values() if b.dtype == dtypes.i32)
    source = replace(k.source(grid), early=early)
    return KernelBundle(comp.name, (source,), tuple(scratch.values()), zeroed)


def _position(t: Tiles) -> None:
    """Which point of the batch, and which rows. Programs that run at a time share keys in the
    last-level cache; tiles with most keys begin first."""
    k, s = t.score, t.schedule
    at = "tl.program_id(0), tl.program_id(1)"
    if s.group:
        at = f"_tile_at({at}, tl.num_programs(0), tl.num_programs(1), {s.group})"
    k.line(k.helper(f"batch, tile = {at}"))
    if more_keys_later(t.nest):
        k.line("tile = tl.num_programs(1) - 1 - tile")
    if s.splits > 1:
        k.line("share = tl.program_id(2)")
    place_faces(t)


def place_faces(t: Tiles) -> None:
    """The indices of a point of the batch, of a tile of rows, and of what is whole."""
    k, s = t.score, t.schedule
    if k.is_far:
        k.line("batch = batch.to(tl.int64)")
    k.split_axes("batch", t.batch)
    for axes in (s.rows, s.keys, t.around):
        if not isinstance(t.points(axes), int):
            k.line(f"{t.count(axes)} = ({k.size(t.points(axes))}).to(tl.int32)")
    k.block("r", "tile", s.block_rows, s.rows, rounded(t.rows, s.block_rows))
    for faces, side in ((t.left, "c"), (t.right, "r"), (t.ends, "c")):
        for axes, face in faces.items():
            points = padded(t.points(axes))
            face.block(face.dimension(side), "", points, axes, points)


def more_keys_later(nest: Nest) -> bool:
    """Whether the bound leaves more keys to later rows: causal masks."""
    bound = nest.bound
    steps = [c for _, c in bound.high.terms] if bound.high and not bound.low else [0]
    return all(isinstance(c, int) and c > 0 for c in steps)


def _load_rows(t: Tiles) -> None:
    for inner in t.nest.inners:
        factor(t.left[inner.depth], inner.row)


def _know(t: Tiles, w: Walk) -> None:
    """The results of a walk over all keys."""
    k = t.score
    for value in w.reductions:
        _restore(t, w, value)
        name = f"acc{value}"
        if not t.schedule.rows:  # of the rows of a tile, the first is one
            k.line(f"row{value} = tl.sum(tl.where(r == 0, {name}, 0.0), axis=0, keep_dims=True)")
            name = f"row{value}"  # of another shape: inside an `if`, `acc` has to keep its own
        k.known[value] = name
        for face in (t.whole, *t.ends.values()):
            face.known[value] = name


def _restore(t: Tiles, w: Walk, value: Value) -> None:
    """A sum of exp(x - max(x)) is NaN where the maximum is -inf, unless the Comp has zero in its
    place."""
    for total, base in w.rescaled:
        if total == value and not is_guarded(t.comp, base):
            nothing = f'(acc{base} == float("-inf"))'
            t.score.line(f'acc{value} = tl.where({nothing}, float("nan"), acc{value})')


def is_guarded(comp: Comp, base: Value) -> bool:
    """Whether all that is summed has where(base == -inf, 0, base) in the place of `base`."""
    body = comp.body
    uses = [i for i in body if isinstance(i, Op) and i.name == "sub" and i.args[1] == base]
    return not uses


def store(t: Tiles) -> None:
    """What follows the walks, stored."""
    comp, k = t.comp, t.score
    for position, each in enumerate(comp.stores):
        axes = store_axes(comp, each, k.axes)
        faces = [f for columns, f in t.ends.items() if axes & set(columns)]
        face = faces[0] if faces else k
        face.compute(forms.stored(face, [position]))
        face.store(position)


# shares of the keys


def _partials(
    comp: Comp, buffers: Mapping[str, Buffer], nest: Nest, s: NestSchedule
) -> dict[Value | None, Buffer]:
    """Scratch for the results of each share of each tile, and (None) how many shares of a tile are
    done."""
    if s.splits == 1:
        return {}
    device = buffers[comp.stores[0].buffer].device
    tiles = _points(comp, batch_of(nest, s)) * -(-_points(comp, s.rows) // s.block_rows)
    rows = tiles * s.splits * s.block_rows
    made: dict[Value | None, Buffer] = {}
    for value in nest.walks[0].reductions:
        length = rows * _width(comp, nest, value)
        made[value] = Buffer(f"{comp.name}_part{value}", (length,), dtypes.f32, (1,), device)
    made[None] = Buffer(f"{comp.name}_done", (tiles,), dtypes.i32, (1,), device)
    return made


def _points(comp: Comp, axes: tuple[str, ...]) -> Size:
    return product(comp.extent(a) for a in axes)


def _width(comp: Comp, nest: Nest, value: Value) -> int:
    outer = next((o for o in nest.outers if o.value == value), None)
    return padded(_points(comp, outer.columns)) if outer else 1


def _merge(t: Tiles, scratch: Mapping[Value | None, Buffer]) -> None:
    """Writes what this share has; the last share of a tile merges all and does the rest."""
    k, splits, (w,) = t.score, t.schedule.splits, t.nest.walks
    done = k.pointer(scratch[None].name)
    k.line("place = batch * tl.num_programs(1) + tile")
    for value in w.reductions:
        k.line(f"tl.store({_partial(t, scratch[value], value, 'share')}, acc{value})")
    k.line("tl.debug_barrier()")
    k.line(f"arrived = tl.atomic_add({done} + place, 1)")
    with k.indented(f"if arrived == {splits - 1}:"):
        for value in w.reductions:
            _merge_one(t, w, scratch, value)
        _know(t, w)
        store(t)
        k.line(f"tl.store({done} + place, 0)")


def _merge_one(t: Tiles, w: Walk, scratch: Mapping[Value | None, Buffer], value: Value) -> None:
    k, base = t.score, dict(w.rescaled).get(value)
    largest = k.body[value].monoid == "max"
    start = "-inf" if largest else "0.0"
    k.line(f'acc{value} = tl.full(acc{value}.shape, float("{start}"), tl.float32)')
    with k.indented(f"for other in tl.static_range({t.schedule.splits}):"):
        part = _read(t, scratch, value)
        if largest:
            k.line(f"acc{value} = {k.operation('maximum', 'float', f'acc{value}', part)}")
        elif base is None:
            k.line(f"acc{value} += {part}")
        else:
            top = k.helper(f"_finite(acc{base})")
            kept = k.operation("exp", "float", f"({_read(t, scratch, base)} - {top})")
            k.line(f"acc{value} += {kept} * {part}")


def _read(t: Tiles, scratch: Mapping[Value | None, Buffer], value: Value) -> str:
    return f'tl.load({_partial(t, scratch[value], value, "other")}, cache_modifier=".cg")'


def _partial(t: Tiles, buffer: Buffer, value: Value, share: str) -> str:
    """Where a share of the tile has its part."""
    s, width = t.schedule, _width(t.comp, t.nest, value)
    lanes = f"tl.arange(0, {s.block_rows})[:, None]"
    rows = f"(place * {s.splits} + {share}) * {s.block_rows} + {lanes}"
    columns = f" * {width} + tl.arange(0, {width})[None, :]" if width > 1 else ""
    return f"{t.score.pointer(buffer.name)} + (({rows}){columns})"

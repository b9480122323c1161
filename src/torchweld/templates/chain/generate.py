"""A chain (form.py) as one Triton kernel.

    weights [depth, columns] of all links: loaded once
    for each tile of rows of this program:
        for each link:
            acc [rows, columns] = dot(what the link before became, its weight)
            what follows; stores and totals that need no later link
    products that are totals, of this program's rows: to scratch, which a second kernel adds up in
    order; sums of columns are there tile by tile, since threads would have several copies of them

A face of one `Kernel` prints the tiles of each width (rows x width), another those of each weight
(depth x columns)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from torchweld.codegen.source import GridDim, KernelBundle, KernelSource
from torchweld.codegen.triton.wide import TF32X3
from torchweld.core import dtypes
from torchweld.ir.access import unmerged
from torchweld.ir.nodes import Buffer, Comp, Load, Value, needed, store_operands
from torchweld.templates.chain.form import Chain, Link, Total, Width, extent
from torchweld.templates.chain.schedule import ChainSchedule, padded
from torchweld.templates.pointwise_reduce.gpu import forms
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.generate import finishing_source
from torchweld.templates.pointwise_reduce.gpu.partials import Finish, finish_of
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule
from torchweld.templates.pointwise_reduce.gpu.walks import quotient


@dataclass(frozen=True, slots=True)
class _Faces:
    """`tiles`: by width; `weights`: by depth and columns. `root` writes what belongs to neither.
    `scratch`: where parts of totals go."""

    chain: Chain
    schedule: ChainSchedule
    root: Kernel
    tiles: Mapping[Width, Kernel]
    weights: Mapping[tuple[Width, Width], Kernel]
    scratch: Mapping[Value, Buffer]

    def row_index(self, width: Width) -> str:
        """The name of a width's linear index down the rows of a tile."""
        return f"w{self.chain.widths.index(width)}r"

    def column_index(self, width: Width) -> str:
        return f"w{self.chain.widths.index(width)}c"


def generate(
    comp: Comp, buffers: Mapping[str, Buffer], chain: Chain, schedule: ChainSchedule, early: bool
) -> KernelBundle:
    """The kernel of `comp`, which is `chain`. `early`: it begins while the one before still
    runs."""
    finishes = _finishes(comp, buffers, chain, schedule)
    scratch = {p.value: p.scratch[0] for f in finishes for p in f.partials}
    every = {**buffers, **{b.name: b for b in scratch.values()}}
    f = _faces(comp, every, chain, schedule, scratch)
    if early:
        f.root.line(f.root.helper("_await_previous()"))
    _position(f)
    for link in chain.links:
        _load_weight(f, link)
    for total in chain.gradients:
        sizes = ", ".join(str(padded(extent(comp, w))) for w in total.widths)
        f.root.line(f"total{total.value} = tl.zeros([{sizes}], tl.float32)")
    _walk(f)
    for total in chain.gradients:
        _store_partial(f, total, f.root.program(0), f"total{total.value}")
    grid = (GridDim(schedule.programs), GridDim(extent(comp, chain.batch)))
    source = replace(f.root.source(grid), early=early)
    finishing = tuple(_finishing(n, each, early) for n, each in enumerate(finishes))
    return KernelBundle(comp.name, (source, *finishing), tuple(scratch.values()))


def _finishes(
    comp: Comp, buffers: Mapping[str, Buffer], chain: Chain, schedule: ChainSchedule
) -> list[Finish]:
    """The second kernels: one for all totals of the same widths."""
    flat = unmerged(comp, buffers).comp
    groups: dict[tuple[Width, ...], list[Value]] = {}
    for total in chain.totals:
        groups.setdefault(total.widths, []).append(total.value)
    return [
        finish_of(flat, buffers, tuple(values), _kept(chain, w), _parts(comp, chain, schedule, w))
        for w, values in groups.items()
    ]


def _parts(comp: Comp, chain: Chain, s: ChainSchedule, widths: tuple[Width, ...]) -> int:
    """Of a total: one for each program, of a sum of columns one for each tile of rows."""
    if len(widths) == 2:
        return s.programs
    rows = extent(comp, chain.rows)
    return -(-rows // (s.block_rows * s.programs)) * s.programs


def _kept(chain: Chain, widths: tuple[Width, ...]) -> tuple[str, ...]:
    """The axes of a total, outermost first."""
    return (*chain.batch, *(a for w in widths for a in w))


def _finishing(number: int, finish: Finish, early: bool) -> KernelSource:
    named = replace(finish.comp, name=f"{finish.comp.name}{number}")
    return finishing_source(replace(finish, comp=named), early=early)


def _faces(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    chain: Chain,
    s: ChainSchedule,
    scratch: Mapping[Value, Buffer],
) -> _Faces:
    def tile(rows: Width, columns: Width, block_rows: int) -> Schedule:
        size = padded(extent(comp, columns))
        return Schedule("grid", rows, columns, block_rows, size, s.num_warps)

    first = tile(chain.rows, chain.widths[0], s.block_rows)
    dimensions = (chain.batch, chain.rows, *chain.widths)
    root = Kernel(unmerged(comp, buffers), buffers, first, dimensions)
    f = _Faces(chain, s, root, {}, {}, scratch)
    tiles = {
        w: root.facing(tile(chain.rows, w, s.block_rows), "r", f.column_index(w))
        for w in chain.widths
    }
    weights = {
        (d, c): root.facing(tile(d, c, padded(extent(comp, d))), f.row_index(d), f.column_index(c))
        for d, c in ((one.depth, one.columns) for one in chain.links)
    }
    return replace(f, tiles=tiles, weights=weights)


def _position(f: _Faces) -> None:
    """Which point of the batch, and the indices along all widths."""
    k, c = f.root, f.chain
    if c.batch:
        k.line(f"batch = {k.program(1)}")
        k.split_axes("batch", c.batch)
    for width, face in f.tiles.items():
        points = padded(extent(k.comp, width))
        face.define(f.column_index(width), "", f"tl.arange(0, {points})[None, :]", width, points)
    down = [one.depth for one in c.links] + [t.widths[0] for t in c.gradients]
    for width in dict.fromkeys(down):
        points = padded(extent(k.comp, width))
        face = k.facing(replace(k.schedule, rows=width, columns=()), f.row_index(width))
        face.define(f.row_index(width), "", f"tl.arange(0, {points})[:, None]", width, points)


def _load_weight(f: _Faces, link: Link) -> None:
    """One that two links read in two directions is loaded in both."""
    face = f.weights[link.depth, link.columns]
    if link.right not in face.known:
        which = f"{f.row_index(link.depth)}{f.column_index(link.columns)}"
        face.known[link.right] = face.assign((link.right, which), _zeroed_load(face, link.right))


def _zeroed_load(face: Kernel, value: Value) -> str:
    """Text of a whole tile from memory, zero out of bounds."""
    mask = face.mask("rc")
    zero = f", mask={mask}, other=0.0" if mask else ""
    return f"tl.load({face.address(face.accesses.loads[value], 'rc')}{zero})"


def _zeroed(face: Kernel, value: Value, along: str) -> str:
    """A tile of a value that is zero out of bounds along `along`."""
    key, instr = ("zeroed", value, along), face.body[value]
    if value not in face.known and isinstance(instr, Load) and instr.guard is None:
        name = face.assign(value, _zeroed_load(face, value))
        face.known |= {("zeroed", value, side): name for side in ("c", "rc")}
    if key not in face.known:
        name, mask = face.value(value), face.mask(along)
        if mask:
            face.line(f"z{value}{along} = tl.where({mask}, {name}, 0.0)")
            name = f"z{value}{along}"
        face.known[key] = name
    return face.known[key]


def _walk(f: _Faces) -> None:
    """Over the tiles of rows of one program. No loads run ahead: what a gradient multiplies is also
    read into registers, and Triton 3.6 and 3.7 lack a slot for such a tile (bench/race_left_sums.py
    shows it). Other programs of the multiprocessor are at work meanwhile."""
    k, s, c = f.root, f.schedule, f.chain
    rows = extent(k.comp, c.rows)
    steps = quotient(k, rows, s.block_rows * s.programs, up=True)
    kept = [dict(face.known) for face in (*f.tiles.values(), *f.weights.values())]
    with k.indented(f"for step in tl.range({steps}, num_stages=1):"):
        k.line(f"tile = {k.program(0)} + step * {s.programs}")
        lanes = f"tl.arange(0, {s.block_rows})[:, None]"
        covered = s.block_rows * s.programs * int(steps) if steps.isdigit() else None
        k.define("r", f"tile * {s.block_rows}", lanes, c.rows, covered)
        _links(f)
    for face, known in zip((*f.tiles.values(), *f.weights.values()), kept):
        face.known = known


def _links(f: _Faces) -> None:
    """The links in turn; behind each what needs no later one."""
    k, done, waiting = f.root, set[Value](), _work(f)
    all_links = {one.value for one in f.chain.links}
    for link in f.chain.links:
        _multiply(f, link)
        done.add(link.value)
        for item in list(waiting):
            behind = needed(k.body, waiting[item]) & all_links
            if behind <= done:
                del waiting[item]
                _add(f, item) if isinstance(item, Total) else _store(f, item)


def _work(f: _Faces) -> dict[Total | int, tuple[Value, ...]]:
    """What is to be done beside the links, and the values that it needs: totals, and stores (by
    position) of values of rows."""
    late = {t.value for t in f.chain.totals}
    work: dict[Total | int, tuple[Value, ...]] = {t: t.factors for t in f.chain.totals}
    for position, store in enumerate(f.root.comp.stores):
        values = store_operands(store)
        if not late & needed(f.root.body, values):
            work[position] = values
    return work


def _multiply(f: _Faces, link: Link) -> None:
    k = f.root
    left = _zeroed(f.tiles[link.depth], link.left, "c")
    right = f.weights[link.depth, link.columns].known[link.right]
    name = f.tiles[link.columns].assign(link.value, f"tl.dot({left}, {right}{_more(k, link.left)})")
    for face in f.tiles.values():
        face.known[link.value] = name


def _more(k: Kernel, value: Value) -> str:
    return f", {TF32X3}" if k.body[value].dtype == dtypes.f32 else ""


def _store(f: _Faces, position: int) -> None:
    along = f.root.store_axes(position)
    face = next(face for width, face in f.tiles.items() if along & set(width))
    face.compute(forms.stored(face, [position]))
    face.store(position)


def _add(f: _Faces, total: Total) -> None:
    """What this tile of rows adds to a total."""
    tiles = [_zeroed(f.tiles[w], v, "rc") for v, w in zip(total.factors, total.widths)]
    if len(tiles) == 2:
        one, other = tiles
        name, more = f"total{total.value}", _more(f.root, total.factors[0])
        f.root.line(f"{name} = tl.dot(tl.trans({one}), {other}, {name}{more})")
    else:
        _store_partial(f, total, "tile", f"tl.sum({tiles[0]}, axis=0, keep_dims=True)")


def _store_partial(f: _Faces, total: Total, part: str, text: str) -> None:
    """[parts, batch, columns of the one factor, of the other]"""
    k, sizes = f.root, [extent(f.root.comp, w) for w in total.widths]
    names = [f.row_index(w) for w in total.widths[:-1]] + [f.column_index(total.widths[-1])]
    start = f"{part} * {extent(k.comp, f.chain.batch)}" if f.chain.batch else part
    start = f"({start} + batch)" if f.chain.batch else start
    places = [f"{names[0]} * {sizes[-1]}", names[-1]] if len(names) == 2 else names
    address = f"{k.pointer(f.scratch[total.value].name)} + "
    address += f"({' + '.join([f'{start} * {prod(sizes)}', *places])})"
    k.write("store", address, text, " & ".join(f"{n}m" for n in names if k.masked(n)))

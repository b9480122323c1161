"""A chain (form.py) as one Triton kernel.

    weights [depth, columns] of all links: loaded once
    for each tile of rows of this program:
        for each link:
            acc [rows, columns] = dot(what the link before became, its weight)
            what follows; stores that need no later link

A face of one `Kernel` prints the tiles of each width (rows x width), another those of each weight
(depth x columns)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.codegen.source import GridDim, KernelBundle
from torchweld.ir.access import unmerged
from torchweld.ir.nodes import Buffer, Comp, Load, Value, needed, store_operands
from torchweld.templates.chain.form import Chain, Link, Width, extent
from torchweld.templates.chain.schedule import ChainSchedule, padded
from torchweld.templates.pointwise_reduce.gpu import forms
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule
from torchweld.templates.pointwise_reduce.gpu.walks import quotient


@dataclass(frozen=True, slots=True)
class _Faces:
    """`tiles`: by width; `weights`: by depth and columns. `root` writes what belongs to neither."""

    chain: Chain
    schedule: ChainSchedule
    root: Kernel
    tiles: Mapping[Width, Kernel]
    weights: Mapping[tuple[Width, Width], Kernel]

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
    f = _faces(comp, buffers, chain, schedule)
    if early:
        f.root.line(f.root.helper("_await_previous()"))
    _position(f)
    for link in chain.links:
        _load_weight(f, link)
    _walk(f)
    grid = (GridDim(schedule.programs), GridDim(extent(comp, chain.batch)))
    return KernelBundle(comp.name, (replace(f.root.source(grid), early=early),))


def _faces(comp: Comp, buffers: Mapping[str, Buffer], chain: Chain, s: ChainSchedule) -> _Faces:
    def tile(rows: Width, columns: Width, block_rows: int) -> Schedule:
        size = padded(extent(comp, columns))
        return Schedule("grid", rows, columns, block_rows, size, s.num_warps)

    first = tile(chain.rows, chain.widths[0], s.block_rows)
    dimensions = (chain.batch, chain.rows, *chain.widths)
    root = Kernel(unmerged(comp, buffers), buffers, first, dimensions)
    f = _Faces(chain, s, root, {}, {})
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
    for width in dict.fromkeys(one.depth for one in c.links):
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


def _left(face: Kernel, link: Link) -> str:
    """A link's left factor, zero beyond its depth."""
    value = link.left
    key, instr = ("zeroed", value), face.body[value]
    if value not in face.known and isinstance(instr, Load) and instr.guard is None:
        face.known[key] = face.assign(value, _zeroed_load(face, value))
    if key not in face.known:
        name, mask = face.value(value), face.mask("c")
        if mask:
            face.line(f"z{value} = tl.where({mask}, {name}, 0.0)")
            name = f"z{value}"
        face.known[key] = name
    return face.known[key]


def _walk(f: _Faces) -> None:
    """Over the tiles of rows of one program. No loads run ahead: what a link multiplies may also be
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
    """The links in turn; behind each the stores that need no later one."""
    k, done = f.root, set[Value]()
    all_links = {one.value for one in f.chain.links}
    waiting = {n: needed(k.body, store_operands(s)) for n, s in enumerate(k.comp.stores)}
    for link in f.chain.links:
        _multiply(f, link)
        done.add(link.value)
        for position in [n for n, behind in waiting.items() if behind & all_links <= done]:
            del waiting[position]
            _store(f, position)


def _multiply(f: _Faces, link: Link) -> None:
    left = _left(f.tiles[link.depth], link)
    right = f.weights[link.depth, link.columns].known[link.right]
    name = f.tiles[link.columns].assign(link.value, f"tl.dot({left}, {right})")
    for face in f.tiles.values():
        face.known[link.value] = name


def _store(f: _Faces, position: int) -> None:
    along = f.root.store_axes(position)
    face = next(face for width, face in f.tiles.items() if along & set(width))
    face.compute(forms.stored(face, [position]))
    face.store(position)

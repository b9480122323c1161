"""How the blocks of a Gluon product kernel walk over the tiles of its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torchweld.codegen.gluon.text import plus
from torchweld.codegen.source import GridDim
from torchweld.ir.access import Accesses
from torchweld.ir.contraction import Contraction
from torchweld.ir.size import Size, product
from torchweld.templates.gemm.hopper.schedule import walked_depth
from torchweld.templates.gemm.hopper.tiles import Tile
from torchweld.templates.gemm.schedule import ProductSchedule

EVERY_TILE = "for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):"


@dataclass(frozen=True, slots=True)
class Walk:
    """`start`: lines that say how many tiles there are; `place`: lines that find the place of
    `tile` among them; `step`: lines that find that of `k` along the depth."""

    start: tuple[str, ...]
    place: tuple[str, ...]
    step: tuple[str, ...]
    grid: GridDim


def walk_of(
    accesses: Accesses,
    contraction: Contraction,
    columns: Sequence[Size],
    schedule: ProductSchedule,
    size: Callable[[Size], str],
) -> Walk:
    """Over `columns` of each piece in turn. `size`: the text of one."""

    def extent(axes: Iterable[str]) -> Size:
        return product(accesses.comp.extent(a) for a in axes)

    def number(of: Size) -> str:
        return size(of) if isinstance(of, int) else f"{size(of)}.to(tl.int32)"

    def count(of: Size, block: int) -> str:
        if isinstance(of, int):
            return str(-(-of // block))
        return f"tl.cdiv({size(of)}, {block}).to(tl.int32)"

    c, s = contraction, schedule
    rows = [accesses.comp.extent(a) for a in c.rows]
    tiles_r = str(s.row_tiles(rows)) if s.box else count(extent(c.rows), s.block_m)
    start = [
        f"tiles_r = {tiles_r}",
        f"tiles_c = {' + '.join(count(of, s.block_n) for of in columns)}",
        f"depth = {number(walked_depth(accesses, contraction, s))}",
        "tiles = tiles_r * tiles_c" + (f" * {number(extent(c.batch))}" if c.batch else ""),
    ]
    place = ["m, n = place(tile, tiles_r, tiles_c)"]
    if c.batch:
        place = ["m, n = place(tile % (tiles_r * tiles_c), tiles_r, tiles_c)",
                 "batch = tile // (tiles_r * tiles_c)"]  # fmt: skip
    for k, axis in enumerate(c.batch):
        wrapped = f" % {number(extent([axis]))}" if k else ""
        place.append(f"at_{axis} = batch // {number(extent(c.batch[k + 1 :]))}{wrapped}")
    place += _box_of_tile(c.rows, rows, s)
    across = sum(_blocks(of, s.block_n) for of in columns)
    blocks = s.row_tiles(rows) * across
    step = _tap_of_step(c.depth, [accesses.comp.extent(a) for a in c.depth], s)
    grid = GridDim(blocks * extent(c.batch), 1, s.programs)
    return Walk(tuple(start), tuple(place), tuple(step), grid)


def _box_of_tile(axes: Sequence[str], extents: Sequence[Size], s: ProductSchedule) -> list[str]:
    """Where the box of places that tile `m` of the rows is begins along each axis."""
    lines, inner = [], 1
    for axis, extent, box in reversed(list(zip(axes, extents, s.box))):
        count = -(-extent // box)
        lines.append(f"at_{axis} = m // {inner} % {count} * {box}")
        inner *= count
    return lines


def _tap_of_step(axes: Sequence[str], extents: Sequence[Size], s: ProductSchedule) -> list[str]:
    """The tap of an image, and the first of its channels, of the step at `k` of the depth."""
    if not s.box:
        return []
    *taps, channels = extents
    inner = -(-channels // s.block_k) * s.block_k
    lines = [f"at_{axes[-1]} = k % {inner}"]
    for axis, extent in reversed(list(zip(axes, taps))):
        lines.append(f"at_{axis} = k // {inner} % {extent}")
        inner *= extent
    return lines


def corner(tile: Tile, column: int, n: str = "n") -> str:
    """Coordinates of a tile, `column` columns into the output tile, which is the `n`-th."""
    names = {"rows": "m * ROWS", "columns": f"{n} * TILE_COLUMNS{plus(column)}", "depth": "k"}
    if tile.window.width is not None:
        start = f"({names['columns']})"
        names |= {"heads": f"{start} // {tile.window.width}",
                  "columns": f"{start} % {tile.window.width}"}  # fmt: skip
    names |= dict(tile.window.starts)
    return f"[{', '.join(names.get(d) or f'at_{d}' for d in tile.window.dims)}]"


def _blocks(size: Size, block: int) -> Size:
    """How many blocks; no fewer, where that is not known."""
    return -(-size // block) if isinstance(size, int) else size

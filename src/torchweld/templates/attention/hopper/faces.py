"""The tiles of a score nest in Gluon: rows x keys in the layout SCORES of inner products, rows x
columns in the layout RESULT_<columns> of an outer one."""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Buffer, Load, Value
from torchweld.ir.size import Size
from torchweld.templates.attention.gpu.schedule import batch_of, padded
from torchweld.templates.attention.gpu.tiles import Face, Tiles, simplify_whole
from torchweld.templates.attention.hopper.schedule import HopperSchedule, dimensions_of
from torchweld.templates.attention.nest import Nest
from torchweld.templates.pointwise_reduce.gpu.laid_out import LaidOut
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule, extent


class GluonFace(LaidOut, Face):
    """A Face whose indices have a `layout`. `copied`: loads that TMA makes, and where from."""

    layout = "SCORES"
    copied: Mapping[Value, str] = {}

    def block(self, name: str, number: str, points: int, axes, covered: Size | None) -> None:
        side, place = (1, ":, None") if self._names["r"] == name else (0, "None, :")
        lanes = f"gl.arange(0, {points}, gl.SliceLayout({side}, {self.layout}))[{place}]"
        self.define(name, f"{number} * {points}" if number else "", lanes, axes, covered)

    def _load(self, value: Value, instr: Load) -> str:
        return self.copied.get(value) or super()._load(value, instr)

    def _exp2(self, value: Value) -> str | None:
        text = super()._exp2(value)
        return text and text.replace("tl.exp2(", "exp2_flushed(")


def tiles_of(
    accesses: Accesses, buffers: Mapping[str, Buffer], nest: Nest, s: HopperSchedule
) -> Tiles:
    """The faces of a nest; TMA makes the factors, so they have none."""

    def tile(columns, width: int) -> Schedule:
        return Schedule("grid", s.rows, columns, s.block_rows, width, s.num_warps)

    scores = tile(s.keys, s.block_keys)
    root = GluonFace(accesses, buffers, scores, dimensions_of(nest, s))
    root.fast, root.begins = True, {}
    score, whole = root.facing(scores, "r", "lc"), root.facing(scores, "r", "lc")
    simplify_whole(whole, nest, s)
    ends = {}
    for n, axes in enumerate(dict.fromkeys(o.columns for o in nest.outers)):
        width = padded(extent(accesses, axes))
        ends[axes] = root.facing(tile(axes, width), f"r{n}r", f"e{n}c")
        ends[axes].layout = f"RESULT_{width}"
        ends[axes].letter = f"e{n}v"  # a row's value is known by another name in the scores' layout
    return Tiles(accesses.comp, nest, s, batch_of(nest, s), (), score, whole, {}, {}, {}, ends)

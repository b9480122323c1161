"""The tiles of a score nest in Gluon: rows x keys in the layout SCORES of the inner product, rows x
columns in the layout RESULT of the outer one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Buffer, Value
from torchweld.ir.size import Size
from torchweld.templates.attention.gpu.schedule import batch_of, padded
from torchweld.templates.attention.gpu.tiles import Face, Tiles, simplify_whole
from torchweld.templates.attention.hopper.schedule import HopperSchedule, points
from torchweld.templates.attention.nest import Nest
from torchweld.templates.pointwise_reduce.gpu.laid_out import LaidOut
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule


class GluonFace(LaidOut, Face):
    """A Face whose indices have a `layout`."""

    layout = "SCORES"

    def block(self, name: str, number: str, points: int, axes, covered: Size | None) -> None:
        side, place = (1, ":, None") if self._names["r"] == name else (0, "None, :")
        lanes = f"gl.arange(0, {points}, gl.SliceLayout({side}, {self.layout}))[{place}]"
        self.define(name, f"{number} * {points}" if number else "", lanes, axes, covered)

    def _exp2(self, value: Value) -> str | None:
        text = super()._exp2(value)
        return text and text.replace("tl.exp2(", "exp2_flushed(")


@dataclass(frozen=True, slots=True)
class _Shape:
    """What `facing` takes, for tiles of the nest."""

    schedule: HopperSchedule

    def tile(self, rows, columns, width: int) -> Schedule:
        s = self.schedule
        return Schedule("grid", rows, columns, s.block_rows, width, s.num_warps)


def tiles_of(
    accesses: Accesses, buffers: Mapping[str, Buffer], nest: Nest, s: HopperSchedule
) -> Tiles:
    """The faces of a nest with one outer product; TMA makes the factors, so they have none."""
    comp, (outer,) = accesses.comp, nest.outers
    make = _Shape(s)
    dimensions = (batch_of(nest, s), s.rows, s.keys, nest.inners[0].depth, outer.columns)
    scores = make.tile(s.rows, s.keys, s.block_keys)
    root = GluonFace(accesses, buffers, scores, dimensions)
    root.fast, root.begins = True, {}
    score, whole = root.facing(scores, "r", "lc"), root.facing(scores, "r", "lc")
    simplify_whole(whole, nest, s)
    width = padded(points(accesses, outer.columns))
    end = root.facing(make.tile(s.rows, outer.columns, width), "ro", "e0c")
    end.layout = "RESULT"
    batch = batch_of(nest, s)
    return Tiles(comp, nest, s, batch, (), score, whole, {}, {}, {}, {outer.columns: end})

"""Sums of the columns of a product's results: each tile adds up its rows, and a second kernel adds
up tiles, in their order.

    partial[tile, n]   sum over the rows of the tile
    s[n]               sum over tiles
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.codegen.source import KernelSource
from torchweld.core import dtypes
from torchweld.ir.access import Accesses
from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.contraction import Contraction, column_sums
from torchweld.ir.nodes import Axis, Buffer, Comp, Store
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.pointwise_reduce.gpu.generate import finishing_source
from torchweld.templates.pointwise_reduce.gpu.partials import SHARE, Finish
from torchweld.templates.pointwise_reduce.gpu.schedule import extent


@dataclass(frozen=True, slots=True)
class Sums:
    """`scratch`: [tiles, columns] of each store that is a sum, by its position. Two stores may add
    to parts of one buffer (the gates of a SwiGLU, whose gradients lie side by side)."""

    accesses: Accesses
    tiles: int
    columns: int
    scratch: Mapping[int, Buffer]

    @property
    def buffers(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.scratch.values()}

    def sources(
        self, buffers: Mapping[str, Buffer], early: bool = False
    ) -> tuple[KernelSource, ...]:
        """The kernels that add up tiles. `early`: they begin while the one before still runs."""
        return tuple(self._source(position, buffers, early) for position in self.scratch)

    def _source(self, position: int, buffers: Mapping[str, Buffer], early: bool) -> KernelSource:
        access, partial = self.accesses.stores[position], self.scratch[position]
        to, n = BodyBuilder(), axis("n")
        every = to.load(partial.name, (axis(SHARE) * self.columns + n,), dtypes.f32)
        total = to.reduce("sum", (every,), (SHARE,))
        store = Store(access.buffer, (n + constant(access.offset.const),), total)
        axes = (Axis("n", self.columns), Axis(SHARE, self.tiles))
        comp = Comp(f"{self.accesses.comp.name}_sum{position}", axes, to.body, (store,))
        flat = replace(buffers[access.buffer], shape=(1,), strides=(1,))
        second = Finish(comp, (), {partial.name: partial, flat.name: flat})
        return finishing_source(second, early=early)


def sums_of(
    accesses: Accesses,
    contraction: Contraction,
    buffers: Mapping[str, Buffer],
    schedule: ProductSchedule,
) -> Sums:
    """Of a kernel that is tiled so."""
    columns = extent(accesses, contraction.columns)
    found = column_sums(accesses, contraction)
    rows = [accesses.comp.extent(a) for a in contraction.rows]
    tiles = schedule.row_tiles(rows) if found else 0
    stores = {n: accesses.comp.stores[n].buffer for n in found}
    scratch = {
        n: Buffer(f"{name}_tiles{n}", (tiles * columns,), dtypes.f32, (1,), buffers[name].device)
        for n, name in stores.items()
    }
    return Sums(accesses, tiles, columns, scratch)

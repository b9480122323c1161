"""The kernels of one Comp on a GPU: a template where it makes products or attention, else Triton's
tiles of rows and columns."""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.codegen.gluon import product as gluon_product
from torchweld.codegen.gluon import stream as gluon_stream
from torchweld.codegen.source import KernelBundle
from torchweld.codegen.triton import attention as triton_attention
from torchweld.codegen.triton import generate as triton
from torchweld.codegen.triton import product as triton_product
from torchweld.core.device import DeviceTable
from torchweld.ir.nodes import Buffer, Comp
from torchweld.schedule import attention, cuda
from torchweld.schedule.access import addressed
from torchweld.schedule.attention import attention_of
from torchweld.schedule.contraction import contraction_of
from torchweld.schedule.product import ProductSchedule
from torchweld.schedule.product_choice import Choose, choose

_PRODUCTS = {
    "gluon": gluon_product,
    "gluon stream": gluon_stream,
    "triton": triton_product,
    "stream": triton_product,
}


def generate(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    table: DeviceTable,
    hints: Mapping[str, int] | None = None,
    choose: Choose = choose,
) -> KernelBundle:
    """The kernels of `comp`, its products tiled as `choose` says. Raises InvalidIR where none can
    be made."""
    found = attention_of(comp)
    if found is not None:
        tiles = attention.schedule(found, comp, hints)
        return triton_attention.generate(comp, buffers, found, tiles, table.begins_early)
    tiles = _product_schedule(comp, buffers, table, hints, choose)
    if tiles is not None:
        return _PRODUCTS[tiles.form].generate(comp, buffers, tiles, hints)
    schedule = cuda.schedule(comp, buffers, table, hints)
    return triton.generate(comp, buffers, schedule, hints, table.begins_early)


def _product_schedule(comp, buffers, table, hints, choose: Choose) -> ProductSchedule | None:
    """None for a Comp without products, or with such as no template serves."""
    accesses = addressed(comp, buffers, hints)
    contraction = contraction_of(accesses)
    if contraction is None:
        return None
    tiles = choose(accesses, contraction, buffers, table, hints)
    return tiles if isinstance(tiles, ProductSchedule) else None

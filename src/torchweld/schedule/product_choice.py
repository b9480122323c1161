"""Which form of kernel makes the products of a Comp, and how it is tiled: streams where there are
few rows, Gluon on Hopper, Triton elsewhere and for what Gluon does not take."""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.core.device import DeviceTable
from torchweld.ir import size
from torchweld.ir.nodes import Buffer
from torchweld.schedule import product_gluon, product_triton
from torchweld.schedule.access import Accesses
from torchweld.schedule.contraction import Contraction
from torchweld.schedule.cuda import extent
from torchweld.schedule.product import ProductSchedule
from torchweld.schedule.product_triton import STREAM_ROWS


def choose(
    accesses: Accesses,
    contraction: Contraction,
    buffers: Mapping[str, Buffer],
    table: DeviceTable,
    hints: Mapping[str, int] | None = None,
) -> ProductSchedule | str:
    """The default schedule, or why there is none."""
    rows = size.hint(extent(accesses, contraction.rows), hints or {})
    reason = ""
    for form in (product_triton,) if rows <= STREAM_ROWS else (product_gluon, product_triton):
        reason = form.supports(accesses, contraction, buffers, table)
        if reason is None:
            return form.schedule(accesses, contraction, buffers, table, hints)
    return reason

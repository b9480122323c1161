"""Which form of kernel makes the products of a Comp, and how it is tiled: streams where there are
few rows, Gluon's on Hopper, Triton's elsewhere and for what Gluon does not take. Gluon's kernels
take longer to start: Triton's are faster where there is little to multiply (256 x 768 x 3072 on an
H100: 8.4 against 10.2 us, but 512 x 768 x 3072: 16.3 against 11.2). Nor do they share the depth of
a tile: of a gradient of a weight, whose depth are all rows, they would keep few multiprocessors
busy. Results that TMA cannot write, in lines that are not aligned or along the rows, Triton stores
faster (50176 x 195 with a depth of 96: 22.5 against 77 us; of 196 columns 20.4 against 25; 3136 x
384 with a depth of 1536 and a residual, both along the rows: 14.1 against 17.1, by rows 13.6
against 11.4). Lines whose lengths alone are odd only TMA moves in whole. Windows of an image
Triton's kernels would load element by element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from torchweld.ir import size
from torchweld.ir.access import Accesses
from torchweld.ir.contraction import Contraction
from torchweld.ir.nodes import Buffer
from torchweld.targets.target import Target
from torchweld.templates.gemm.alignment import NARROW, of_loads, stores_whole_lines
from torchweld.templates.gemm.hopper import schedule as product_gluon
from torchweld.templates.gemm.hopper.images import is_image
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.skinny import schedule as product_stream
from torchweld.templates.gemm.triton import schedule as product_triton
from torchweld.templates.gemm.triton.schedule import STREAM_ROWS
from torchweld.templates.pointwise_reduce.gpu.schedule import extent
from torchweld.templates.template import NO_SCHEDULE

_LITTLE = 8e6  # multiply-adds for each multiprocessor
_LEAST_TILE, _SHARES = 64, 4  # rows, and columns; shares of a depth that are worth it
_LANES = 8  # columns that are stored at once
_FEW_COLUMNS = 32  # of fewer, results do not matter


def choose(
    accesses: Accesses,
    contraction: Contraction,
    buffers: Mapping[str, Buffer],
    table: Target,
    hints: Mapping[str, int] | None = None,
) -> ProductSchedule | str:
    """The default schedule, or why there is none; `buffers` are for those who have measured."""
    reason = ""
    for form in _forms(accesses, contraction, table, hints or {}):
        reason = form.supports(accesses, contraction, table)
        found = None if reason else next(form.candidates(accesses, contraction, table, hints), None)
        if found is not None:
            return found
        reason = reason or NO_SCHEDULE
    return reason


def candidates(
    accesses: Accesses,
    contraction: Contraction,
    table: Target,
    hints: Mapping[str, int] | None = None,
) -> Iterator[ProductSchedule]:
    """What a tuner may time: those of each form in turn, the most promising first."""
    forms = [f for f in (product_stream, product_gluon, product_triton)
             if f.supports(accesses, contraction, table) is None]  # fmt: skip
    tries = [f.candidates(accesses, contraction, table, hints) for f in forms]
    for together in zip_longest(*tries):
        yield from (s for s in together if s is not None)


def _forms(accesses: Accesses, contraction: Contraction, table: Target, hints):
    c = contraction
    sides = (c.batch, c.rows, c.columns, c.depth)
    batch, rows, columns, depth = (size.hint(extent(accesses, axes), hints) for axes in sides)
    if rows <= STREAM_ROWS:
        return product_stream, product_triton
    little = batch * rows * columns * depth * len(c.products) < _LITTLE * table.units
    tiles = batch * -(-rows // _LEAST_TILE) * -(-columns // _LEAST_TILE)
    if any(is_image(accesses, p) for p in c.products):
        return product_gluon, product_triton
    by_element = of_loads(accesses, c) < NARROW  # by Triton: TMA reads lines of any length
    scattered = columns >= _FEW_COLUMNS and not stores_whole_lines(accesses, c)
    if _SHARES * tiles < table.units or (scattered and not by_element):
        return product_triton, product_gluon
    odd = by_element or columns % _LANES != 0
    return (product_triton,) if little and not odd else (product_gluon, product_triton)

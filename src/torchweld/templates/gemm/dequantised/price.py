"""Predicted seconds of a product with a dequantised factor.

    call + (longer + shorter / 2)      of moving each buffer once, and of the arithmetic:
                                       making each term once, and multiplying it with each row
"""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir.access import Accesses
from torchweld.ir.nodes import Buffer
from torchweld.ir.size import hint, product
from torchweld.targets.rates import rate_at
from torchweld.targets.target import Target
from torchweld.templates.gemm.cpu.schedule import WIDTH
from torchweld.templates.gemm.dequantised.schedule import (
    FEW,
    Dequantised,
    geometry_of,
    varying,
)
from torchweld.templates.pointwise_reduce.cpu.stages import own_cost
from torchweld.templates.pointwise_reduce.price import bytes_of, memory_seconds

_HIDDEN = 0.5  # of the shorter: measured 0.38 where both take as long
_LOOKED_UP = 1.0  # multiply-adds that looking a term up takes; its table is as many terms by sums
_STORED = 1.0  # that writing and reading it does
_PIECE = 24.0  # and what each piece of a column does


def dequantised_s(
    roles: Dequantised, accesses: Accesses, buffers: Mapping[str, Buffer], target: Target
) -> float:
    """Of the kernel; sizes are known."""
    comp = accesses.comp
    names = dict.fromkeys(a.buffer for a in accesses.all)
    memory_s = sum(memory_seconds(bytes_of(buffers[n], {}), buffers[n], {}, target) for n in names)
    rows = hint(comp.extent(roles.row), {}) if roles.row else 1
    terms = product(a.extent for a in comp.axes if a.name != roles.row)
    compute_s = terms * term_fma(roles, accesses) / target.fma_per_s
    terms = comp.extent(roles.column) * geometry_of(comp, roles).padded
    if rows <= FEW:
        compute_s += rows * terms / target.fma_per_s
    else:
        compute_s += rows * terms / rate_at(target.rates, "float32 own", rows)
    return target.launch_s + max(memory_s, compute_s) + _HIDDEN * min(memory_s, compute_s)


def term_fma(roles: Dequantised, accesses: Accesses) -> float:
    """Multiply-adds in whose time one term is made."""
    comp = accesses.comp
    g, inner = geometry_of(comp, roles), varying(comp, roles)
    each = sum(own_cost(comp.body[v]) for v in inner) * -(-g.piece // WIDTH) * WIDTH / g.piece
    length = g.piece * g.phases
    made = each if roles.codes is None else _LOOKED_UP + each * roles.codes.count / length
    return _STORED + made + _PIECE / length

"""Predicted seconds of a score nest on a CPU.

    launch + (products / rate of GEMMs + work on scores / rate of loops) / busy threads
           or the operands' bytes / memory's rate, whichever is longer
"""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir import affine
from torchweld.ir.nodes import Buffer, value_axes
from torchweld.ir.size import hint
from torchweld.targets.rates import rate_at
from torchweld.targets.target import Target
from torchweld.templates.attention.cpu.schedule import NestRoles, NestTiles
from torchweld.templates.attention.cpu.stages import Stages, stages_of
from torchweld.templates.pointwise_reduce.cpu.stages import own_cost
from torchweld.templates.pointwise_reduce.price import bytes_of, bytes_per_s

_OWN = "float32 own"
_STATISTIC = 2.0  # multiply-adds for a score that is reduced


def nest_s(
    roles: NestRoles, tiles: NestTiles, buffers: Mapping[str, Buffer],
    hints: Mapping[str, int], target: Target,
) -> float:  # fmt: skip
    """Of the whole kernel."""
    nest = roles.nest
    batch, rows, keys = (
        hint(roles.points(a), hints) for a in (nest.batch, nest.rows, nest.keys)
    )
    turns = hint(roles.points(nest.turns), hints)
    scores = turns * batch * rows * keys * share_seen(roles, hints)
    compute_s = 0.0
    for walk in nest.walks:
        stages = stages_of(roles, walk)
        packing = 1 + 2 * _PACKED / max(1, min(rows, tiles.rows))
        products_s = _products(roles, stages, hints) * packing / _product_rate(target, rows)
        compute_s += scores * (products_s + _score_work(roles, stages) / target.fma_per_s)
    busy = min(1.0, batch * -(-rows // tiles.rows) / target.units)
    moved = sum(bytes_of(buffers[n], hints) for n in {*roles.comp.reads, *roles.comp.writes})
    return target.launch_s + max(compute_s / busy, moved / bytes_per_s(moved, target))


_PACKED = 4.0  # rows whose products take as long as packing a key


def _product_rate(target: Target, rows: int) -> float:
    known = _OWN in target.rates
    return rate_at(target.rates, _OWN, max(64, rows)) if known else target.fma_per_s


def _products(roles: NestRoles, stages: Stages, hints: Mapping[str, int]) -> int:
    """Multiply-adds for a score."""
    sides = [i.depth for i in stages.inners] + [o.columns for o in stages.outers]
    return sum(hint(roles.points(s), hints) for s in sides)


def _score_work(roles: NestRoles, stages: Stages) -> float:
    """Of all that is computed for a score beside products."""
    body, axes = roles.comp.body, value_axes(roles.comp.body)
    keys = frozenset(roles.nest.keys)
    products = {i.value for i in stages.inners}
    loops = {v for loop in stages.loops for v in loop if v not in products}
    work = sum(own_cost(body[v]) for v in loops if axes[v] & keys)
    return work + _STATISTIC * len(stages.statistics)


def share_seen(roles: NestRoles, hints: Mapping[str, int], samples: int = 16) -> float:
    """The part of all scores within the bounds, from some rows."""
    bound, comp = roles.nest.bound, roles.comp
    extent = max(1, hint(comp.extent(roles.key), hints))
    seen = 0.0
    for n in range(samples):
        at = {a: hint(comp.extent(a), hints) * (2 * n + 1) // (2 * samples) for a in comp.extents}
        low = affine.value(bound.low, at, hints) if bound.low else 0
        high = affine.value(bound.high, at, hints) if bound.high else extent
        seen += max(0, min(high, extent) - max(low, 0)) / extent
    return seen / samples

"""Predicted seconds of a chain: its bytes at the rate of memory, and its products as far as memory
does not hide them, by the same rates as other Triton products (targets/products.py)."""

from __future__ import annotations

from torchweld.ir.nodes import Op, value_axes
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import hint, product
from torchweld.templates.chain.schedule import ITEM_BYTES, ChainSchedule, Work

_MICRO = 1e-6


def seconds(work: Work, s: ChainSchedule) -> float:
    device = work.target
    rate = device.products.rate("triton", ITEM_BYTES)
    programs = work.batch * s.programs
    busy = min(1.0, programs / device.units)
    memory_s = work.moved_bytes / (rate.memory * device.dram_bytes_per_s)
    weights_s = programs * work.weight_bytes / device.llc_bytes_per_s
    share = min(1.0, s.block_rows * work.widest / rate.full_tile) ** rate.small_tiles
    products_s = _flops(work, s) / (rate.tflops * 1e12 * share)
    pointwise_s = _fma(work) / device.fma_per_s
    computed_s = max(products_s, _flops(work, s) / device.products.sustained) + pointwise_s
    moved_s = max(memory_s, weights_s)
    hidden_s = max(moved_s, computed_s) + rate.exposed * min(moved_s, computed_s)
    return rate.start_us * _MICRO + hidden_s / busy


def _flops(work: Work, s: ChainSchedule) -> float:
    """Of all products, with what is padded."""
    rows = work.batch * s.programs * work.steps(s) * s.block_rows
    points = (work.padded(one.depth) * work.padded(one.columns) for one in work.chain.links)
    return 2.0 * rows * sum(points)


def _fma(work: Work) -> float:
    """Of what follows the products."""
    body, axes = work.comp.body, value_axes(work.comp.body)
    inside = {body[one.value].args[0] for one in work.chain.links}  # what tensor cores do
    found = 0.0
    for value, instr in enumerate(body):
        if isinstance(instr, Op) and value not in inside:
            points = hint(product(work.comp.extent(a) for a in axes[value]), work.hints)
            found += TABLE[instr.name].cost * points
    return found

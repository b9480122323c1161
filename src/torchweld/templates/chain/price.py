"""Predicted seconds of a chain: its bytes at the rate of memory, and its products as far as memory
does not hide them, by the same rates as other Triton products (targets/products.py)."""

from __future__ import annotations

from torchweld.ir.nodes import Op, Value, value_axes
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import hint, product
from torchweld.templates.chain.form import Chain
from torchweld.templates.chain.schedule import ChainSchedule, Work

_MICRO = 1e-6
_PARTIAL_BYTES = 4


def seconds(work: Work, s: ChainSchedule) -> float:
    """Of the kernel, and of those that add up its totals."""
    device = work.target
    rate = device.products.rate("triton", work.item_bytes)
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
    return rate.start_us * _MICRO + hidden_s / busy + _totals_s(work, s)


def _flops(work: Work, s: ChainSchedule) -> float:
    """Of all products, with what is padded."""
    rows = work.batch * s.programs * work.steps(s) * s.block_rows
    return 2.0 * rows * sum(product(map(work.padded, pair)) for pair in work.chain.pairs)


def _fma(work: Work) -> float:
    """Of what follows the products."""
    body, axes = work.comp.body, value_axes(work.comp.body)
    inside = _multiplications(work.chain, work)
    found = 0.0
    for value, instr in enumerate(body):
        if isinstance(instr, Op) and value not in inside:
            points = hint(product(work.comp.extent(a) for a in axes[value]), work.hints)
            found += TABLE[instr.name].cost * points
    return found


def _multiplications(chain: Chain, work: Work) -> set[Value]:
    """What tensor cores do."""
    summed = [one.value for one in chain.links]
    summed += [t.value for t in chain.gradients]
    return {work.comp.body[v].args[0] for v in summed}


def _totals_s(work: Work, s: ChainSchedule) -> float:
    """Of partial results in float32, written and read again, and the kernels that add them up."""
    device, totals = work.target, work.chain.totals
    points = sum(product(map(work.padded, t.widths)) for t in totals)
    moved = 2 * _PARTIAL_BYTES * work.batch * s.programs * points
    kernels = len({t.widths for t in totals})
    return kernels * device.products.sum_us * _MICRO + moved / device.llc_bytes_per_s

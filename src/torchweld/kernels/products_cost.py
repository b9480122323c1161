"""Predicted seconds of products: by the library, and in a kernel with their neighbours.

    launch + waves of tiles / rate(depth), or the bytes at the rate of memory, whichever is longer
           + what the epilogue moves beyond one result, as far as it is not hidden

The same formula serves both sides, so that what it gets wrong falls out of the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from torchweld.core.device import DeviceTable


@dataclass(frozen=True, slots=True)
class Rate:
    """`tflops` that a product of endless depth reaches; at `half_depth` it is half of that.
    `memory`: share of copy speed that it streams operands at. `exposed`: share of the time of the
    epilogue's further bytes that the main loop does not hide. `tiles`: rows by columns."""

    tflops: float
    half_depth: float
    memory: float
    exposed: float
    tiles: tuple[tuple[int, int], ...]


_LARGE = ((128, 256), (256, 128), (128, 128), (128, 64), (64, 64))

# H100, bf16, 8192 x 3072 per product. cuBLAS: 663, 679, 683 TFLOP/s at depths 768, 2048, 4096; the
# gated pair in Gluon, epilogue included, 626, 667, 688; one product in Gluon assumed 620, 650, 670;
# Triton's own pipelining 460 to 480. cuBLAS streams the weights of 16 rows at 2.6 of 3.02 TB/s; 0.9
# is the aim of the streaming kernels.
RATES: Mapping[str, Rate] = {
    "library": Rate(686, 26, 0.86, 0.0, _LARGE),
    "gluon": Rate(683, 78, 0.80, 0.3, ((128, 256), (128, 192), (128, 128), (64, 256), (64, 128))),
    "gluon pair": Rate(704, 96, 0.80, 0.3, ((128, 128), (64, 128), (128, 64))),
    "triton": Rate(490, 40, 0.80, 0.3, _LARGE),
    "stream": Rate(300, 40, 0.90, 0.3, ((16, 64), (32, 64), (64, 64))),
}
_H100_TENSOR_FMA_PER_S = 3.4e14  # the rates above are of such a device


@dataclass(frozen=True, slots=True)
class Work:
    """Sizes of `products` alike, and the bytes beside operands and one result."""

    batch: int
    rows: int
    columns: int
    depth: int
    products: int = 1
    more_bytes: int = 0


def seconds(work: Work, form: str, device: DeviceTable) -> float:
    """Of one kernel that makes the products, by form of kernel or "library" (one call for each)."""
    rate = RATES[form]
    scale = device.tensor_fma_per_s / _H100_TENSOR_FMA_PER_S
    best = _reuse(*rate.tiles[0])
    flops = min(_padded_flops(work, tile, best, device.units) for tile in rate.tiles)
    tflops = rate.tflops * work.depth / (work.depth + rate.half_depth)
    compute_s = flops / (tflops * 1e12 * scale)
    memory_s = _operand_bytes(work) / (rate.memory * device.dram_bytes_per_s)
    more_s = rate.exposed * work.more_bytes / device.dram_bytes_per_s
    return device.launch_s + max(compute_s, memory_s) + more_s


def _padded_flops(work: Work, tile: tuple[int, int], best: float, units: int) -> float:
    """As many as whole waves of whole tiles would make; of tiles that reuse less than `best`, whose
    rate is lower, more."""
    rows, columns = tile
    tiles = work.batch * ceil(work.rows / rows) * ceil(work.columns / columns)
    waves = ceil(tiles / units)
    each = 2.0 * rows * columns * work.depth * work.products
    return waves * units * each / min(1.0, _reuse(*tile) / best) ** 0.5


def _reuse(rows: int, columns: int) -> float:
    """Multiply-adds per element loaded."""
    return rows * columns / (rows + columns)


def _operand_bytes(work: Work) -> int:
    left, right = work.rows * work.depth, work.products * work.columns * work.depth
    return 2 * work.batch * (left + right + work.rows * work.columns)

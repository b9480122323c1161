"""Predicted seconds of products: by the library, and in a kernel with their neighbours.

    launch + waves of tiles / rate(depth), or the bytes at the rate of memory, whichever is longer
           + what the epilogue moves beyond one result, as far as it is not hidden

The same formula serves both sides, so that what it gets wrong falls out of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from torchweld.core.device import DeviceTable
from torchweld.ir.nodes import Comp, Extern, Graph, Load, Node
from torchweld.ir.size import hint, product
from torchweld.kernels.library import with_gelu
from torchweld.kernels.products_comp import product_comp
from torchweld.plan.cost import bytes_of, cost
from torchweld.schedule.access import Accesses, addressed
from torchweld.schedule.contraction import Contraction, contraction_of
from torchweld.schedule.product import ProductSchedule


@dataclass(frozen=True, slots=True)
class Rate:
    """`tflops` that a product of endless depth reaches in the largest tiles; at `half_depth` it is
    half of that. `memory`: share of copy speed that it streams operands at. `exposed`: share of the
    time of the epilogue's further bytes that the main loop does not hide."""

    tflops: float
    half_depth: float
    memory: float
    exposed: float


# H100, bf16, 8192 x 3072 per product. cuBLAS: 663, 679, 683 TFLOP/s at depths 768, 2048, 4096; the
# gated pair in Gluon, epilogue included, 626, 667, 688; one product in Gluon assumed 620, 650, 670;
# Triton's own pipelining 460 to 480. cuBLAS streams the weights of 16 rows at 2.6 of 3.02 TB/s; 0.9
# is the aim of the streaming kernels.
RATES: Mapping[str, Rate] = {
    "library": Rate(686, 26, 0.86, 0.0),
    "gluon": Rate(683, 78, 0.80, 0.3),
    "gluon pair": Rate(704, 96, 0.80, 0.3),
    "triton": Rate(490, 40, 0.80, 0.3),
    "stream": Rate(300, 40, 0.90, 0.3),
}
_GELU = 38.3 / 32.9  # cublasLt's gelu epilogue, [4096, 768] x [768, 3072], in times of the product
_H100_TENSOR_FMA_PER_S = 3.4e14  # the rates above are of such a device
# Rows, columns of the library's tiles, of which it picks the best.
_LIBRARY_TILES = ((128, 256), (256, 128), (128, 192), (128, 128), (128, 64), (64, 128), (64, 64))
_LIBRARY_SPLITS = (1, 2, 4, 8, 16)
# Rate by elements of a tile, all products together: smaller ones read more for each product.
_SMALL_TILES = {32768: 1.0, 24576: 0.97, 16384: 0.91, 8192: 0.77, 4096: 0.6, 2048: 0.45, 0: 0.3}


@dataclass(frozen=True, slots=True)
class Work:
    """Sizes of `products` alike, and the bytes beside operands and one result."""

    batch: int
    rows: int
    columns: int
    depth: int
    products: int = 1
    more_bytes: int = 0


def library_s(work: Work, device: DeviceTable) -> float:
    """Of one call, in the library's best tiles. Where it shares a tile's depth, it adds the parts
    up in a second kernel."""
    return min(
        _seconds(work, "library", *tile, splits, device) + (splits > 1) * device.launch_s
        for tile in _LIBRARY_TILES
        for splits in _LIBRARY_SPLITS
    )


def kernel_s(work: Work, schedule: ProductSchedule, device: DeviceTable) -> float:
    """Of one kernel that makes all products."""
    pair = schedule.form == "gluon" and work.products > 1
    form = "gluon pair" if pair else schedule.form
    tile = schedule.block_m, schedule.block_n
    return _seconds(work, form, *tile, schedule.splits, device)


def _seconds(
    work: Work, form: str, block_m: int, block_n: int, splits: int, device: DeviceTable
) -> float:
    rate = RATES[form]
    area = block_m * block_n * work.products
    share = next(s for least, s in _SMALL_TILES.items() if area >= least)
    tflops = rate.tflops * share * work.depth / (work.depth + rate.half_depth)
    per_unit = tflops * 1e12 * device.tensor_fma_per_s / _H100_TENSOR_FMA_PER_S / device.units
    tiles = work.batch * ceil(work.rows / block_m) * ceil(work.columns / block_n) * splits
    waves = ceil(tiles / device.units)
    compute_s = waves * 2.0 * area * (work.depth / splits) / per_unit
    memory_s = _operand_bytes(work) / (rate.memory * device.dram_bytes_per_s)
    more_s = rate.exposed * work.more_bytes / device.dram_bytes_per_s
    if splits > 1:
        more_s += 2 * splits * _partial_bytes(work) / device.llc_bytes_per_s
    return device.launch_s + max(compute_s, memory_s) + more_s


def _partial_bytes(work: Work) -> int:
    """Of results in float32."""
    return 4 * work.batch * work.rows * work.columns * work.products


def _operand_bytes(work: Work) -> int:
    left, right = work.rows * work.depth, work.products * work.columns * work.depth
    return 2 * work.batch * (left + right + work.rows * work.columns)


@dataclass(frozen=True, slots=True)
class Prices:
    """Of the nodes of one graph on one device, at typical sizes."""

    graph: Graph
    device: DeviceTable

    def comp_s(self, comp: Comp) -> float:
        return cost(comp, self.graph.buffers, self.graph.hints, self.device).seconds

    def apart_s(self, calls: Sequence[Extern], reader: Comp) -> float:
        """Of the calls and then the Comp that reads their results."""
        calls_s = sum(map(self.call_s, calls))
        together = len(calls) == 1 and with_gelu(calls[0], reader, self.graph)
        return _GELU * calls_s if together else calls_s + self.comp_s(reader)

    def call_s(self, node: Extern) -> float:
        """Of a library's product that has a Comp."""
        made = product_comp(node, self.graph.buffers)
        accesses = addressed(made, self.graph.buffers, self.graph.hints)
        return library_s(self._work(accesses, contraction_of(accesses)), self.device)

    def fused_s(self, accesses: Accesses, form: Contraction, chosen: ProductSchedule) -> float:
        return kernel_s(self._work(accesses, form), chosen, self.device)

    def moved(self, node: Node) -> int:
        """Bytes of what the node reads and writes, each once."""
        return self._bytes((*node.reads, *node.writes))

    def _work(self, accesses: Accesses, form: Contraction) -> Work:
        comp = accesses.comp
        factors = {v for p in form.products for v in (p.left_load, p.right_load)}
        loads = [i for v, i in enumerate(comp.body) if isinstance(i, Load) and v not in factors]
        batch, rows, columns, depth = (
            hint(product(comp.extent(a) for a in axes), self.graph.hints)
            for axes in (form.batch, form.rows, form.columns, form.depth)
        )
        moved = self._bytes((*(i.buffer for i in loads), *comp.writes))
        more = max(0, moved - 2 * batch * rows * columns)
        return Work(batch, rows, columns, depth, len(form.products), more)

    def _bytes(self, names: Iterable[str]) -> int:
        unique = dict.fromkeys(names)
        return sum(bytes_of(self.graph.buffers[n], self.graph.hints) for n in unique)

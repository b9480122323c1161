"""Predicted seconds of products: by the library, and in a kernel with their neighbours.

    start + waves of tiles / rate, or the operands' bytes at the rate of memory, whichever is longer
          + the epilogue: of the last wave in full, of those before as far as it is not hidden

One formula with the same meaning on both sides, fitted to each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from torchweld.ir.access import Accesses
from torchweld.ir.contraction import Contraction, column_sums
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Load, Node, Op, value_axes
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import Size, hint, product
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import is_batched, left_operand
from torchweld.templates.gemm.concatenation import pieces_of
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.library.calls import with_gelu
from torchweld.templates.pointwise_reduce.price import bytes_of, cost
from torchweld.templates.traffic import node_bytes


@dataclass(frozen=True, slots=True)
class Rate:
    """`start_us`: of a kernel that has nothing to do, its launch included. `tflops` in tiles of
    32768 elements (all products together); smaller ones lose by the power `small_tiles` of their
    share, short depths by `half_depth` (at which the rate is half). `memory`: share of copy speed
    that operands stream at. `exposed`: share of the epilogue of all waves but the last that the
    main loop does not hide. `split_us`: to add up shares of one tile's depth."""

    start_us: float
    tflops: float
    small_tiles: float
    half_depth: float
    memory: float
    exposed: float
    split_us: float


# H100, bf16: bench/gpu_products.py in a CUDA graph, weights from memory: fitted to 23 shapes of the
# library (each within 14 %), to the better schedules of 26 shapes of Triton and of streams (rms 13
# and 8 %), and to the two best tiles of 31 shapes in Gluon, in turn and not (5.5 and 6 %).
RATES: Mapping[str, Rate] = {
    "library": Rate(3.0, 800, 0.0, 0, 0.90, 0.46, 2.8),
    "gluon": Rate(5.0, 960, 0.0, 0, 0.90, 0.8, 0.5),
    "gluon in turn": Rate(5.0, 1120, 0.24, 0, 0.90, 0.6, 0.5),
    "triton": Rate(2.6, 900, 0.45, 0, 0.90, 0.8, 0.5),
    "stream": Rate(2.8, 850, 0.37, 244, 0.96, 1.0, 0.6),
    "gluon stream": Rate(2.3, 850, 0.37, 0, 1.07, 1.0, 0.4),  # behind another stream
}
_GELU = 38.3 / 32.9  # cublasLt's gelu epilogue, [4096, 768] x [768, 3072], in times of the product
_H100_TENSOR_FMA_PER_S = 3.4e14  # the rates above are of such a device
# Multiply-adds that each element of a left factor costs if it is computed on the way (a norm), in
# every tile: [16, 2048] x [2048, 2 x 8192] takes 2.2 us more in tiles of 64 columns, 5.0 of 32.
_COMPUTED_FMA = 16.0
_EARLY_US = 1.0  # that a kernel in Gluon gains by beginning while the one before it ends
_FULL_TILE = 128 * 256  # elements
_SUSTAINED = 7.0e14  # flops per second that the power limit leaves a long kernel, whatever makes it
# Rows, columns of the library's tiles and shares of the depth, of which it picks the best.
_LIBRARY_TILES = ((128, 256), (256, 128), (128, 192), (128, 128), (128, 64), (64, 128), (64, 64))
_LIBRARY_SPLITS = (1, 2, 4, 8, 16)
_SUM_US = 3.5  # to add up columns: in tiles, and then tiles
_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Work:
    """Sizes of `products` alike; the epilogue's bytes beside one result, and its multiply-adds for
    each element of it. `computed`: the left factor is. `pieces`: how many columns each of several
    matrices side by side has."""

    batch: int
    rows: int
    columns: int
    depth: int
    products: int = 1
    more_bytes: int = 0
    fma: float = 0.0
    computed: bool = False
    pieces: tuple[int, ...] = ()

    def tiles(self, block_m: int, block_n: int) -> int:
        """None holds columns of two matrices."""
        across = sum(ceil(n / block_n) for n in self.pieces or (self.columns,))
        return self.batch * ceil(self.rows / block_m) * across

    @property
    def results(self) -> int:
        return self.batch * self.rows * self.columns


def library_s(work: Work, device: Target) -> float:
    """Of one call, in the library's best tiles."""
    return min(
        _seconds(work, RATES["library"], *tile, splits, device)
        for tile in _LIBRARY_TILES
        for splits in _LIBRARY_SPLITS
    )


def kernel_s(work: Work, schedule: ProductSchedule, device: Target) -> float:
    """Of one kernel that makes all products."""
    tile = schedule.block_m, schedule.block_n
    rate = RATES["gluon in turn" if schedule.pingpong else schedule.form]
    if schedule.form == "gluon" and schedule.early:
        rate = replace(rate, start_us=rate.start_us - _EARLY_US)
    return _seconds(work, rate, *tile, schedule.splits, device)


def _seconds(
    work: Work, rate: Rate, block_m: int, block_n: int, splits: int, device: Target
) -> float:
    area = block_m * block_n * work.products
    waves = max(1, ceil(work.tiles(block_m, block_n) * splits / device.units))
    scale = _H100_TENSOR_FMA_PER_S / device.tensor_fma_per_s
    tflops = rate.tflops * 1e12 / scale * min(1.0, area / _FULL_TILE) ** rate.small_tiles
    tflops *= work.depth / (work.depth + rate.half_depth) if work.depth else 1.0
    padded_flops = 2.0 * waves * device.units * area * work.depth / splits
    memory_s = _operand_bytes(work) / (rate.memory * device.dram_bytes_per_s)
    epilogue_s = _epilogue_s(work, device) * (1 / waves + rate.exposed * (1 - 1 / waves))
    split_s = 0.0 if splits == 1 else rate.split_us * _MICRO + _partials_s(work, splits, device)
    start_s = rate.start_us * _MICRO + _computed_s(work, block_m, waves, splits, device)
    sustained_s = _flops(work) * scale / _SUSTAINED
    busy_s = max(padded_flops / tflops, memory_s) + epilogue_s
    return start_s + max(busy_s, sustained_s) + split_s


def _flops(work: Work) -> float:
    return 2.0 * work.results * work.products * work.depth


def _computed_s(work: Work, block_m: int, waves: int, splits: int, device: Target) -> float:
    """Of left factors that every tile computes for itself."""
    if not work.computed:
        return 0.0
    elements = waves * min(work.rows, block_m) * work.depth / splits
    return elements * _COMPUTED_FMA * device.units / device.fma_per_s


def _epilogue_s(work: Work, device: Target) -> float:
    moved = 2 * work.results + work.more_bytes
    return moved / device.dram_bytes_per_s + work.fma * work.results / device.fma_per_s


def _partials_s(work: Work, splits: int, device: Target) -> float:
    """Of results in float32, written and read again."""
    return 2 * splits * 4 * work.results * work.products / device.llc_bytes_per_s


def _operand_bytes(work: Work) -> int:
    left, right = work.rows * work.depth, work.products * work.columns * work.depth
    return 2 * work.batch * (left + right + work.rows * work.columns)


def _side_by_side(works: Sequence[Work]) -> Work:
    """Matrices that differ in their columns, as one work."""
    pieces = tuple(w.columns for w in works)
    return replace(
        works[0], columns=sum(pieces), more_bytes=sum(w.more_bytes for w in works),
        fma=max(w.fma for w in works), pieces=pieces,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prices:
    """Of the nodes of one graph on one device, at typical sizes."""

    graph: Graph
    device: Target

    def comp_s(self, comp: Comp) -> float:
        return cost(comp, self.graph.buffers, self.graph.hints, self.device).seconds

    def apart_s(self, calls: Sequence[Extern], reader: Comp, alone: bool) -> float:
        """Of the calls and then the Comp that reads their results; `alone`: nothing else does."""
        calls_s = sum(map(self.call_s, calls))
        together = alone and len(calls) == 1 and with_gelu(calls[0], reader, self.graph)
        return _GELU * calls_s if together else calls_s + self.comp_s(reader)

    def call_s(self, node: Extern) -> float:
        """Of a library's product."""
        result, depth = self.graph.buffers[node.outputs[0]], left_operand(node).shape[-1]
        *outer, columns = (self._number(n) for n in result.shape)
        batch = outer[0] if is_batched(node) else 1
        rows = prod(outer) // max(1, batch)
        return library_s(Work(batch, rows, columns, self._number(depth)), self.device)

    def _number(self, extent: Size) -> int:
        return hint(extent, self.graph.hints)

    def fused_s(self, accesses: Accesses, form: Contraction, chosen: ProductSchedule) -> float:
        graph = self.graph
        return fused_s(accesses, form, chosen, graph.buffers, graph.hints, self.device)

    def moved(self, node: Node) -> int:
        """Bytes that the node reads and writes."""
        return node_bytes(node, self.graph.buffers, self.graph.hints)


def fused_s(
    accesses: Accesses,
    form: Contraction,
    chosen: ProductSchedule,
    buffers: Mapping[str, Buffer],
    hints: Mapping[str, int],
    device: Target,
) -> float:
    """Of one kernel that makes products and what follows them."""
    pieces = pieces_of(accesses, form)
    works = [_work(p.accesses, p.contraction, buffers, hints) for p in pieces]
    sums_s = _SUM_US * _MICRO * len(column_sums(accesses, form))
    return kernel_s(_side_by_side(works), chosen, device) + sums_s


def _work(accesses: Accesses, form: Contraction, buffers, hints: Mapping[str, int]) -> Work:
    comp = accesses.comp
    spans = list(zip(comp.body, value_axes(comp.body)))
    after = [i for i, axes in spans if not axes.intersection(form.depth)]
    loads = [i for i in after if isinstance(i, Load)]
    batch, rows, columns, depth = (
        hint(product(comp.extent(a) for a in axes), hints)
        for axes in (form.batch, form.rows, form.columns, form.depth)
    )
    moved = _bytes((*(i.buffer for i in loads), *comp.writes), buffers, hints)
    more = max(0, moved - 2 * batch * rows * columns)
    fma = sum(TABLE[i.name].cost for i in after if isinstance(i, Op))
    computed = any(p.left_load is None for p in form.products)
    return Work(batch, rows, columns, depth, len(form.products), more, fma, computed)


def _bytes(names: Iterable[str], buffers, hints: Mapping[str, int]) -> int:
    """Of buffers, each once."""
    return sum(bytes_of(buffers[n], hints) for n in dict.fromkeys(names))

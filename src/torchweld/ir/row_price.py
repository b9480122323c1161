"""Whether a region of rows is worth chunks, and how many rows one has: as few as cost little time.

A chunk costs launches, and for each sum over rows a pass over its result in float32; products of
few rows are slower than of many. That is weighed against the region's own time, which products
dominate. Memory is what its large buffers need at their fullest moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.nodes import Graph
from torchweld.ir.row_region import (
    Member,
    Region,
    RowComp,
    RowSum,
    elements,
    product_operands,
)
from torchweld.targets.rates import library_rate, rate_at
from torchweld.targets.target import Target

_MOST_EXTRA = 0.08  # of the region's time
_EXPOSED = 0.5  # of what a sum over rows reads and writes again: a GEMM's epilogue hides the rest
# Of the device's memory: what large results take whole before time is given for memory. The price
# of chunks is too low: with 0.8 GB of logits in chunks a training step of GPT-2 took 21.4 ms on an
# H100 (16.4 whole, in an earlier run); with 2 GB, eager takes 0.84 to 0.86 of our time.
_SHARE = 1 / 32
_LEAST_SAVED = 8 << 20  # bytes: less is lost among what a process holds in any case
_FEWEST_ROWS = 128  # of a chunk: a tile of a GEMM on a GPU, and where a CPU's nears its full rate
_GRAIN = 64  # rows


@dataclass(frozen=True, slots=True)
class Chunks:
    """`rows` of each chunk but the last; bytes of the large buffers at once, before and after, with
    the float32 sums that chunks need beside them; seconds."""

    rows: int
    bytes_before: int
    bytes_after: int
    seconds: float
    extra_s: float

    def bounds(self, rows: int) -> tuple[tuple[int, int], ...]:
        starts = range(0, rows, self.rows)
        return tuple((low, min(low + self.rows, rows)) for low in starts)


def best_chunks(region: Region, graph: Graph, target: Target) -> list[Chunks]:
    """Ways to chunk that pay, the one with the fewest rows first."""
    whole, seconds = wide_bytes(region, graph), region_s(region, graph, target)
    if whole < _SHARE * target.memory_bytes:
        return []
    found = [_priced(rows, region, graph, target, whole, seconds) for rows in _sizes(region)]
    return [
        c
        for c in found
        if c.extra_s <= _MOST_EXTRA * seconds and c.bytes_before - c.bytes_after >= _LEAST_SAVED
    ]


def _sizes(region: Region) -> Iterable[int]:
    """Rows of a chunk: equal parts, those that divide the inner steps of rows among them."""
    rows = region.rows
    inner = {s for steps in region.steps.values() for s in steps or () if s > 1}
    equal = {rows // n for n in range(2, rows // _FEWEST_ROWS + 1) if rows % n == 0}
    even = {-(-rows // n // _GRAIN) * _GRAIN for n in range(2, 65)}
    nested = {s // n for s in inner for n in range(1, 65) if s % n == 0} | {
        s * n for s in inner for n in range(1, 65)
    }
    return sorted(r for r in equal | even | nested if _FEWEST_ROWS <= r < rows)


def _priced(rows: int, region: Region, graph: Graph, target: Target, whole: int, seconds: float):
    more = -(-region.rows // rows) - 1
    sums = [graph.buffers[m.result] for m in region.members if isinstance(m, RowSum)]
    again_s = _EXPOSED * sum(8 * elements(b) for b in sums) / target.dram_bytes_per_s
    slower_s = region_s(region, graph, target, rows) - seconds
    extra_s = slower_s + more * (again_s + len(region.members) * target.launch_s)
    wider = sum(4 * elements(b) for b in sums if b.dtype.is_low_precision)
    return Chunks(rows, whole, whole * rows // region.rows + wider, seconds, extra_s)


def wide_bytes(region: Region, graph: Graph) -> int:
    """What the large buffers need at their fullest moment, whole."""
    first, last = {}, {}
    for place, member in enumerate(region.members):
        for name in region.wide.intersection((*member.node.reads, *member.node.writes)):
            first.setdefault(name, place)
            last[name] = place
    size = {n: elements(graph.buffers[n]) * graph.buffers[n].dtype.bytes for n in first}
    moments = range(len(region.members))
    return max(sum(size[n] for n in first if first[n] <= m <= last[n]) for m in moments)


def region_s(region: Region, graph: Graph, target: Target, rows: int | None = None) -> float:
    """Of the region's nodes, done in chunks of so many rows."""
    rows = rows or region.rows
    return sum(_member_s(m, region, graph, target, rows) for m in region.members)


def _member_s(member: Member, region: Region, graph: Graph, target: Target, rows: int) -> float:
    node = member.node
    if isinstance(member, RowComp):
        touched = [graph.buffers[n] for n in region.wide.intersection((*node.reads, *node.writes))]
        return sum(elements(b) * b.dtype.bytes for b in touched) / target.dram_bytes_per_s
    _, left, right = product_operands(node)
    work = left.shape[0] * left.shape[1] * right.shape[1]
    return work / _rate(graph.buffers[left.buffer].dtype, target, rows)


def _rate(dtype: DType, target: Target, rows: int) -> float:
    """Multiply-adds a second of a library's products of so many rows."""
    if dtype.is_low_precision:
        return library_rate(target.rates, dtype) or target.tensor_fma_per_s
    known = target.rates.get("float32 aten") and dtype == dtypes.f32
    return rate_at(target.rates, "float32 aten", rows) if known else target.fma_per_s

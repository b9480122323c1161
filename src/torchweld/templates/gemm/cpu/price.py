"""Predicted seconds of products on a CPU, by each way to make them (targets/rates.py).

    call + multiply-adds / rate, or bytes / memory's rate, whichever is longer
         + what follows, as far as it is not free: an own kernel does it on sums in the cache
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from torchweld.core import dtypes
from torchweld.core.dtypes import DType, torch_name
from torchweld.ir.nodes import Buffer, Comp, Extern
from torchweld.ir.size import hint
from torchweld.targets.rates import rate_at
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import operands_of
from torchweld.templates.gemm.cpu.schedule import CpuProduct
from torchweld.templates.pointwise_reduce.price import (
    bytes_of,
    bytes_per_s,
    cost,
    memory_seconds,
)

_CALL_S = {"aten": 6e-6, "onednn": 14e-6, "own": 3e-6}  # of a call with nothing to do


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a product: `batch` times [rows, depth] x [depth, columns] in `dtype`."""

    batch: int
    rows: int
    columns: int
    depth: int
    dtype: DType

    @property
    def multiply_adds(self) -> int:
        return self.batch * self.rows * self.columns * self.depth

    @property
    def bytes(self) -> int:
        sides = self.rows * self.depth + self.depth * self.columns + self.rows * self.columns
        return self.batch * sides * self.dtype.bytes


def sizes_of(node: Extern, buffers: Mapping[str, Buffer], hints: Mapping[str, int]) -> Sizes:
    """Of a library's product. One matrix for a whole batch counts as a taller product."""
    left, right = operands_of(node)
    *batch, rows, depth, columns = (hint(s, hints) for s in (*left.shape, right.shape[-1]))
    if not any(right.strides[:-2]):
        rows, batch = rows * prod(batch), []
    return Sizes(prod(batch), rows, columns, depth, buffers[left.buffer].dtype)


def way_s(way: str, sizes: Sizes, target: Target) -> float | None:
    """Of the product alone, made in one of rates.WAYS; None where nothing is known of it."""
    key = f"{torch_name(dtypes.to_torch(sizes.dtype))} {way}"
    if key not in target.rates:
        return None
    rows = min(sizes.rows, sizes.columns)
    memory_s = sizes.bytes / bytes_per_s(sizes.bytes, target)
    return _CALL_S[way] + max(sizes.multiply_adds / rate_at(target.rates, key, rows), memory_s)


def reader_s(
    reader: Comp, made: str, buffers: Mapping[str, Buffer], hints: Mapping[str, int],
    target: Target, joined: bool,
) -> float:  # fmt: skip
    """Of what reads the result `made` of a product: as a kernel of its own, or `joined` to it, when
    it neither starts a kernel nor reads and writes the result again."""
    alone_s = cost(reader, buffers, hints, target).seconds
    if not joined:
        return alone_s
    result = buffers[made]
    passed_s = memory_seconds(2 * bytes_of(result, hints), result, hints, target)
    return max(0.0, alone_s - target.launch_s - passed_s)


def product_s(
    product: CpuProduct,
    comp: Comp,
    buffers: Mapping[str, Buffer],
    hints: Mapping[str, int],
    target: Target,
) -> float:
    """Of our own kernel, with what follows the sums. `comp`: over the axes of `product`."""

    def points(name: str | None) -> int:
        return 1 if name is None else hint(comp.extent(name), hints)

    dtype = buffers[comp.body[product.left].buffer].dtype
    names = (product.batch, product.row, product.column, product.depth)
    sizes = Sizes(*map(points, names), dtype)
    alone_s = way_s("own", sizes, target) or way_s("own", replace(sizes, dtype=dtypes.f32), target)
    return alone_s or cost(comp, buffers, hints, target).seconds

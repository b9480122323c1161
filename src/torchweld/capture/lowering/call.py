"""One ATen call being lowered: what eager returns for it, which results are used, and nests to
write it with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from torchweld.capture.lowering.build import GraphBuilder
from torchweld.capture.lowering.expr import Expr
from torchweld.capture.lowering.nest import Nest, Operand, Spec, aligned, reshaped
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.errors import NotLowered
from torchweld.ir.size import Size
from torchweld.ir.views import Tensor


@dataclass
class Call:
    """`value`: the fake result(s). `used`: the results that somebody reads, by number. `given`: the
    fake values of its arguments, in order; None for numbers and lists."""

    graph: GraphBuilder
    name: str
    value: object
    used: frozenset[int]
    given: tuple[object, ...] = ()

    @cached_property
    def specs(self) -> tuple[Spec | None, ...]:
        values = self.value if isinstance(self.value, (tuple, list)) else (self.value,)
        return tuple(
            spec_of(self.graph, v) if isinstance(v, torch.Tensor) else None for v in values
        )

    @property
    def out(self) -> Spec:
        return self.specs[0]

    def size(self, value) -> Size:
        return self.graph.sizes.convert(value)

    def nest(
        self,
        shape: Sequence[Size],
        *tensors: Tensor | None,
        extra: Sequence[Operand] = (),
        single=(),
    ) -> Nest:
        """A nest over `shape` with `tensors` broadcast against it, and `extra` operands read in
        places of their own."""
        operands = [aligned(t, len(shape)) for t in tensors if t is not None]
        self.check_device([t for t, _ in (*operands, *extra)])
        return Nest(self.graph, self.name, shape, [*operands, *extra], single)

    def check_device(self, tensors: Sequence[Tensor]) -> None:
        """A kernel reads memory of one device; only ATen knows how to mix in a scalar from
        another."""
        devices = {t.device for t in tensors if t.buffer}
        if not devices <= {s.device for s in self.specs if s}:
            raise NotLowered("operands on several devices")

    def finish(
        self, nest: Nest, value: Expr, dims: Sequence[int | None] | None = None, **how
    ) -> Tensor:
        """Stores the only result and closes the nest."""
        result = nest.store(value, self.out, dims, **how)
        nest.close()
        return result

    def finish_all(
        self, nest: Nest, values: Sequence[tuple[Expr, Sequence[int | None] | None] | None]
    ) -> tuple:
        """Stores the used results of several, each (value, dims), and closes the nest."""
        results = tuple(
            nest.store(given[0], self.specs[k], given[1]) if given and k in self.used else None
            for k, given in enumerate(values)
        )
        if nest.stores:
            nest.close()
        return results

    def fresh(self, tensor: Tensor) -> Tensor:
        """A result that eager copies: the same elements, left where they are, since nobody can tell
        until it is an output. Raises NotLowered where somebody can."""
        if tensor.dtype.kind == "opaque" or tensor.source in self.graph.mutated:
            raise NotLowered("a copy that must be made")
        return replace(tensor, copied=True)

    def reshaped(self, tensor: Tensor, shape: Sequence[Size]) -> Tensor:
        return reshaped(self.graph, tensor, tuple(shape))

    def compute(self, result: int = 0) -> DType:
        """The dtype in which the result is computed."""
        return dtypes.compute(self.specs[result].dtype)

    def reciprocal(self, divisor: object) -> float | None:
        """What torch's kernels for CUDA multiply by instead of dividing by a number
        (BinaryDivTrueKernel.cu; means: ReduceMomentKernel.cu): its reciprocal in float64, rounded
        once. None where they divide."""
        dtype = self.compute()
        if not isinstance(divisor, (int, float)) or not dtype.is_float:
            return None
        if not self.out.device.startswith("cuda"):
            return None
        exact = torch.float64 if dtype == dtypes.f64 else torch.float32
        return torch.tensor(divisor, dtype=torch.float64).reciprocal().to(exact).item()


def spec_of(graph: GraphBuilder, value: torch.Tensor) -> Spec:
    """Raises NotLowered for a tensor without strides (sparse, nested)."""
    if value.layout != torch.strided or value.is_nested:
        raise NotLowered(f"a tensor of layout {value.layout}")
    many = graph.sizes.many
    return Spec(many(value.shape), many(value.stride()), dtype_of(value.dtype), str(value.device))


def dtype_of(dtype: torch.dtype) -> DType:
    """The IR's name for a torch dtype; one that no Comp can compute with has kind "opaque"."""
    opaque = DType(dtypes.torch_name(dtype), "opaque", dtype.itemsize * 8)
    return dtypes.from_torch(dtype) or opaque


def need_arithmetic(*kinds: DType) -> None:
    """Raises NotLowered where one of the types is only moved and converted."""
    if any(d.kind == "opaque" or d.is_float8 for d in kinds):
        raise NotLowered("no arithmetic on this dtype")


def normal(d: int, rank: int) -> int:
    """A dimension number that may be negative; a scalar has one dimension to name."""
    return d + max(rank, 1) if d < 0 else d


def normal_dims(dims, rank: int) -> tuple[int, ...]:
    """Dimension numbers, ascending; None or an empty list names all; a scalar has none."""
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted(normal(d, rank) for d in dims)) if dims and rank else tuple(range(rank))


def kept(rank: int, dims: Sequence[int], keepdim: bool) -> list[int | None]:
    """The result's dimensions after reducing `dims`, as Nest.store takes them."""
    if keepdim:
        return [None if d in dims else d for d in range(rank)]
    return [d for d in range(rank) if d not in dims]


def promoted(tensors_and_numbers: Sequence) -> DType:
    """ATen's common dtype: tensors with dimensions, then 0-dim tensors, then Python numbers; a
    later group counts only for
    its higher kind (bool < int < float)."""
    groups: list[list[torch.dtype]] = [[], [], []]
    for item in tensors_and_numbers:
        if isinstance(item, Tensor):
            groups[0 if item.rank else 1].append(_torch_dtype(item.dtype))
        elif item is not None:
            groups[2].append(_number_dtype(item))
    result = None
    for group in groups:
        for dtype in group[:1]:
            for other in group[1:]:
                dtype = torch.promote_types(dtype, other)
            if result is None or _kind(dtype) > _kind(result):
                result = dtype
    return dtypes.from_torch(result)


def _torch_dtype(dtype: DType) -> torch.dtype:
    if dtype.kind == "opaque":
        raise NotLowered(f"no arithmetic on {dtype}")
    return dtypes.to_torch(dtype)


def _number_dtype(value) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    return torch.get_default_dtype() if isinstance(value, float) else torch.int64


def _kind(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1

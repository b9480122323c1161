"""Sums of products as torch contracts them: the factors of `reduce.sum[k] (mul %a %b)` are never
multiplied out, which for a product of matrices would be rows x columns x depth numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from torchweld.ir.nodes import Comp, Op, Reduce, Value, operands, store_operands, value_axes


@dataclass(frozen=True, slots=True)
class Factors:
    """Stands for left * right until it is summed. Dimensions broadcast."""

    left: Tensor
    right: Tensor

    def summed(self, dims: tuple[int, ...], sizes: dict[int, int]) -> Tensor:
        """The sum over `dims` (kept, with extent one), each of which has its full size in `sizes`
        even where neither factor varies along it."""
        shape = torch.broadcast_shapes(self.left.shape, self.right.shape)
        kept = [d for d in range(len(shape)) if d not in dims]
        result = torch.einsum(
            *_spread(self.left), *_spread(self.right), [d for d in kept if shape[d] != 1]
        )
        for d in dims:
            if shape[d] != sizes[d]:
                result = result * sizes[d]
        return result.reshape([1 if d in dims else n for d, n in enumerate(shape)])


def _spread(factor: Tensor) -> tuple[Tensor, list[int]]:
    """The factor without dimensions of one element, and the numbers of those that are left."""
    left = [d for d, n in enumerate(factor.shape) if n != 1]
    return factor.reshape([factor.shape[d] for d in left]), left


def deferred(comp: Comp) -> frozenset[Value]:
    """The products whose only readers are one sum, and whose factors each vary along axes that the
    other does not."""
    uses = Counter(v for i in comp.body for v in operands(i))
    uses.update(v for s in comp.stores for v in store_operands(s))
    axes = value_axes(comp.body)
    sums = [i for i in comp.body if isinstance(i, Reduce) and i.monoid == "sum"]
    return frozenset(i.args[0] for i in sums if _is_outer(comp, i, axes) and uses[i.args[0]] == 1)


def _is_outer(comp: Comp, total: Reduce, axes: list[frozenset[str]]) -> bool:
    factor = comp.body[total.args[0]]
    if not isinstance(factor, Op) or factor.name != "mul" or not factor.dtype.is_float:
        return False
    left, right = (axes[v] for v in factor.args)
    return bool(left - right) and bool(right - left)

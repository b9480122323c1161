"""Products that add up rows some at a time, in float32: library calls of our own.

    total = begin_sum(left [m, rows], right [rows, n]);  add_to_sum(total, left, right); ...

On a GPU the library adds to a float32 matrix in its epilogue, whatever the operands. On a CPU it
does so for float32 operands; the product of 16-bit ones is rounded once for each chunk, and added
in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

BEGIN, ADD = "torchweld.begin_sum", "torchweld.add_to_sum"


def begin_sum(left: Tensor, right: Tensor) -> Tensor:
    """left times right in float32, or in float64 if they are."""
    if left.is_cuda and left.dtype.itemsize == 2:
        return torch.ops.aten.mm.dtype(left, right, torch.float32)
    product = torch.mm(left, right)
    return product.float() if left.dtype.itemsize == 2 else product


def add_to_sum(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left times right."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif left.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        total.add_(torch.mm(left, right))


ROW_SUMS: Mapping[str, Callable] = {BEGIN: begin_sum, ADD: add_to_sum}

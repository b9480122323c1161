"""Writes into copies, as eager makes them.

    slice_scatter(x.expand(..), part, ..) -> slice_scatter(clone(x.expand(..)), part, ..)
    index_fill(x, dim, index, value)      -> index_put(x, [.., index], value)

A part written into a copy of an expanded tensor: the copy has memory for each element. Shape
functions before torch 2.13 give it the strides of what is expanded. For filled slices, torch's own
decomposition copies once more into the strides of x, and before torch 2.13 by a write that is none
of a functional graph: a transposed x was not traced.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def _into_copy(scatter):
    def scattered(x, *args, **kwargs):
        expanded = any(s == 0 and n != 1 for n, s in zip(x.shape, x.stride()))
        expanded = expanded and 0 not in x.shape  # whose copies have such strides, too
        return scatter(x.clone(), *args, **kwargs) if expanded else NotImplemented

    return scattered


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value) -> torch.Tensor:
    """`value`: a number, or a tensor of one. Eager takes an index of one dimension at most."""
    if index.dim() > 1:
        return NotImplemented
    if not isinstance(value, torch.Tensor):
        value = torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    rows = x if x.dim() else x[None]
    place = dim % rows.dim()
    filled = aten.index_put(rows, [None] * place + [index.reshape(-1)], value.to(x.dtype))
    return filled if x.dim() else filled[0].clone()


_EXPANDED = (
    aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
)  # fmt: skip
_FILLS = aten.index_fill.int_Scalar, aten.index_fill.int_Tensor
DECOMPOSITIONS = {op: _into_copy(op) for op in _EXPANDED} | dict.fromkeys(_FILLS, _index_fill)

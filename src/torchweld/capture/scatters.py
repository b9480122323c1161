"""A part written into a copy of an expanded tensor: the copy has memory for each element, as
eager's. Shape functions before torch 2.13 give it the strides of what is expanded.

    slice_scatter(x.expand(..), part, ..) -> slice_scatter(clone(x.expand(..)), part, ..)
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def _into_copy(scatter):
    def scattered(x, *args, **kwargs):
        expanded = any(s == 0 and n != 1 for n, s in zip(x.shape, x.stride()))
        return scatter(x.clone(), *args, **kwargs) if expanded else NotImplemented

    return scattered


DECOMPOSITIONS = {
    op: _into_copy(op)
    for op in (
        aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default
    )
}  # fmt: skip

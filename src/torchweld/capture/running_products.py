"""Gradients of running products (`cumprod`) in a number of operations that does not grow with their
length.

Torch asks eager's tensors whether an element is zero, and divides by the elements if none is.
A graph has no elements to ask. There it writes out the product without an element for each of them:
several operations for each place, of which some are as long as the row. Rows of 1333 did not finish
compiling, rows of 96 took 20 times as long as they had to. Here the same formulas as eager's are
chosen place by place:

    before the first zero      sum over j >= k of y[j] g[j], divided by x[k]
    at the first zero          product of all before, times the sum over j from there to the next
                               zero of g[j] times the product of what lies between
    behind it                  0
"""

from __future__ import annotations

import torch


def keep_short(gm: torch.fx.GraphModule) -> None:
    """Before autograd: calls of torch.cumprod get that gradient."""
    found = [n for n in gm.graph.nodes if _is_cumprod(n)]
    for node in found:
        node.op, node.target = "call_function", cumprod
    if found:
        gm.recompile()


def _is_cumprod(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return node.target == "cumprod"
    return node.op == "call_function" and node.target is torch.cumprod


def cumprod(input, dim, *, dtype=None, out=None):
    """`torch.cumprod`, and its gradient."""
    has_other = out is not None or not isinstance(dim, int) or input.dim() == 0
    if has_other or not (input.requires_grad and input.is_floating_point()):
        return torch.cumprod(input, dim, dtype=dtype, out=out)
    return _RunningProduct.apply(input if dtype is None else input.to(dtype), dim)


class _RunningProduct(torch.autograd.Function):
    """Forward as it is, backward in operations that are one kernel where rows allow it."""

    @staticmethod
    def forward(ctx, x, dim):
        y = torch.cumprod(x, dim)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient_of(*ctx.saved_tensors, gradient, ctx.dim), None


def gradient_of(x, y, gradient, dim: int):
    """Of `x`, whose running products are `y`, along `dim`."""
    zero = x == 0
    zeros = zero.cumsum(dim, dtype=torch.int32)
    before, at_one = zeros == 0, zeros == 1
    first = zero & at_one
    terms = torch.where(before, y * gradient, 0.0)
    divided = terms.flip(dim).cumsum(dim).flip(dim) / x
    left = torch.where(before, x, 1.0).prod(dim, keepdim=True)
    between = torch.where(at_one & ~zero, x, 1.0).cumprod(dim)
    right = torch.where(at_one, gradient * between, 0.0).sum(dim, keepdim=True)
    return torch.where(before, divided, torch.where(first, left * right, 0.0))

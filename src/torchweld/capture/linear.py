"""Which operations of a joint graph are linear in a gradient, so that the gradient for a tangent of
one may be computed first and scaled by the tangent later."""

from __future__ import annotations

from collections.abc import Collection

import torch

aten = torch.ops.aten

# Linear in their first argument; the others must not depend on the tangent.
_IN_FIRST = frozenset((
    aten.neg.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default,
    aten.expand.default, aten.permute.default, aten.t.default, aten.transpose.int,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default,
    aten.slice.Tensor, aten.select.int, aten.clone.default, aten._to_copy.default,
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.div.Tensor,
    aten.div.Scalar, aten.mul.Scalar, aten.slice_backward.default, aten.select_backward.default,
    aten.tanh_backward.default, aten.sigmoid_backward.default, aten.gelu_backward.default,
    aten.silu_backward.default, aten.threshold_backward.default, aten.hardtanh_backward.default,
    aten.elu_backward.default, aten.leaky_relu_backward.default, aten.softplus_backward.default,
    aten.log_sigmoid_backward.default, aten.native_dropout_backward.default,
    aten._softmax_backward_data.default, aten._log_softmax_backward_data.default,
    aten.nll_loss_backward.default, aten.nll_loss2d_backward.default, aten.gather.default,
    aten.mse_loss_backward.default, aten.alias.default, aten.detach.default, aten.flip.default,
    aten.cumsum.default,
))  # fmt: skip
_IN_ONE = frozenset((aten.mul.Tensor, aten.mm.default, aten.bmm.default))
_IN_BOTH = frozenset((aten.add.Tensor, aten.sub.Tensor))
_ZEROS = frozenset((
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default,
))  # fmt: skip
_FULL = {aten.scalar_tensor.default: 0, aten.full.default: 1, aten.full_like.default: 1,
         aten.new_full.default: 2}  # fmt: skip


def is_linear(node: torch.fx.Node, moving: Collection[torch.fx.Node]) -> bool:
    """Whether the result is linear in those of its arguments that are in `moving`."""
    target, args = node.target, node.args
    moves = [isinstance(a, torch.fx.Node) and a in moving for a in args]
    nested = sum(a in moving for a in node.all_input_nodes)
    if nested > sum(moves) or any(isinstance(v, torch.fx.Node) for v in node.kwargs.values()):
        return False  # inside a list
    if target in _IN_FIRST:
        return moves[0] and not any(moves[1:])
    if target in _IN_ONE:
        return sum(moves) == 1
    if target in _IN_BOTH:
        return all(m or is_zero(a) for m, a in zip(moves, args))
    if target is aten.where.self:
        return not moves[0] and all(m or is_zero(a) for m, a in zip(moves[1:], args[1:]))
    return _is_padded(node, moves)


def _is_padded(node: torch.fx.Node, moves: list[bool]) -> bool:
    """Zeros around, or in the places of, what moves."""
    target, args = node.target, node.args
    if target is aten.constant_pad_nd.default:
        return moves[0] and all(map(is_zero, args[2:3]))
    if target is aten.masked_fill.Scalar:
        return moves[0] and not moves[1] and is_zero(args[2])
    if target in (aten.scatter_add.default, aten.scatter.src):
        return moves[3] and not moves[2] and (moves[0] or is_zero(args[0]))
    return False


def is_zero(value) -> bool:
    """A constant that is zero."""
    if not isinstance(value, torch.fx.Node):
        return isinstance(value, (int, float)) and value == 0
    if value.target in _ZEROS:
        return True
    place = _FULL.get(value.target)
    return place is not None and is_zero(value.args[place])

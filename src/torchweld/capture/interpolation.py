"""Interpolation with the gradient that eager has, one call of the library's.

Torch takes `F.interpolate` apart before autograd. The gradient of its parts adds up element by
element: `index_put` with accumulation, which sorts all indices on a GPU, once for each corner.
The same holds for windows (`Tensor.unfold`) on a GPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchweld.capture import torch_private

aten = torch.ops.aten

# By mode and number of spatial dimensions; those of `_ALIGNED` take `align_corners`.
_BACKWARD = {
    ("nearest", 1): aten.upsample_nearest1d_backward.default,
    ("nearest", 2): aten.upsample_nearest2d_backward.default,
    ("nearest", 3): aten.upsample_nearest3d_backward.default,
    ("nearest-exact", 1): aten._upsample_nearest_exact1d_backward.default,
    ("nearest-exact", 2): aten._upsample_nearest_exact2d_backward.default,
    ("nearest-exact", 3): aten._upsample_nearest_exact3d_backward.default,
    ("linear", 1): aten.upsample_linear1d_backward.default,
    ("bilinear", 2): aten.upsample_bilinear2d_backward.default,
    ("bicubic", 2): aten.upsample_bicubic2d_backward.default,
    ("trilinear", 3): aten.upsample_trilinear3d_backward.default,
}
_ALIGNED = ("linear", "bilinear", "bicubic", "trilinear")


def keep_gradients(gm: torch.fx.GraphModule) -> None:
    """Before autograd: calls of F.interpolate get eager's gradient."""
    found = [n for n in gm.graph.nodes if n.target is F.interpolate]
    for node in found:
        node.target = interpolate
    if found:
        gm.recompile()


def interpolate(
    input, size=None, scale_factor=None, mode="nearest", align_corners=None,
    recompute_scale_factor=None, antialias=False,
):  # fmt: skip
    """`F.interpolate`, and its gradient in one call."""
    given = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    if antialias or (mode, input.dim() - 2) not in _BACKWARD or not input.requires_grad:
        return F.interpolate(input, *given)
    return _Interpolated.apply(input, given)


class _Interpolated(torch.autograd.Function):
    """Forward in torch's parts, which are fused with what is around."""

    @staticmethod
    def forward(ctx, x, given):
        ctx.given, ctx.before = given, x.shape
        return F.interpolate(x, *given)

    @staticmethod
    def backward(ctx, gradient):
        _, factors, mode, aligned, again, _ = ctx.given
        sides = len(ctx.before) - 2
        factors = None if again else factors
        scales = factors if isinstance(factors, (list, tuple)) else [factors] * sides
        how = (bool(aligned),) if mode in _ALIGNED else ()
        call = _BACKWARD[mode, sides]
        return call(gradient, list(gradient.shape[2:]), list(ctx.before), *how, *scales), None


def _windows_backward(gradient, input_size, dim: int, size: int, step: int):
    """On a CPU in steps, where windows that overlap are added up by a kernel. What all rows share
    (the window of an istft) is added up once: else torch takes it apart element by element."""
    if gradient.is_cuda or not input_size:
        return NotImplemented
    in_steps = torch_private.core_decompositions()[aten.unfold_backward.default]
    dim, shared = dim % len(input_size), gradient.dim() == len(input_size) + 1
    of_rows = [1 if shared and d != dim and gradient.shape[d] == 1 else n
               for d, n in enumerate(input_size)]  # fmt: skip
    made = in_steps(gradient, of_rows, dim, size, step)
    return made if of_rows == list(input_size) else made.expand(input_size).clone()


DECOMPOSITIONS = {aten.unfold_backward.default: _windows_backward}

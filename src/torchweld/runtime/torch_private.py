"""The private parts of torch that the runtime uses, all of them, each for one reason."""

from __future__ import annotations

import torch


def below_autograd():
    """Context manager: ATen calls go past autograd's dispatch keys. The public `no_grad` still pays
    for them, and refuses `out=` where an argument requires a gradient."""
    return torch._C._AutoDispatchBelowAutograd()


def raw_stream(device_index: int) -> int:
    """The current CUDA stream's handle; building a `torch.cuda.Stream` object costs as much as a
    launch."""
    return torch._C._cuda_getCurrentRawStream(device_index)


def pack_linear_weight(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [out, in], contiguous, in the layout that oneDNN prefers; there is no public
    packing."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


def packed_linear(
    x, packed, bias, activation: str, scalars: list, algorithm: str | None
) -> torch.Tensor:
    """activation(x @ weight.T + bias) on a packed weight; `F.linear` does not take one."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, activation, scalars, algorithm)


def packed_linear_add(x, total, packed) -> torch.Tensor:
    """x @ weight.T + total, as one oneDNN call."""
    return torch.ops.mkldnn._linear_pointwise.binary(x, total, packed, None, "add")


def pack_convolution_weight(weight, padding, stride, dilation, groups, input_size) -> torch.Tensor:
    """`weight` in the blocked layout that oneDNN prefers for an input of `input_size`."""
    return torch.ops.mkldnn._reorder_convolution_weight(
        weight, padding, stride, dilation, groups, input_size
    )


def packed_convolution(
    x, packed, bias, padding, stride, dilation, groups, activation, scalars, algorithm
) -> torch.Tensor:
    """activation(convolution) on a packed weight, in the layout of x."""
    return torch.ops.mkldnn._convolution_pointwise(
        x, packed, bias, padding, stride, dilation, groups, activation, scalars, algorithm
    )


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Each source into its target, in as few launches as torch can; there is no public grouped
    copy."""
    if targets:
        torch._foreach_copy_(targets, sources)

"""Gradients of dilated convolutions in groups, in 16 bits: the library's calls, in any layout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchweld


def gradients(module, layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    layer.zero_grad()
    y = module(x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(weights.to(torch.bfloat16).to(y.dtype))
    return [g.double() for g in (x.grad, layer.weight.grad, layer.bias.grad)]


def leave_garbage() -> None:
    """In memory that is used again."""
    del [torch.full((1 << 16,), float("nan")) for _ in range(6)][:]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("groups", [2, 12])
@pytest.mark.parametrize("kernel,dilation", [(3, 2), (3, (1, 2)), (5, 3), (1, 2)])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_as_right_as_float64s(dtype, kind, kernel, dilation, groups, last):
    torch.manual_seed(0)
    sides = dilation if isinstance(dilation, tuple) else (dilation, dilation)
    padding = tuple(side * (kernel // 2) for side in sides)  # the result has the image's size
    how = {"padding": padding, "dilation": dilation, "groups": groups}
    layer = kind(12, 12, kernel, **how).to(dtype)
    x = torch.randn(7, 12, 30, 29).to(dtype)
    x = x.to(memory_format=torch.channels_last) if last else x
    exact = kind(12, 12, kernel, **how).double()
    exact.load_state_dict(layer.state_dict())
    wanted = gradients(lambda x: exact(x) + x, exact, x.double().contiguous())
    fused = torchweld.fuse(lambda x: layer(x) + x)
    leave_garbage()
    for found, right in zip(gradients(fused, layer, x), wanted):
        assert (found - right).norm() <= 2e-2 * right.norm()

"""Gradients of windows as gathers (capture/pool_gradients.py), on a CPU in every layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.capture import pool_gradients

SHAPES = {1: (2, 3, 23), 2: (2, 3, 13, 14), 3: (2, 3, 5, 9, 7)}
MAXIMA = {  # dimensions, function
    "side by side": (2, lambda x: F.max_pool2d(x, 2)),
    "stem": (2, lambda x: F.max_pool2d(x, 3, 2, 1)),
    "uneven": (2, lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 1), (2, 1), True)),
    "dilated": (2, lambda x: F.max_pool2d(x, 3, 1, 1, 2)),
    "gaps": (2, lambda x: F.max_pool2d(x, 2, 3)),
    "large": (2, lambda x: F.max_pool2d(x, 5, 2, 2, 1, True)),
    "row": (1, lambda x: F.max_pool1d(x, 4, 2, 1)),
    "volume": (3, lambda x: F.max_pool3d(x, (1, 3, 2), (1, 2, 1), (0, 1, 1))),
}
SUMS = {
    "overlapping": (2, lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "padding left out": (2, lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "rounded up": (2, lambda x: F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True)),
    "divisor": (2, lambda x: F.avg_pool2d(x, (2, 3), (1, 4), (1, 0), divisor_override=5)),
    "moving": (1, lambda x: F.avg_pool1d(x, 5, 1, 2)),
    "volume": (3, lambda x: F.avg_pool3d(x, 2, 1, 1, count_include_pad=False)),
    "unfold": (2, lambda x: F.unfold(x, 3, padding=1)),
    "unfold in steps": (2, lambda x: F.unfold(x, (2, 3), 2, (0, 2), (3, 2))),
    "response": (2, lambda x: F.local_response_norm(x, 3)),
}


def image(dims: int, dtype: torch.dtype, last: bool) -> torch.Tensor:
    x = torch.randn(SHAPES[dims]).to(dtype)
    if last and dims > 1:
        formats = {2: torch.channels_last, 3: torch.channels_last_3d}
        x = x.to(memory_format=formats[dims])
    return x


def gradients(function, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(result, its gradient) by eager, by torchweld, by eager in float64."""
    fused = torchweld.fuse(lambda x: function(x.neg()))
    found = []
    weights = None
    for make, given in ((function, x), (None, x), (function, x.double())):
        given = given.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        result = fused(given) if make is None else make(given.neg())
        weights = torch.randn_like(result) if weights is None else weights
        found += [result, *torch.autograd.grad(result, given, weights.to(result.dtype))]
    called = [n.target for r in torchweld.records(fused)[-2:] for n in r.graph.nodes
              if hasattr(n, "target")]  # fmt: skip
    assert not called
    return tuple(found)


@pytest.fixture
def everywhere(monkeypatch) -> None:
    monkeypatch.setattr(pool_gradients, "_is_chosen_fast", lambda *_: True)


@pytest.mark.parametrize("last", [False, True], ids=["", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", MAXIMA)
def test_maxima(name, dtype, last, everywhere):
    torch.manual_seed(0)
    dims, function = MAXIMA[name]
    x = image(dims, dtype, last).mul(2).round()  # many are equal
    x[0, 0].view(-1)[3:5] = float("nan")
    if dims < 3 or not last:  # where ATen's choice among minus infinities depends on the layout
        x[1, 0] = float("inf")
    eager, before, ours, after, _, true = gradients(function, x)
    assert torch.equal(eager.nan_to_num(7), ours.nan_to_num(7))
    assert ours.stride() == eager.stride() and after.stride() == before.stride()
    if dtype == torch.bfloat16:  # which ATen adds up in 16 bits on a CPU
        assert (after.double() - true).norm() <= (before.double() - true).norm()
    else:
        assert torch.equal(after, before)


@pytest.mark.parametrize("last", [False, True], ids=["", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SUMS)
def test_sums(name, dtype, last):
    torch.manual_seed(0)
    dims, function = SUMS[name]
    if dtype == torch.bfloat16 and name in ("volume", "response"):
        pytest.skip("ATen has no average of volumes of bfloat16 on a CPU")
    eager, before, ours, after, exact, true = gradients(function, image(dims, dtype, last))
    assert ours.stride() == eager.stride() and after.stride() == before.stride()
    eps = torch.finfo(dtype).eps
    for got, other, right in ((ours, eager, exact), (after, before, true)):
        error, allowed = ((t.double() - right).norm() for t in (got, other))
        assert error <= 1.5 * allowed + eps * right.norm() / 2


def test_meaning_of_the_operations():
    """What runs where they are not lowered."""
    for dims, function in MAXIMA.values():
        x = image(dims, torch.float32, False).requires_grad_()
        expected = function(x)
        if dims == 1:
            continue
        how = _pool_arguments(expected)
        values, taps = pool_gradients._ops.max_pool_taps(x.detach(), *how)
        assert torch.equal(values, expected) and taps.dtype == torch.int8
        weights = torch.randn_like(expected)
        (gradient,) = torch.autograd.grad(expected, x, weights)
        layout = (list(x.shape), list(x.stride()))
        made = pool_gradients._ops.max_pool_gradient(weights, taps, *layout, *how)
        assert torch.equal(made, gradient)


def _pool_arguments(result: torch.Tensor) -> tuple:
    node = result.grad_fn
    kernel = list(node._saved_kernel_size)
    others = [node._saved_padding, node._saved_dilation, node._saved_ceil_mode]
    return (kernel, list(node._saved_stride) or kernel, *others)


def test_positions_that_are_returned_stay(everywhere):
    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    fused = torchweld.fuse(lambda x: F.max_pool2d(x.neg(), 2, return_indices=True))
    values, places = fused(x)
    expected, there = F.max_pool2d(x.neg(), 2, return_indices=True)
    assert torch.equal(places, there) and torch.equal(values, expected)
    weights = torch.randn_like(values)
    got, right = (torch.autograd.grad(y, x, weights)[0] for y in (values, expected))
    assert torch.equal(got, right)


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (3, 9, 8)], ids=str)
def test_empty_batches_and_single_images(shape, everywhere):
    x = torch.randn(shape, requires_grad=True)
    for function in (lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1)):
        expected, got = function(x), torchweld.fuse(function)(x)
        ours, right = (torch.autograd.grad(y.sum(), x)[0] for y in (got, expected))
        torch.testing.assert_close(ours, right)


def test_sizes_known_at_the_call_stay_calls():
    fused = torchweld.fuse(lambda x: F.avg_pool2d(F.max_pool2d(x.neg(), 3, 2, 1), 3, 1, 1))
    for side in (12, 15, 17):
        x = torch.randn(2, 3, side, side, requires_grad=True)
        expected = F.avg_pool2d(F.max_pool2d(x.neg(), 3, 2, 1), 3, 1, 1)
        ours, right = (torch.autograd.grad(y.sum(), x)[0] for y in (fused(x), expected))
        torch.testing.assert_close(ours, right)

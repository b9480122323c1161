"""Kernels of a recorded graph that read inputs and write outputs where a caller has them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.observe.measure.tracing import trace_steps

CUDA = "cuda:0"
CALLS = 6


def randn(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=CUDA, dtype=dtype)


def recorded(function, make, tolerance: float = 1e-4):
    """`function`, fused; called with new inputs each time. All results are right, also at the end,
    when later calls could have written to them, and no input has changed."""
    fused, kept = torchweld.fuse(function), []
    with torch.no_grad():
        for _ in range(CALLS):
            inputs = make()
            kept.append((inputs, [x.clone() for x in inputs], fused(*inputs)))
        for inputs, before, result in kept:
            assert all(map(torch.equal, inputs, before))
            torch.testing.assert_close(result, function(*inputs), rtol=tolerance, atol=tolerance)
    return fused


def copies_in(fused, inputs) -> list[str]:
    with torch.no_grad():
        step = trace_steps(lambda: fused(*inputs), "cuda", 1).steps[0]
    return [k.name for k in step.kernels if k.name.startswith("copy") or "Memcpy" in k.name]


def softmax_and_sum(x, y):
    return (x * 2 + y).relu().softmax(1), (x - y).sum(0)


def two_reductions(x, y):
    t = F.layer_norm(x, (x.shape[1],)) * y
    return F.layer_norm(t.sin(), (x.shape[1],)).amax(1), t


@pytest.mark.parametrize("function", [softmax_and_sum, two_reductions])
@pytest.mark.parametrize("sizes", [(64, 96), (33, 7), (4, 512), (500, 333)])
def test_nothing_is_copied_where_kernels_alone_read_and_write(function, sizes):
    fused = recorded(function, lambda: (randn(*sizes), randn(*sizes)))
    assert copies_in(fused, (randn(*sizes), randn(*sizes))) == []


def test_inputs_at_any_address_and_of_other_strides():
    flat = randn(3 * 64 * 96 + 16)
    fused = recorded(softmax_and_sum, lambda: (randn(64, 96), randn(64, 96)))
    with torch.no_grad():
        for offset in (1, 0, 4, 3, 0):
            x = flat[offset : offset + 64 * 96].view(64, 96)
            for given in ((x, x), (randn(96, 64).t(), x)):
                torch.testing.assert_close(fused(*given), softmax_and_sum(*given))


def test_what_a_library_reads_is_copied_and_the_rest_is_not():
    w = randn(64, 64, dtype=torch.float64)

    def function(x, y):
        return x @ w, y.sin() * 2

    def make():
        return randn(64, 64, dtype=torch.float64), randn(200_000)

    fused = recorded(function, make)
    assert copies_in(fused, make()) == ["copy2", "copy1"]  # x and w, and what the library makes


@pytest.mark.parametrize("rows", [64, 512])
def test_products_through_descriptors(rows):
    w = randn(256, 512, dtype=torch.bfloat16) / 16

    def function(x):
        return F.gelu(x @ w), x.float().sum(1)

    recorded(function, lambda: (randn(rows, 256, dtype=torch.bfloat16),), tolerance=2e-2)


def test_an_input_that_is_returned_and_one_given_twice():
    def function(x, y):
        return x + y, x, (x * y).sum(1)

    fused = recorded(function, lambda: (randn(32, 48),) * 2)
    x = randn(32, 48)
    with torch.no_grad():
        assert fused(x, x)[1].data_ptr() == x.data_ptr()


def test_training_with_new_inputs():
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.LayerNorm(48), torch.nn.GELU()).to(CUDA)
    fused = torchweld.fuse(layer)
    for _ in range(CALLS):
        x = randn(32, 48).requires_grad_()
        gradient = randn(32, 48)
        wanted = torch.autograd.grad(layer(x), [x, *layer.parameters()], gradient)
        found = torch.autograd.grad(fused(x), [x, *layer.parameters()], gradient)
        for f, w in zip(found, wanted):
            torch.testing.assert_close(f, w, rtol=1e-4, atol=1e-4)

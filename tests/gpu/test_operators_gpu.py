"""torchweld.ops on a GPU: against eager and float64, and recorded in a CUDA graph of the user's."""

from __future__ import annotations

import pytest
import torch

from operator_cases import CASES, exact, step
from torchweld import ops
from torchweld.exact.budget import compare


def on_gpu(inputs) -> list[torch.Tensor]:
    return [t.detach().cuda().requires_grad_(t.requires_grad) for t in inputs]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_results_and_gradients(case, dtype):
    inputs = on_gpu(case.inputs(dtype))
    found, eager = step(case.ours, inputs), step(case.eager, inputs)
    for three in zip(found, eager, step(case.eager, exact(inputs)), strict=True):
        error = compare(case.name, *three)
        assert error.ok, error


def test_sizes_vary():
    weight = torch.randn(1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for rows in (128, 7, 300, 1, 0):
        x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        found = step(ops.rms_norm, [x, weight])
        eager = step(lambda x, w: torch.nn.functional.rms_norm(x, (1024,), w, 1e-6), [x, weight])
        for a, b in zip(found, eager):
            torch.testing.assert_close(a, b, rtol=4e-2, atol=4e-2)


def test_an_input_that_begins_at_an_odd_place():
    flat = torch.randn(4 * 64 + 1, device="cuda", dtype=torch.bfloat16)
    ops.softmax(flat[:-1].view(4, 64))  # aligned at first
    found = ops.softmax(flat[1:].view(4, 64))
    torch.testing.assert_close(found, flat[1:].view(4, 64).softmax(-1), rtol=2e-2, atol=2e-3)


def test_dropout():
    x = torch.ones(64, 65, device="cuda", requires_grad=True)
    y = ops.dropout_add(x, torch.zeros_like(x), 0.25)
    y.sum().backward()
    assert torch.equal(y, x.grad) and 0.2 < (y == 0).float().mean() < 0.3


def test_in_a_recording():
    x, weight = torch.randn(16, 512, device="cuda"), torch.randn(512, device="cuda")
    ops.rms_norm(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.rms_norm(x, weight)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (512,), weight, 1e-6))

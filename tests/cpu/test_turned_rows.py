"""Kernels whose lane is across rows of which it takes most elements turn those in registers."""

from __future__ import annotations

import pytest
import torch

from torchweld.api import fuse
from torchweld.core import dtypes as d
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp
from torchweld.templates.pointwise_reduce.cpu.generate import generate


def filtered(x):
    y1 = y2 = torch.zeros_like(x[..., 0])
    seen = []
    for step in range(x.shape[-1]):
        y1, y2 = x[..., step] + 0.3 * y1 - 0.1 * y2, y1
        seen.append(y1)
    return torch.stack(seen, -1)


def some(x):
    """All but the first and last elements of a row are read, and fewer written."""
    parts = [torch.sin(x[:, k] * x[:, k + 1]) for k in range(1, x.shape[1] - 2)]
    return torch.stack(parts, 1)


@pytest.mark.parametrize("function", [filtered, some])
@pytest.mark.parametrize("shape", [(1000, 20), (5, 7), (64, 5), (2049, 33), (77, 64), (130, 100)])
def test_rows_of_any_number_and_length(function, shape):
    x = torch.randn(shape)
    torch.testing.assert_close(fuse(function)(x), function(x), rtol=1e-6, atol=1e-6)


def test_rows_of_several_dimensions_and_their_gradients():
    x = torch.randn(30, 11, 12, requires_grad=True)
    fused = fuse(filtered)
    expected = torch.autograd.grad(filtered(x).square().sum(), x)
    made = torch.autograd.grad(fused(x).square().sum(), x)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


def steps(stored, read=(0, 1, 2, 3, 4, 5)):
    loads = "".join(f"  %{n} = load x[i, {c}] : f32\n" for n, c in enumerate(read))
    stores = "".join(f"  store y[i, {c}] %{n}\n" for n, c in enumerate(stored))
    buffers = {n: Buffer(n, (1000, 8), d.f32, (8, 1)) for n in "xy"}
    comp = parse_comp(f"comp steps [i:1000] {{\n{loads}{stores}}}\n")
    return generate(comp, buffers).sources[0].text


def test_what_is_between_stored_elements_is_not_written():
    assert steps(range(6)).count("tw_turn_tile(") > steps((0, 1, 2, 4, 5, 6)).count("tw_turn_tile(")

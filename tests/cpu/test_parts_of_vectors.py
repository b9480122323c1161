"""Pointwise rows of fewer numbers than a vector end in a part that overlaps the one before."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.core import dtypes as d
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp
from torchweld.templates.pointwise_reduce.cpu.generate import generate


def quotients(x, y):
    return (x - y) / (y + 2) + x * y.sqrt() / (x + 3)


def shifted(x, y):
    """Rows that are read from further on, and written in a gap."""
    inner = (x[:, 1:] - y) / (y + 2) * x[:, :-1].sqrt()
    return torch.cat([x[:, :1], inner, y], 1), inner


@pytest.mark.parametrize("length", [3, 7, 9, 11, 15, 17, 23, 31])
@pytest.mark.parametrize("function", [quotients, shifted])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_of_any_length(function, length, dtype):
    torch.compiler.reset()
    x, y = torch.rand(41, length).to(dtype), torch.rand(41, 1).to(dtype)
    eps = 4 * torch.finfo(dtype).eps
    found, exact = torchweld.fuse(function)(x, y), function(x, y)
    torch.testing.assert_close(found, exact, rtol=eps, atol=eps)


@pytest.mark.parametrize(("length", "overlaps"), [(8, False), (11, True), (15, True), (16, False)])
def test_a_part_of_a_vector_overlaps(length, overlaps):
    text = f"""
comp quotients [i:100, j:{length}] {{
  %0 = load x[i, j] : f32
  %1 = load y[i] : f32
  %2 = add %0 %1 : f32
  %3 = div %0 %2 : f32
  %4 = div %1 %2 : f32
  %5 = sub %3 %4 : f32
  store z[i, j] %5
}}
"""
    shapes = {"x": (100, length), "y": (100,), "z": (100, length)}
    buffers = {
        n: Buffer(n, s, d.f32, torch.empty(s, device="meta").stride()) for n, s in shapes.items()
    }
    source = generate(parse_comp(text), buffers).sources[0].text
    assert ("const int64_t rest" in source) == overlaps

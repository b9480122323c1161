"""Kernels that compute the same to store, to compare or to find an extreme round it alike."""

from __future__ import annotations

import re

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from compared_cases import CASES, squared_distances
from torchweld.capture.captured import Captured
from torchweld.core.options import Options
from torchweld.pipeline import finished_plan
from torchweld.runtime.triton_compile import compile_source
from torchweld.targets.find import named_target
from torchweld.templates.generate import generate_all, kernels_of

pytest.importorskip("triton")
TABLE = named_target("H200")


def extremes(q, s):
    d = squared_distances(q, s)
    return d.amin(1), (d == d.amin(2, keepdim=True)).sum(1)


def ptx_of(function, shapes, dtype=torch.float32) -> dict[str, str]:
    def listed(args):
        return list(function(*args))

    args = [torch.rand(shape, dtype=dtype) for shape in shapes]
    traced = make_fx(listed, tracing_mode="fake")(args)
    graph = finished_plan(Captured(traced, "test", "inference"), Options(), TABLE).graph
    bundles = generate_all(kernels_of(graph, TABLE)).values()
    sources = {s.name: s for b in bundles for s in b.sources}
    return {n: compile_source(s, 90).asm["ptx"] for n, s in sources.items()}


@pytest.mark.parametrize("name", [*CASES, "extremes"])
def test_no_product_is_part_of_a_sum(name):
    """But in exponentials."""
    function, shapes = CASES.get(name) or (extremes, CASES["nearest"][1])
    made = ptx_of(function, shapes).values()
    computing = [p for p in made if "mul.rn.f32" in p or "fma.rn.f32" in p]
    assert computing
    assert all("mul.rn.f32" in p for p in computing)
    assert not any("fma.rn.f32" in p for p in computing if "ex2" not in p)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_16_bits_round_is_rounded_before_it_is_added(dtype):
    """Where the compiler multiplies and adds in 16 bits, these are two operations."""

    def lowest(x, s, q):
        product = (x.float() * s).to(dtype)
        y = (product.float() + q).to(dtype)
        return y, y.amin(2), (y == y.amin(2, keepdim=True)).sum(2)

    made = ptx_of(lowest, ((17, 3, 211, 19), (17, 1, 211, 1), (1, 3, 1, 19)), dtype)
    operations = re.findall(r"(\w+)[.\w]*\.b?f16(?:x2)?\b", "\n".join(made.values()))
    assert "add" in operations
    assert "fma" not in operations

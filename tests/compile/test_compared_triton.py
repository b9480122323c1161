"""Kernels that compute the same to store, to compare or to find an extreme round it alike."""

from __future__ import annotations

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


def ptx_of(function, shapes) -> dict[str, str]:
    def listed(args):
        return list(function(*args))

    args = [torch.rand(shape) for shape in shapes]
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

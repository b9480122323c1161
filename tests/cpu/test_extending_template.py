"""The template that docs/extending.md writes: compiled, and run on odd sizes."""

from __future__ import annotations

import pytest
import torch

import cpp_runner
from doc_examples import run
from torchweld.core import dtypes
from torchweld.ir.parser import parse_comp
from torchweld.targets.find import target_of
from torchweld.templates.gemm.choice import choose
from torchweld.templates.registry import TEMPLATES
from torchweld.templates.template import Problem

TEXT = "comp c [i:{}, j:{}] {{\n %0 = load x[i, j] : f32\n store y[i, j] %0\n}}"


@pytest.fixture(scope="module")
def template():
    try:
        yield run("extending.md", "A template")["COPY"]
    finally:
        TEMPLATES.pop("copy", None)


def problem(shape, strides):
    x = torch.randn(1000).as_strided(shape, strides)
    comp = parse_comp(TEXT.format(*shape))
    buffers = cpp_runner.layouts(comp, {"x": x}, {"y": (shape, dtypes.f32, strides)})
    return x, Problem(comp, buffers, target_of("cpu"), {}, choose)


@pytest.mark.parametrize("shape, strides", [((1, 1), (1, 1)), ((7, 13), (13, 1)), ((5, 3), (1, 5))])
def test_it_copies(template, shape, strides):
    x, given = problem(shape, strides)
    roles = template.match(given)
    assert template.supports(roles, given) is None
    (threads,) = template.candidates(roles, given)
    (source,) = template.generate(roles, threads, given).sources
    y = torch.full_like(x, torch.nan)
    cpp_runner.call(source, {"x": x, "y": y}, {})
    assert torch.equal(x, y)


def test_it_leaves_gaps_alone(template):
    _, given = problem((7, 13), (16, 1))
    assert template.match(given) is None

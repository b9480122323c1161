"""Weights of few bits, dequantised inside the kernel of their product: as exact as eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import dequantised_cases as cases
import torchweld
from pairs import pairs
from torchweld.core.options import Options
from torchweld.ir.nodes import Comp
from torchweld.runtime.load import load
from torchweld.templates.generate import generate_all, kernels_of

SHAPES = (  # rows, outputs, depth, group
    (1, 515, 192, 32), (3, 77, 832, 64), (16, 50, 1040, 16), (11, 17, 2176, 2176),
    (40, 97, 352, 32),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _whatever_is_faster_here(monkeypatch):
    cases.always(monkeypatch)


def compiled(function, *args, options=None):
    """The nodes of the plan, and its program."""
    options = options or Options()
    plan = cases.planned(cases.graph_of(function, *args), options=options)
    kernels = kernels_of(plan.graph, cases.CPU)
    program = load(plan.graph, generate_all(kernels), {}, options)
    return [k.template for k in kernels], lambda *given: program(list(given))[0]


def wide(args):
    return [t.double() if t.is_floating_point() else t for t in args]


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"), pairs(cases.FUSED, SHAPES, (torch.float32, torch.bfloat16))
)
def test_as_exact_as_eager(kind, shape, dtype):
    rows, *_ = shape
    args = cases.inputs(kind, *shape, dtype)
    templates, program = compiled(kind, *args)
    fused = dtype == torch.float32 or rows <= 16
    if kind is cases.table and "avx512" not in cases.CPU.features:
        fused = False  # codes are looked up by AVX-512 alone
    assert ("gemm/dequantised" in templates) == fused
    ours, eagers = [], []
    for seed in range(3):
        args = cases.inputs(kind, *shape, dtype, seed)
        exact = kind(*wide(args))
        ours.append(error(program(*args), exact))
        eagers.append(error(kind(*args), exact))
    assert math.hypot(*ours) <= 1.5 * math.hypot(*eagers)


def test_with_what_follows_and_what_is_not_finite():
    def layer(x, q, scale, zero):
        return F.silu(cases.nibbles(x, q, scale, zero) + zero[:, 0]) * 2

    x, q, scale, zero = cases.inputs(cases.nibbles, 5, 33, 256, 64)
    templates, program = compiled(layer, x, q, scale, zero)
    assert templates == ["gemm/dequantised"]
    x[1, 3], x[2, 5], scale[4, 1], zero[7, 2] = math.nan, math.inf, math.inf, math.nan
    found, eager = program(x, q, scale, zero), layer(x, q, scale, zero)
    assert torch.equal(found.isnan(), eager.isnan())
    torch.testing.assert_close(found, eager, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_any_strides(rows):
    x, q, scale, zero = cases.inputs(cases.groups, rows, 45, 384, 64)
    x = x.t().contiguous().t()
    q = torch.cat([q, q], 1)[:, 100:484]  # rows apart
    scale, zero = scale.t().contiguous().t(), zero[:1].expand(zero.shape)

    def layer(x, q, scale, zero):
        w = (q.unflatten(1, (6, 64)).to(x.dtype) - zero[..., None]) * scale[..., None]
        return F.linear(x, w.flatten(1))

    templates, program = compiled(layer, x, q, scale, zero)
    assert templates == ["gemm/dequantised"]
    exact = layer(*wide((x, q, scale, zero)))
    assert error(program(x, q, scale, zero), exact) <= 1.5 * error(layer(x, q, scale, zero), exact)


def test_more_terms_than_are_packed_together():
    args = cases.inputs(cases.plain, 20, 30, 3100, 3100)
    templates, program = compiled(cases.plain, *args)
    assert templates == ["gemm/dequantised"]
    exact = cases.plain(*wide(args))
    assert error(program(*args), exact) <= 1.5 * error(cases.plain(*args), exact)


def test_every_rounding_of_eagers_on_request():
    args = cases.inputs(cases.nibbles, 2, 65, 256, 32, torch.bfloat16)
    exact = cases.nibbles(*wide(args))
    eager = compiled(cases.nibbles, *args, options=Options(numerics="eager"))[1](*args)
    fused = compiled(cases.nibbles, *args)[1](*args)
    assert error(fused, exact) < 0.9 * error(eager, exact)
    assert error(eager, cases.nibbles(*args).double()) < error(fused, cases.nibbles(*args).double())


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        _, q, scale, zero = cases.inputs(cases.nibbles, 1, 96, 256, 64)
        self.register_buffer("q", q)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)

    def forward(self, x):
        y = cases.nibbles(x.flatten(0, 1), self.q, self.scale, self.zero)
        return F.relu(y).unflatten(0, x.shape[:2])


def test_in_a_module_whose_weights_change():
    layer, x = Layer(), torch.randn(2, 3, 256)
    fused = torchweld.fuse(layer, (x,))
    with torch.no_grad():
        torch.testing.assert_close(fused(x), layer(x), rtol=1e-4, atol=1e-4)
        layer.q.bitwise_xor_(255)
        torch.testing.assert_close(fused(x), layer(x), rtol=1e-4, atol=1e-4)
    assert "gemm/dequantised" in str(torchweld.explain(fused))


def test_gradients_of_activations():
    layer, x = Layer(), torch.randn(2, 3, 256, requires_grad=True)
    torchweld.fuse(layer)(x).square().sum().backward()
    found, x.grad = x.grad, None
    layer(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-3)


def scaled_groups(x, w, scale):
    groups = w.unflatten(1, (4, -1)).to(x.dtype)
    return F.relu(F.linear(x, (groups * (scale[:, None] + scale[:4])[..., None]).view(w.shape)))


FLOAT8 = {
    "before": lambda x, w, scale: F.linear(x, w.to(x.dtype) * scale[:, None]),
    "behind": lambda x, w, scale: F.linear(x, w.to(x.dtype)) * scale,
    "groups": scaled_groups,
}


@pytest.mark.parametrize("packed", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layer", FLOAT8.values(), ids=FLOAT8)
def test_float8(layer, packed, dtype):
    w = (torch.randn(192, 256) * 50).to(packed)
    args = torch.randn(3, 256).to(dtype), w, torch.rand(192).to(dtype)
    fused = torchweld.fuse(layer, dynamic=False)
    exact = layer(args[0].double(), w.double(), args[2].double())
    with torch.no_grad():
        assert error(fused(*args), exact) <= 1.5 * error(layer(*args), exact)
    assert "gemm/dequantised" in str(torchweld.explain(fused))


def test_one_kernel_that_reads_the_packed_bytes():
    args = cases.inputs(cases.nibbles, 1, 512, 1024, 128)
    plan = cases.planned(cases.graph_of(cases.nibbles, *args))
    assert [type(n) for n in plan.graph.nodes] == [Comp]
    (fusion,) = plan.fusions
    read = sum(t.nbytes for t in args) + 512 * 4
    assert fusion.bytes_after == read and fusion.bytes_before > 15 * read

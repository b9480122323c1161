"""8-bit floats on a CPU: casts are torch's bit for bit, quantisation is one kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
import triton_cases
from applied import Apply

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = pytest.mark.parametrize("dtype", (E4, E5), ids=str)
KINDS = pytest.mark.parametrize("kind", (torch.float32, torch.bfloat16), ids=str)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])


def same(found: torch.Tensor, eager: torch.Tensor) -> bool:
    """To the bit, but for the bits of a NaN that are not asked for."""
    alike = bits(found) == bits(eager)
    alike |= found.float().isnan() & eager.float().isnan() & (found.itemsize > 1)
    return found.dtype == eager.dtype and bool(alike.all())


def one_kernel(fused) -> bool:
    told = str(torchweld.explain(fused))
    return "library call" not in told and told.count("by pointwise_reduce/cpu") == 1


@FORMATS
def test_numbers_to_8_bits(dtype):
    wide = triton_cases.float8_bits(1 << 20).to(torch.int32).view(torch.float32)
    halves = torch.arange(1 << 16).to(torch.int16)
    numbers = (wide, halves.view(torch.float16), halves.view(torch.bfloat16), wide.double() * 1.1,
               torch.arange(-70000, 70000, 3), torch.tensor([True, False]))  # fmt: skip

    def narrow(*all):
        return [x.to(dtype) for x in all]

    fused = torchweld.fuse(narrow, dynamic=False)
    for x, found, eager in zip(numbers, fused(*numbers), narrow(*numbers)):
        assert same(found, eager), x.dtype
    assert "library call" not in str(torchweld.explain(fused))


@FORMATS
def test_all_codes_back(dtype):
    codes = torch.arange(256).to(torch.uint8).view(dtype)
    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool)

    def wide(codes):
        return [codes.to(kind) for kind in (*kinds, E4, E5)]

    fused = torchweld.fuse(wide, dynamic=False)
    for found, eager in zip(fused(codes), wide(codes)):
        assert same(found, eager), eager.dtype
    assert "library call" not in str(torchweld.explain(fused))


def scale_of(largest):
    return largest.float().clamp(min=1e-12) / 448.0


def per_tensor(x):
    scale = scale_of(x.abs().amax())
    return (x.float() / scale).clamp(-448, 448).to(E4), scale


def per_row(x):
    scale = scale_of(x.abs().amax(-1, keepdim=True))
    return (x.float() / scale).clamp(-448, 448).to(E4), scale


def per_group(x):
    groups = x.unflatten(-1, (-1, 32))
    scale = scale_of(groups.abs().amax(-1, keepdim=True))
    return (groups.float() / scale).clamp(-448, 448).to(E4).view(x.shape), scale.squeeze(-1)


def normed(x):
    return per_row(F.rms_norm(x, x.shape[-1:]))


def gated(x):
    gate, up = x.chunk(2, -1)
    return per_row(F.silu(gate) * up)


@KINDS
@pytest.mark.parametrize("function", (per_tensor, per_row, per_group, normed, gated))
def test_quantisation_is_one_kernel(function, kind):
    model, x = Apply(function), torch.randn(33, 192).to(kind) * 3
    fused = torchweld.fuse(model, dynamic=False)
    report = torchweld.verify(model, fused, x)
    assert report.ok, report
    assert one_kernel(fused)


@KINDS
def test_what_is_quantised_and_read_is_rounded(kind):
    """The error of 8 bits, that a model is trained to bear, is that of eager."""

    def fake(x):
        return (x * 2).to(E4).to(x.dtype).square()

    x = torch.randn(7, 129).to(kind)
    fused = torchweld.fuse(fake, dynamic=False)
    assert torch.equal(fused(x), fake(x)) and one_kernel(fused)


@FORMATS
def test_rows_of_a_table(dtype):
    """16-bit numbers at computed places are read out of words: not these."""
    table, places = torch.randn(50, 3).to(dtype), torch.randint(0, 50, (41, 300))

    def rows(table, places):
        return table[:, 1][places].float() * 2

    fused = torchweld.fuse(rows, dynamic=False)
    assert torch.equal(fused(table, places), rows(table, places))


def test_a_cache_written_in_place():
    def step(cache, x):
        cache.copy_(x * 2)
        return cache.float().sum(-1)

    cache, x = torch.zeros(5, 33).to(E5), torch.randn(5, 33)
    kept, fused = cache.clone(), torchweld.fuse(step, dynamic=False)
    torch.testing.assert_close(fused(cache, x), step(kept, x))
    assert same(cache, kept)



def test_powers_of_two_that_scale_packed_weights():
    """MX: bytes of float8, and for each 32 of them an exponent."""
    codes = torch.randint(0, 120, (48, 256), dtype=torch.uint8)
    exponents = torch.randint(110, 130, (48, 8), dtype=torch.uint8)

    def layer(x, codes, exponents):
        scale = (exponents.to(torch.int32) << 23).view(torch.float32)
        w = codes.view(E4).view(48, 8, 32).float() * scale[..., None]
        return F.linear(x, w.view(48, 256))

    args = torch.randn(2, 256), codes, exponents
    fused = torchweld.fuse(layer, dynamic=False)
    torch.testing.assert_close(fused(*args), layer(*args), rtol=1e-4, atol=1e-4)
    assert "gemm/dequantised" in str(torchweld.explain(fused))


def int8_layer(x, w, columns, bias):
    """Rows quantised as they come, integers multiplied, scaled back."""
    rows = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-5) / 127
    q = (x.float() / rows).round().clamp(-128, 127).to(torch.int8)
    return F.gelu((torch._int_mm(q, w.t()).float() * rows * columns).to(x.dtype) + bias)


def float8_layer(x, w, columns, bias):
    q, rows = per_row(x)
    y = torch._scaled_mm(q, w.t(), scale_a=rows, scale_b=columns[None], out_dtype=torch.bfloat16)
    return F.gelu(y + bias).to(x.dtype)


@pytest.mark.parametrize("layer", (int8_layer, float8_layer))
def test_what_is_around_a_librarys_product_of_8_bits(layer):
    """One kernel before the call and one behind it."""
    x, w = torch.randn(40, 64).bfloat16(), torch.randn(32, 64) * 20
    w = w.round().clamp(-128, 127).to(torch.int8) if layer is int8_layer else w.to(E4)
    args = x, w, torch.rand(32), torch.randn(32).bfloat16()
    fused = torchweld.fuse(layer, dynamic=False)
    torch.testing.assert_close(fused(*args), layer(*args), rtol=2**-6, atol=2**-4)
    (graph,) = torchweld.explain(fused).graphs
    assert len(graph.groups) == 2 and str(torchweld.explain(fused)).count("x library call") == 1

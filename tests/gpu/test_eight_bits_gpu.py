"""8-bit floats and integers on a GPU: casts are torch's bit for bit, quantisation is one kernel,
products of 8 bits with what is around them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
import triton_cases
from torchweld.api import records
from torchweld.ir.nodes import Extern

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = pytest.mark.parametrize("dtype", (E4, E5), ids=str)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def same(found: torch.Tensor, eager: torch.Tensor) -> bool:
    """To the bit, but for the bits of a NaN that are not asked for."""
    kind = BITS[found.itemsize]
    alike = found.view(kind) == eager.view(kind)
    if found.itemsize > 1:
        alike |= found.float().isnan() & eager.float().isnan()
    return found.dtype == eager.dtype and bool(alike.all())


def calls(fused) -> list[str]:
    (record,) = records(fused)
    return [n.target for n in record.graph.nodes if isinstance(n, Extern)]


@FORMATS
def test_numbers_to_8_bits(dtype):
    wide = triton_cases.float8_bits(1 << 22).to(torch.int32).view(torch.float32)
    halves = torch.arange(1 << 16).to(torch.int16)
    numbers = (wide, halves.view(torch.float16), halves.view(torch.bfloat16), wide.double() * 1.1,
               torch.arange(-70000, 70000, 3))  # fmt: skip
    numbers = tuple(x.cuda() for x in numbers)

    def narrow(*all):
        return [x.to(dtype) for x in all]

    fused = torchweld.fuse(narrow, dynamic=False)
    for x, found, eager in zip(numbers, fused(*numbers), narrow(*numbers)):
        assert same(found, eager), x.dtype
    assert calls(fused) == []


@FORMATS
def test_all_codes_back(dtype):
    codes = torch.arange(256).to(torch.uint8).cuda().view(dtype)
    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool)

    def wide(codes):
        return [codes.to(kind) for kind in (*kinds, E4, E5)]

    fused = torchweld.fuse(wide, dynamic=False)
    numbers = codes.float().isfinite()  # infinities as integers differ among devices
    for found, eager in zip(fused(codes), wide(codes)):
        chosen = numbers if eager.dtype == torch.int32 else slice(None)
        found, eager = found[chosen], eager[chosen]
        if eager.dtype in (E4, E5):  # between 8-bit floats the GPU drops the sign of a NaN
            found, eager = found.float(), eager.float()
        assert same(found, eager), (eager.dtype, found[found != eager], eager[found != eager])
    assert calls(fused) == []


def scaled(x, largest):
    scale = largest.float().clamp(min=1e-12) / 448.0
    return (x.float() / scale).clamp(-448, 448).to(E4), scale


def per_row(x):
    return scaled(x, x.abs().amax(-1, keepdim=True))


class Quantised(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x):
        if self.kind == "groups":
            groups = x.unflatten(-1, (-1, 128))
            q, scale = scaled(groups, groups.abs().amax(-1, keepdim=True))
            return q.view(x.shape), scale.squeeze(-1)
        if self.kind == "gated":
            gate, up = x.chunk(2, -1)
            return per_row(F.silu(gate) * up)
        return per_row(F.rms_norm(x, x.shape[-1:]) if self.kind == "normed" else x)


@pytest.mark.parametrize("columns", [256, 4096, 12800])
@pytest.mark.parametrize("kind", ["rows", "groups", "normed", "gated"])
def test_quantisation_is_one_kernel(kind: str, columns: int):
    model = Quantised(kind).cuda()
    x = torch.randn(133, columns, device="cuda").bfloat16() * 3
    fused = torchweld.fuse(model, dynamic=False)
    report = torchweld.verify(model, fused, x)
    assert report.ok, report
    (record,) = records(fused)
    assert len(record.graph.nodes) == 1 and calls(fused) == []


class QuantisedLinear(torch.nn.Module):
    """A product whose result is stored in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1024, 3072)

    def forward(self, x):
        return (F.gelu(self.linear(x)).float() * 100).clamp(-448, 448).to(E4)


@pytest.mark.parametrize("rows", [40, 8192])
def test_a_product_quantises_its_result(rows: int):
    model = QuantisedLinear().cuda().bfloat16()
    x = torch.randn(rows, 1024, device="cuda").bfloat16()
    fused = torchweld.fuse(model, dynamic=False)
    with torch.no_grad():
        report = torchweld.verify(model, fused, x)
        assert report.ok, report
    assert calls(fused) == []


def weight_only(x, w, columns, bias):
    return F.gelu(F.linear(x, w.to(x.dtype) * columns[:, None].to(x.dtype)) + bias)


def int8_layer(x, w, columns, bias):
    rows = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-5) / 127
    q = (x.float() / rows).round().clamp(-128, 127).to(torch.int8)
    return F.gelu((torch._int_mm(q, w.t()).float() * rows * columns).to(x.dtype) + bias)


def float8_layer(x, w, columns, bias):
    q, rows = per_row(x)
    y = torch._scaled_mm(q, w.t(), scale_a=rows, scale_b=columns[None], out_dtype=torch.bfloat16)
    return F.gelu(y + bias)


LAYERS = {weight_only: [], int8_layer: [], float8_layer: ["aten._scaled_mm.default"]}


@pytest.mark.parametrize("rows", [32, 2048])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda f: f.__name__)
def test_layers_of_8_bits(layer, rows: int):
    """int8 sums are exact: what differs from eager is rounded once less."""
    if layer is float8_layer and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("cuBLAS has no products of float8 here")
    x, w = torch.randn(rows, 1024).bfloat16(), torch.randn(2048, 1024) * 20
    w = w.round().clamp(-128, 127).to(torch.int8) if layer is int8_layer else w.to(E4)
    args = [t.cuda() for t in (x, w, torch.rand(2048) / 512, torch.randn(2048).bfloat16())]
    fused = torchweld.fuse(layer, dynamic=False)
    with torch.no_grad():
        found, eager = fused(*args), layer(*args)
    torch.testing.assert_close(found, eager, rtol=2**-5, atol=2**-4)
    assert calls(fused) == LAYERS[layer]


def test_sums_of_integers_are_exact():
    """The extremes, too, over odd sizes."""
    made = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-128, 128, (n, 1048), generator=made).to(torch.int8).cuda()
            for n in (519, 264))  # fmt: skip
    x[:7], w[:9] = -128, -128

    def sums(x, w):
        total = torch._int_mm(x, w.t())
        return total, total.float() * 0.5

    fused = torchweld.fuse(sums, dynamic=False)
    for found, eager in zip(fused(x, w), sums(x, w)):
        assert torch.equal(found, eager)


def quantised_by_group(x):
    groups = x.unflatten(-1, (-1, 64))
    scale = groups.abs().amax(-1, keepdim=True) / 127 + 1e-8
    return (groups / scale).round().clamp(-128, 127).to(torch.int8)


def rounded_sums(x):
    return torch.round(x / 0.03 + 0.5), torch.floor(0.7 * x + 1.1), x * 0.3 - 0.1 > 0


@pytest.mark.parametrize("function", [quantised_by_group, rounded_sums])
def test_float32_before_a_step_has_eagers_bits(function):
    """Millions of values: with a fused multiplication and addition, some dozens differ."""
    torch.manual_seed(0)
    x = torch.randn(4096, 4096, device="cuda")
    with torch.no_grad():
        expected, got = function(x), torchweld.fuse(function)(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)

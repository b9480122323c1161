"""Conversions of 8-bit floats compiled for GPUs that have an instruction for them, and others."""

from __future__ import annotations

import re

import pytest

import triton_cases
from product_cases import Body, gelu, parts
from torchweld.core import dtypes
from torchweld.runtime.triton_compile import compile_source
from torchweld.templates.gemm.hopper import schedule as product_gluon
from torchweld.templates.gemm.hopper.generate import generate
from triton_run import H100, bundle_of

pytest.importorskip("triton")


@pytest.mark.parametrize(("dtype", "name"), [("f8e4m3", "e4m3x2"), ("f8e5m2", "e5m2x2")])
def test_instructions_where_there_are_some(dtype: str, name: str):
    (source,) = bundle_of(triton_cases.float8(dtype, triton_cases.float8_bits(100))).sources
    used = {}
    for arch in (80, 89, 90):
        ptx = compile_source(source, arch).asm["ptx"]
        used[arch] = set(re.findall(r"cvt\.\S*e[45]m[32]\S*", ptx))
    assert used[90] == {f"cvt.rn.satfinite.{name}.f32", f"cvt.rn.f16x2.{name}"}
    assert not used[80] and not used[89]  # Triton's for sm_89 rounds to float16 first


def test_bits_of_numbers():
    """Of a scale that is a power of two, as its exponent alone (MX formats)."""
    case = triton_cases.case("scaled", "i:1000", """
      %0 = load s[i] : u8
      %1 = cast %0 : i32
      %2 = const 23 : i32
      %3 = shl %1 %2 : i32
      %4 = f32_of %3 : f32
      %5 = load x[i] : u8
      %6 = f8e4m3_of %5 : f8e4m3
      %7 = cast %6 : f32
      %8 = mul %4 %7 : f32
      %9 = f32_bits %8 : i32
      store y[i] %8
      store z[i] %9""", s=("u8", 1000), x=("u8", 1000), y=("f32", 1000), z=("i32", 1000))
    (source,) = bundle_of(case).sources
    assert "cvt.rn.f16x2.e4m3x2" in compile_source(source, 90).asm["ptx"]


def test_a_product_on_hopper_quantises_its_result():
    b = Body("bf16", m=4096, n=3072, k=768)
    made = gelu(b, b.op("add", b.dot(b.read("x", "mk"), b.read("w", "nk")), b.read("b", "n")))
    made = b.op("minimum", b.op("maximum", b.op("div", made, b.read("s", "")), -448.0), 448.0)
    b.write("y", "mn", made, dtypes.f8e4m3)
    case = b.case("quantised")
    accesses, found = parts(case)
    assert product_gluon.supports(accesses, found, H100) is None
    tiles = next(iter(product_gluon.candidates(accesses, found, H100, case.sizes)))
    (source,) = generate(case.comp, case.buffers, tiles, case.sizes).sources
    assert "e4m3x2.f32" in compile_source(source, 90).asm["ptx"]

"""codegen/triton/scalars.py: every operation of the IR on every kind of argument that it takes."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import triton_cases as cases
from torchweld.codegen.triton import scalars
from torchweld.codegen.triton.helpers import HELPERS
from torchweld.core import dtypes
from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Store
from torchweld.ir.scalar import TABLE
from torchweld.runtime.triton_compile import compile_source
from torchweld.targets.find import named_target
from torchweld.templates.pointwise_reduce.gpu.roundings import values_added_to_one
from torchweld.templates.registry import bundle_of

KINDS = {"f": "float", "i": "int", "b": "bool"}
ROWS = [(row, KINDS[k]) for row in TABLE.values() for k in row.kinds]


@pytest.mark.parametrize(("row", "kind"), ROWS, ids=lambda x: getattr(x, "name", x))
@pytest.mark.parametrize("fast", (False, True))
def test_every_operation_is_written_with_all_its_arguments(row, kind: str, fast: bool):
    text = scalars.operation(row.name, kind, fast)
    assert set(re.findall(r"{(\d)}", text)) == {str(k) for k in range(row.arity)}


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (-0.0, dtypes.f32, "(tl.full((), 0.0, tl.float32) * -1.0)"),
        (float("-inf"), dtypes.f64, 'float("-inf")'),
        (float("nan"), dtypes.f32, 'float("nan")'),
        (-3, dtypes.i64, "(-3)"),
        (True, dtypes.b1, "1"),
    ],
)
def test_literals(value, dtype, text: str):
    assert scalars.literal(value, dtype) == text


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ("f32", "bf16", "x.to(tl.bfloat16)"),
        ("f64", "bf16", "x.to(tl.float32).to(tl.bfloat16)"),
        ("i64", "f16", "x.to(tl.float32).to(tl.float16)"),
        ("bf16", "f64", "x.to(tl.float32).to(tl.float64)"),
        ("f32", "b1", "(x != 0)"),
        ("f32", "u8", "x.to(tl.int32).to(tl.uint8)"),
        ("b1", "f32", "x.to(tl.float32)"),
    ],
)
def test_casts_take_the_steps_that_torch_takes(source: str, target: str, text: str):
    assert scalars.cast("x", dtypes.BY_NAME[source], dtypes.BY_NAME[target]) == text


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64], ids=repr)
def test_special_functions_compile(dtype):
    """libdevice has them under these names for both types."""
    pytest.importorskip("triton")
    body = BodyBuilder()
    x = body.load("x", (axis("i"),), dtype)
    for name in ("erfc", "erfinv", "lgamma"):
        x = body.op(name, x)
    x = body.op("nextafter", body.op("hypot", x, body.const(2.0, dtype)), x)
    buffers = {n: Buffer(n, (1000,), dtype, (1,), "cuda:0") for n in ("x", "y")}
    comp = Comp("f", (Axis("i", 1000),), body.body, (Store("y", (axis("i"),), x),))
    (source,) = bundle_of(comp, buffers, named_target("h100"), {}).sources
    assert ".extern .func" not in compile_source(source, 90).asm["ptx"]


def test_an_erf_that_is_added_to_one_is_found():
    body = BodyBuilder()
    x = body.load("x", (axis("i"),), dtypes.f32)
    inside, alone = body.op("erf", x), body.op("erf", body.op("neg", x))
    body.op("add", inside, body.const(1.0, dtypes.f32))
    body.op("add", alone, body.const(0.5, dtypes.f32))
    found = values_added_to_one(body.body)
    assert inside in found and alone not in found
    body.op("mul", inside, x)
    assert inside not in values_added_to_one(body.body)


def test_a_tanh_whose_square_is_taken_from_one_is_found():
    """As in the gradient of a gelu."""
    body = BodyBuilder()
    x = body.load("x", (axis("i"),), dtypes.f32)
    one, found = body.const(1.0, dtypes.f32), body.op("tanh", x)
    body.op("sub", one, body.op("mul", found, found))
    body.op("add", one, found)
    assert found in values_added_to_one(body.body)
    body.op("mul", body.op("mul", found, found), x)
    assert found not in values_added_to_one(body.body)


def test_erf_near_one():
    """The helper's formula, in numpy's float32."""
    x = np.concatenate([np.linspace(-7, 7, 100_001), [0.0, np.inf, -np.inf, 1e30]])
    x = x.astype(np.float32)
    text = HELPERS["_erf_near_one"].replace("@triton.jit", "")
    names = {"tl": SimpleNamespace(abs=np.abs, exp2=np.exp2)}
    names["libdevice"] = SimpleNamespace(copysign=np.copysign)
    with np.errstate(over="ignore"):
        exec(text, names)
        y = names["_erf_near_one"](x)
    assert y.dtype == np.float32
    wanted = torch.erf(torch.from_numpy(x).double()).numpy()
    assert np.abs(y - wanted).max() < 1e-7
    assert np.isnan(names["_erf_near_one"](np.float32("nan")))


def _cast(x, dtype, bitcast=False):
    return np.asarray(x).view(dtype) if bitcast else np.asarray(x).astype(dtype)


def _where(test, one, other):
    return np.where(test, one, other).astype(np.float32)


@pytest.mark.parametrize("helper,function", [("_tanh", torch.tanh), ("_log_one_plus", torch.log1p)])
def test_functions_without_branches(helper, function):
    """Within two units in the last place, in numpy's float32: near zero, far and where they end."""
    far = np.logspace(-38, 38, 100_001)
    ends = [0.0, np.inf, -np.inf, np.nan, -1.0, -1.5, 1e-45, -0.99999994]
    x = np.concatenate([np.linspace(-12, 12, 400_001), far, -far, ends]).astype(np.float32)
    tl = SimpleNamespace(abs=np.abs, exp=np.exp, where=_where, cast=_cast, int32=np.int32,
                         float32=np.float32)  # fmt: skip
    names = {"tl": tl, "libdevice": SimpleNamespace(copysign=np.copysign)}
    with np.errstate(all="ignore"):
        exec(HELPERS[helper].replace("@triton.jit", ""), names)
        y = names[helper](x)
        wanted = function(torch.from_numpy(x).double()).numpy()
        finite = np.isfinite(wanted)
        units = np.abs(y - wanted)[finite] / np.spacing(np.abs(wanted[finite]).astype(np.float32))
    assert y.dtype == np.float32 and units.max() < 2
    assert np.array_equal(y[~finite], wanted[~finite].astype(np.float32), equal_nan=True)


def _of_numpy(dtype):
    """What `_power` calls, in numpy: products and sums of one rounding by way of more bits."""
    wide = np.longdouble if dtype == np.float64 else np.float64

    def fused(a, b, c):
        return (wide(a) * wide(b) + wide(c)).astype(dtype)

    def full(shape, value, dtype):
        return np.full(shape, value, dtype)

    def where(test, one, other):
        return np.where(test, one, other).astype(dtype)

    tl = SimpleNamespace(abs=np.abs, where=where, full=full, static_range=range, constexpr=object)

    def off(function):
        """By two units in the last place."""

        def rough(x):
            y = function(x)
            return np.where(np.isfinite(y) & (y != 0), y + 2 * np.spacing(y), y)

        return rough

    tl.sqrt = off(np.sqrt)
    libdevice = SimpleNamespace(mul_rn=np.multiply, fma_rn=fused)
    return {"tl": tl, "libdevice": libdevice, "inverse_of": off(np.reciprocal)}


def _units(y, wanted):
    """The largest errors in units in the last place: where what rounding misses is a normal number,
    and of smaller results."""
    finite = np.isfinite(wanted) & np.isfinite(y)
    size = np.abs(wanted[finite])
    errors = np.abs(y[finite] - wanted[finite]) / np.spacing(size.astype(np.float32))
    large = size >= 2.0**-101
    return errors[large].max(), errors[~large].max(initial=0)


@pytest.mark.parametrize("exponent", cases.POWERS)
def test_a_power_that_is_known_is_within_a_unit_of_any_number(exponent):
    """Torch's on a CPU is within 0.8 units; libdevice's is told to be within 4."""
    draws = np.random.default_rng(0)
    near = draws.uniform(0.1, 4, 100_000)
    bits = draws.integers(0, 1 << 32, 400_000, dtype=np.uint32).view(np.float32)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2.0**-149, -(2.0**-149), 2.0**-126, 3e38]
    names = _of_numpy(np.float32)
    with np.errstate(all="ignore"):
        x = names["x"] = np.concatenate([near, -near, bits, np.float64(ends)]).astype(np.float32)
        text = HELPERS["_power"].replace("@triton.jit", "")
        exec(text.replace("1 / top", "inverse_of(top)"), names)
        y = eval(scalars.power("x", exponent, False), names)
        rough = eval(scalars.power("x", exponent, True), names)
        wanted = torch.from_numpy(x).double().pow(exponent).numpy()
        nearest = wanted.astype(np.float32)
        large, small = _units(y, wanted)
        assert large < 0.51 and small < 1.5
        assert _units(rough, wanted)[0] < 12 * abs(exponent) + 2
    special = ~np.isfinite(nearest) | (np.abs(wanted) < 2.0**-151)
    assert y.dtype == np.float32
    for found in (y, rough):
        assert np.array_equal(found[special], nearest[special], equal_nan=True)
        signed = special & ~np.isnan(nearest)
        assert np.array_equal(np.signbit(found)[signed], np.signbit(nearest)[signed])


@pytest.mark.parametrize("exponent", [0.3, 2.4, 33, -100, 0.5, 1, float("inf"), float("nan")])
def test_other_powers_are_left_to_libdevice(exponent):
    assert scalars.power("x", exponent, False) == ""


@pytest.mark.parametrize("exponent", [3.0, -6, -12.0, 2.5])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_power_keeps_what_rounding_misses(exponent, dtype):
    """Without contraction, which would leave no rounding to find, nor the branches of a call."""
    pytest.importorskip("triton")
    made = cases.inverse(cases.power(exponent), 1000, dtype)
    (source,) = bundle_of(made.comp, made.buffers, named_target("h100"), {}).sources
    ptx = compile_source(source, 90).asm["ptx"]
    assert f"mul.rn.f{dtype[1:]}" in ptx and f"fma.rn.f{dtype[1:]}" in ptx
    assert "lg2" not in ptx and "bra" not in ptx.split(".debug")[0]


def test_a_product_that_two_read_is_one_product():
    """Without contraction, which would leave the rounding of x * x in x * x - x * x."""
    pytest.importorskip("triton")
    body = BodyBuilder()
    square = body.op("mul", *[body.load("x", (axis("i"),), dtypes.f32)] * 2)
    difference = body.op("sub", square, square)
    buffers = {n: Buffer(n, (1000,), dtypes.f32, (1,), "cuda:0") for n in ("x", "y")}
    comp = Comp("f", (Axis("i", 1000),), body.body, (Store("y", (axis("i"),), difference),))
    (source,) = bundle_of(comp, buffers, named_target("h100"), {}).sources
    ptx = compile_source(source, 90).asm["ptx"]
    assert "fma" not in ptx and "mul.rn.f32" in ptx


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", cases.INVERSES)
@pytest.mark.parametrize("arch", [80, 90])
def test_a_quotient_of_one_is_a_reciprocal_that_is_rounded_alike(name, dtype, arch):
    """To the nearest, no number flushed to zero: what a division gives."""
    pytest.importorskip("triton")
    made = cases.inverse(cases.INVERSES[name], 1000, dtype)
    (source,) = bundle_of(made.comp, made.buffers, named_target("h100"), {}).sources
    ptx = compile_source(source, arch).asm["ptx"]
    assert f"rcp.rn.f{dtype[1:]}" in ptx and "div." not in ptx and "rcp.approx" not in ptx


def test_other_quotients_are_divisions():
    """2 / x is not 2 * (1 / x) where that is subnormal; x / 3 is not x * (1 / 3), but may be made
    of it and of what is left."""
    text = "%1 = const {} : f32\n%2 = div {} : f32\nstore y[i] %2"
    for number, sides in (("2.0", "%1 %0"), ("3.0", "%0 %1"), ("1.0", "%0 %1")):
        made = cases.inverse(text.format(number, sides), 1000)
        (source,) = bundle_of(made.comp, made.buffers, named_target("h100"), {}).sources
        made_of_it = number == "3.0"
        assert ("rcp_rn" in source.text) == ("_quotient(v0, v1)" in source.text) == made_of_it

"""Generated C++ against the interpreter in float64, over every kind of kernel."""

from __future__ import annotations

import math
import random

import pytest
import torch

from cpp_runner import error, layouts, reference, run
from torchweld.core import dtypes as d
from torchweld.core.dtypes import to_torch
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp
from torchweld.ir.size import symbol
from torchweld.templates.pointwise_reduce.cpu.generate import generate

F32_ERROR, BF16_ERROR = 4e-7, 2.5e-3


def randn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def check(text, tensors, outputs, limit=F32_ERROR, **kwargs):
    """Every written buffer is within `limit` (relative L2) of float64; zero means bitwise."""
    comp = parse_comp(text)
    found, exact = (
        run(comp, tensors, outputs, **kwargs),
        reference(comp, tensors, outputs, kwargs.get("sizes")),
    )
    for name, tensor in found.items():
        assert error(tensor, exact[name].double()) <= limit, name
    again = run(comp, tensors, outputs, **kwargs)
    assert all(torch.equal(found[n].nan_to_num(), again[n].nan_to_num()) for n in found)
    return found


# -- pointwise --

CHAIN = """
comp chain [i:{i}, j:{j}] {{
  %0 = load x[i, j] : f32
  %1 = load b[j] : f32
  %2 = add %0 %1 : f32
  %3 = erf %2 : f32
  %4 = mul %3 %0 : f32
  store y[i, j] %4
}}
"""


@pytest.mark.parametrize(
    ("i", "j"), [(1, 1), (3, 5), (0, 7), (7, 0), (129, 127), (2, 5000), (1000, 64)]
)
def test_pointwise_with_a_broadcast(i, j):
    check(CHAIN.format(i=i, j=j), {"x": randn(i, j), "b": randn(j)}, {"y": ((i, j), d.f32)})


JOINED = {
    "gelu": "%3 = erf %0 : {t}\n  %4 = const 1.0 : {t}\n  %5 = add %3 %4 : {t}",
    "tanh gelu, 1 first": "%3 = tanh %0 : {t}\n  %4 = const 1.0 : {t}\n  %5 = add %4 %3 : {t}",
    "softplus": "%3 = exp %0 : {t}\n  %4 = const 1.0 : {t}\n  %5 = log1p %3 : {t}",
    "not 1": "%3 = tanh %0 : {t}\n  %4 = const 1.5 : {t}\n  %5 = add %3 %4 : {t}",
}


@pytest.mark.parametrize("dtype", (d.f32, d.f64), ids=str)
@pytest.mark.parametrize("name", JOINED)
def test_two_functions_as_one(name, dtype):
    """The inner one's value is stored too."""
    t = str(dtype)
    text = f"""
comp joined [i:1000] {{
  %0 = load x[i] : {t}
  %1 = mul %0 %0 : {t}
  %2 = mul %1 %0 : {t}
  {JOINED[name].format(t=t)}
  %6 = mul %2 %5 : {t}
  store y[i] %6
  store z[i] %3
}}
"""
    x = randn(1000, dtype=d.to_torch(dtype))
    shapes = {"y": ((1000,), dtype), "z": ((1000,), dtype)}
    check(text, {"x": x}, shapes, F32_ERROR if dtype == d.f32 else 1e-15)


@pytest.mark.parametrize("exponent", (-16, -3, 0, 1, 4, 15, 16, 17, 2.5))
def test_powers_are_rounded_once(exponent):
    text = f"""
comp power [i:1000] {{
  %0 = load x[i] : f32
  %1 = const {float(exponent)} : f32
  %2 = pow %0 %1 : f32
  store y[i] %2
}}
"""
    x = randn(1000)
    x[:6] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-30])
    found = run(parse_comp(text), {"x": x}, {"y": ((1000,), d.f32)})["y"]
    expected = torch.pow(x.double(), exponent).float()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("shape", [(64, 96), (33, 65), (8, 3), (1, 9)])
def test_transposes_are_bitwise(shape):
    i, j = shape
    text = f"""
comp transpose [i:{i}, j:{j}] {{
  %0 = load x[i, j] : f32
  store y[i, j] %0
}}
"""
    check(text, {"x": randn(j, i).t()}, {"y": ((i, j), d.f32)}, 0)
    check(text, {"x": randn(i, 2 * j)[:, ::2]}, {"y": ((i, j), d.f32, (1, i))}, 0)


def test_permuted_rank_four_with_gaps():
    text = """
comp permute [n:2, c:5, h:7, w:9] {
  %0 = load x[n, c, h, w] : f32
  %1 = load b[c] : f32
  %2 = mul %0 %1 : f32
  store y[n, c, h, w] %2
}
"""
    channels_last = (5 * 7 * 9, 1, 9 * 5, 5)
    x = torch.full((2, 7, 9, 8), math.nan)
    x[..., :5] = randn(2, 7, 9, 5)
    check(
        text,
        {"x": x.permute(0, 3, 1, 2)[:, :5], "b": randn(5)},
        {"y": ((2, 5, 7, 9), d.f32, channels_last)},
    )


def test_a_constant_covers_what_the_store_indexes():
    text = """
comp full [i:3, j:5] {
  %0 = const 2.5 : f32
  store y[i, j] %0
}
"""
    check(text, {}, {"y": ((3, 5), d.f32)}, 0)


def test_scalar_kernel():
    text = """
comp scalar [] {
  %0 = load x[] : f32
  %1 = add %0 %0 : f32
  store y[] %1
}
"""
    check(text, {"x": randn()}, {"y": ((), d.f32)}, 0)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_sixteen_bit_floats_round_as_torch_does(dtype):
    text = f"""
comp round [i:5003] {{
  %0 = load x[i] : f32
  %1 = cast %0 : {dtype}
  store y[i] %1
}}
"""
    x = randn(5003) * torch.logspace(-10, 6, 5003)
    x[:6] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 65520.0])
    found = run(parse_comp(text), {"x": x}, {"y": ((5003,), d.BY_NAME[dtype])})["y"]
    expected = x.to(found.dtype)
    assert (
        torch.equal(found.view(torch.int16)[1:], expected.view(torch.int16)[1:])
        and found[0].isnan()
    )
    back = f"""
comp widen [i:65536] {{
  %0 = load x[i] : {dtype}
  %1 = cast %0 : f32
  store y[i] %1
}}
"""
    every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(found.dtype)
    wide = run(parse_comp(back), {"x": every}, {"y": ((65536,), d.f32)})["y"]
    assert torch.equal(wide.nan_to_num(7.0), every.float().nan_to_num(7.0))


@pytest.mark.parametrize("channels", [1, 31, 58, 128])
@pytest.mark.parametrize("last", [True, False])
def test_a_norm_of_channels_then_relu_rounds_as_eager(channels, last):
    """Channels innermost: what is the same for every pixel is worked out once. A maximum of rounded
    values is not rounded again."""
    text = f"""
comp norm [n:2, p:85, c:{channels}] {{
  %0 = load x[n, p, c] : bf16
  %1 = cast %0 : f32
  %2 = load m[c] : bf16
  %3 = cast %2 : f32
  %4 = sub %1 %3 : f32
  %5 = load v[c] : bf16
  %6 = cast %5 : f32
  %7 = rsqrt %6 : f32
  %8 = mul %4 %7 : f32
  %9 = cast.round %8 : bf16
  %10 = cast %9 : f32
  %11 = const 0.0 : f32
  %12 = maximum %10 %11 : f32
  %13 = const 6.0 : f32
  %14 = minimum %12 %13 : f32
  %15 = cast %14 : bf16
  store y[n, p, c] %15
}}
"""
    x = randn(2, 85, channels, dtype=torch.bfloat16) * 8
    x[0, :3, 0] = torch.tensor([math.nan, math.inf, -math.inf])
    x = x if last else x.transpose(1, 2).contiguous().transpose(1, 2)
    m, v = (randn(channels, dtype=torch.bfloat16, seed=s) for s in (1, 2))
    v = v.abs() + 0.5
    found = run(parse_comp(text), {"x": x, "m": m, "v": v}, {"y": (x.shape, d.bf16)})["y"]
    middle = ((x.float() - m.float()) * (1 / v.float().sqrt())).bfloat16()
    assert torch.equal(found.isnan(), x.isnan())
    assert torch.equal(found.nan_to_num(3.0), middle.clamp(0, 6).nan_to_num(3.0))


# -- guards, indirection, scatter --


@pytest.mark.parametrize(("pixels", "channels"), [(70, 41), (33, 64), (9, 200), (64, 29)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_channels_put_together_while_turned(pixels, channels, dtype):
    """Tiles whose lines a guard leaves out, and tiles that overlap at the edges."""
    text = f"""
comp cat [n:2, p:{pixels}, c:{channels}] {{
  %0 = index c : i64
  %1 = const 17 : i64
  %2 = lt %0 %1 : b1
  %3 = ge %0 %1 : b1
  %4 = load x[n, c, p] if %2 else 0 : {dtype}
  %5 = load z[n, c-17, p] if %3 else 0 : {dtype}
  %6 = where %2 %4 %5 : {dtype}
  store y[n, p, c] %6
}}
"""
    kind = d.to_torch(d.BY_NAME[dtype])
    x, z = randn(2, 17, pixels, dtype=kind), randn(2, channels - 17, pixels, dtype=kind, seed=1)
    shape = (2, pixels, channels)
    found = run(parse_comp(text), {"x": x, "z": z}, {"y": (shape, d.BY_NAME[dtype])})["y"]
    assert torch.equal(found, torch.cat((x, z), 1).transpose(1, 2))


@pytest.mark.parametrize("shape", [(4, 3, 5, 40), (1, 4, 7, 784), (2, 2, 1, 7)])
def test_channels_put_together_and_shuffled(shape):
    """Guards that change with the channel, not along the lane: one loop for each answer."""
    n, g, c, p = shape
    text = f"""
comp shuffle [n:{n}, g:{g}, h:2, c:{c}, p:{p}] {{
  %0 = index g*{c}+c : i64
  %1 = const {c * g // 2} : i64
  %2 = lt %0 %1 : b1
  %3 = ge %0 %1 : b1
  %4 = index h : i64
  %5 = const 1 : i64
  %6 = eq %4 %5 : b1
  %7 = bit_and %2 %6 : b1
  %8 = load x[n, {c}*g+c, p] if %7 else 1.5 : f32
  %9 = load z[n, {c}*g+c-{c * g // 2}, p] if %3 else 0.0 : f32
  %10 = exp %9 : f32
  %11 = where %2 %8 %10 : f32
  store y[n, h, c, g, p] %11
}}
"""
    half = c * g // 2
    tensors = {"x": randn(n, half, p), "z": randn(n, c * g - half, p, seed=1)}
    check(text, tensors, {"y": ((n, 2, c, g, p), d.f32)}, 3e-7)



def test_cat_by_guards_reads_nothing_outside():
    text = """
comp cat [i:6, j:12] {
  %0 = index j : i64
  %1 = const 5 : i64
  %2 = lt %0 %1 : b1
  %3 = load x[i, j] if %2 else 0.0 : f32
  %4 = logical_not %2 : b1
  %5 = load z[i, j-5] if %4 else 0.0 : f32
  %6 = where %2 %3 %5 : f32
  store y[i, j] %6
}
"""
    check(text, {"x": randn(6, 5), "z": randn(6, 7, seed=1)}, {"y": ((6, 12), d.f32)}, 0)


@pytest.mark.parametrize("test", ["lt %0 %1", "le %0 %1", "ge %0 %1", "gt %0 %1"])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("shift", "limit"), [(-24, 16), (0, 39), (0, 2)])
def test_a_lane_is_cut_where_a_comparison_changes(test, mirrored, shift, limit):
    name, one, other = test.split()
    test = f"{name} {other} {one}" if mirrored else test
    text = f"""
comp cut [i:1000, j:96] {{
  %0 = index j{shift:+d} : i64
  %1 = const {limit} : i64
  %2 = {test} : b1
  %3 = load x[i, j] if %2 else -1.0 : f32
  store y[i, j] %3
}}
"""
    check(text, {"x": randn(1000, 96)}, {"y": ((1000, 96), d.f32)}, 0)


PLACES = {  # of 40 elements, by positions 0..59
    "reflected": """%1 = const 10 : i64
  %2 = sub %0 %1 : i64
  %3 = abs %2 : i64
  %4 = const 39 : i64
  %5 = sub %4 %3 : i64
  %6 = abs %5 : i64
  %7 = sub %4 %6 : i64""",
    "replicated": """%1 = const 10 : i64
  %2 = sub %0 %1 : i64
  %3 = const 0 : i64
  %4 = maximum %2 %3 : i64
  %5 = const 39 : i64
  %6 = minimum %4 %5 : i64
  %7 = add %6 %3 : i64""",
    "turned": """%1 = const 40 : i64
  %2 = const 33 : i64
  %3 = add %0 %2 : i64
  %4 = remainder %3 %1 : i64
  %5 = const 39 : i64
  %6 = sub %5 %4 : i64
  %7 = abs %6 : i64""",
}


@pytest.mark.parametrize("rows", (1, 300))
@pytest.mark.parametrize("name", PLACES)
def test_reads_at_places_that_the_position_decides(name, rows):
    """Lanes in pieces, of a row or handed out in blocks; bitwise."""
    text = f"""
comp moved [i:{rows}, j:60] {{
  %0 = index j : i64
  {PLACES[name]}
  %8 = load x[i, %7] : f32
  %9 = const 10 : i64
  %10 = ge %0 %9 : b1
  %11 = const 50 : i64
  %12 = lt %0 %11 : b1
  %13 = bit_and %10 %12 : b1
  %14 = load z[i, j-10] if %13 else 0.0 : f32
  store y[i, j] %8
  store w[i, j] %14
}}
"""
    shape = ((rows, 60), d.f32)
    tensors = {"x": randn(rows, 40), "z": randn(rows, 40, seed=1)}
    check(text, tensors, {"y": shape, "w": shape}, 0)


def test_a_row_is_reduced_over_its_segments():
    text = """
comp segments [i:5, j:80] {
  %0 = index j : i64
  %1 = const 32 : i64
  %2 = lt %0 %1 : b1
  %3 = load x[i, j] : f32
  %4 = neg %3 : f32
  %5 = where %2 %3 %4 : f32
  %6 = reduce.max[j] %5 : f32
  %7 = sub %5 %6 : f32
  %8 = exp %7 : f32
  %9 = reduce.sum[j] %8 : f32
  %10 = div %8 %9 : f32
  store y[i, j] %10
}
"""
    check(text, {"x": randn(5, 80)}, {"y": ((5, 80), d.f32)})


def test_gather_and_embedding():
    text = """
comp embedding [i:17, j:24] {
  %0 = load at[i] : i64
  %1 = load table[%0, j] : f32
  store y[i, j] %1
}
"""
    at = torch.randint(0, 9, (17,))
    check(text, {"at": at, "table": randn(9, 24)}, {"y": ((17, 24), d.f32)}, 0)


@pytest.mark.parametrize("start", (0, 1, 2, 3))
def test_sixteen_bit_elements_are_gathered(start):
    """Out of words, whichever half the first is in."""
    text = """
comp gathered [i:7, j:200] {
  %0 = load at[i, j] : i64
  %1 = load x[i, %0] : bf16
  store y[i, j] %1
}
"""
    x = randn(7 * 33 + 3, dtype=torch.bfloat16)[start : start + 7 * 33].view(7, 33)
    at = torch.randint(0, 33, (7, 200), generator=torch.Generator().manual_seed(0))
    check(text, {"x": x, "at": at}, {"y": ((7, 200), d.bf16)}, 0)


@pytest.mark.parametrize(("rows", "columns"), [(500, 96), (2000, 33), (300, 1)])
def test_scatter_add_repeats_and_is_right(rows, columns):
    text = f"""
comp scatter [i:{rows}, j:{columns}] {{
  %0 = load at[i] : i64
  %1 = load g[i, j] : f32
  store.add y[%0, j] %1 init 0.0
}}
"""
    tensors = {"at": torch.randint(0, 7, (rows,)), "g": randn(rows, columns)}
    check(text, tensors, {"y": ((7, columns), d.f32)}, 2e-6)


def test_scatter_within_the_lane():
    text = """
comp scatter [i:40, j:50] {
  %0 = load at[i, j] : i64
  %1 = load g[i, j] : f32
  store.add y[i, %0] %1 init 0.0
}
"""
    check(
        text,
        {"at": torch.randint(0, 5, (40, 50)), "g": randn(40, 50)},
        {"y": ((40, 5), d.f32)},
        1e-6,
    )


# -- reductions --

SOFTMAX = """
comp softmax [i:{i}, j:{j}] {{
  %0 = load x[i, j] : f32
  %1 = reduce.max[j] %0 : f32
  %2 = sub %0 %1 : f32
  %3 = exp %2 : f32
  %4 = reduce.sum[j] %3 : f32
  %5 = div %3 %4 : f32
  store y[i, j] %5
}}
"""


@pytest.mark.parametrize(
    ("i", "j"), [(5, 1), (100, 77), (3, 128), (0, 9), (40, 1000), (2, 20011), (1, 70000)]
)
def test_softmax(i, j):
    check(SOFTMAX.format(i=i, j=j), {"x": randn(i, j) * 5}, {"y": ((i, j), d.f32)})


def test_softmax_of_hard_rows():
    x = randn(6, 37)
    x[0, 3], x[1], x[2, :20], x[3, 5] = math.nan, -math.inf, -math.inf, math.inf
    check(SOFTMAX.format(i=6, j=37), {"x": x}, {"y": ((6, 37), d.f32)})


@pytest.mark.parametrize(("i", "j"), [(300, 50), (20, 513), (7, 3), (5000, 4)])
def test_softmax_over_a_strided_axis(i, j):
    check(SOFTMAX.format(i=i, j=j), {"x": randn(j, i).t()}, {"y": ((i, j), d.f32, (1, i))})


LAYERNORM = """
comp layernorm [i:{i}, j:{j}] {{
  %0 = load x[i, j] : {t}
  %1 = cast %0 : f32
  %2 = load r[i, j] : {t}
  %3 = cast %2 : f32
  %4 = add %1 %3 : f32
  %5 = reduce.welford[j] %4 : f32
  %6 = pick.0 %5 : f32
  %7 = pick.1 %5 : f32
  %8 = const {j}.0 : f32
  %9 = div %7 %8 : f32
  %10 = const 1e-05 : f32
  %11 = add %9 %10 : f32
  %12 = rsqrt %11 : f32
  %13 = sub %4 %6 : f32
  %14 = mul %13 %12 : f32
  %15 = load w[j] : f32
  %16 = mul %14 %15 : f32
  %17 = cast %16 : {t}
  %18 = cast %4 : {t}
  store y[i, j] %17
  store s[i, j] %18
  store rstd[i] %12
}}
"""


@pytest.mark.parametrize(("i", "j"), [(100, 768), (7, 127), (3, 5000), (1, 1000)])
@pytest.mark.parametrize(("name", "dtype"), [("f32", torch.float32), ("bf16", torch.bfloat16)])
def test_layernorm_with_residual(i, j, name, dtype):
    tensors = {
        "x": randn(i, j, dtype=dtype),
        "r": randn(i, j, dtype=dtype, seed=1),
        "w": randn(j, seed=2),
    }
    kind = d.BY_NAME[name]
    outputs = {"y": ((i, j), kind), "s": ((i, j), kind), "rstd": ((i,), d.f32)}
    check(
        LAYERNORM.format(i=i, j=j, t=name),
        tensors,
        outputs,
        F32_ERROR if name == "f32" else BF16_ERROR,
    )


def test_offset_mean_keeps_the_variance():
    tensors = {"x": randn(50, 768) + 1000, "r": torch.zeros(50, 768), "w": torch.ones(768)}
    outputs = {"y": ((50, 768), d.f32), "s": ((50, 768), d.f32), "rstd": ((50,), d.f32)}
    found = check(LAYERNORM.format(i=50, j=768, t="f32"), tensors, outputs, 1e-4)
    variance = tensors["x"].double().var(1, correction=0)
    assert error(found["rstd"], (variance + 1e-5).rsqrt()) < 1e-6


LAYERNORM_BACKWARD = """
comp backward [i:{i}, j:{j}] {{
  %0 = load g[i, j] : f32
  %1 = load x[i, j] : f32
  %2 = load mean[i] : f32
  %3 = load rstd[i] : f32
  %4 = load w[j] : f32
  %5 = sub %1 %2 : f32
  %6 = mul %5 %3 : f32
  %7 = mul %0 %4 : f32
  %8 = reduce.sum[j] %7 : f32
  %9 = mul %7 %6 : f32
  %10 = reduce.sum[j] %9 : f32
  %11 = const {j}.0 : f32
  %12 = div %8 %11 : f32
  %13 = div %10 %11 : f32
  %14 = mul %6 %13 : f32
  %15 = sub %7 %12 : f32
  %16 = sub %15 %14 : f32
  %17 = mul %16 %3 : f32
  %18 = mul %0 %6 : f32
  %19 = reduce.sum[i] %18 : f32
  %20 = reduce.sum[i] %0 : f32
  store dx[i, j] %17
  store dw[j] %19
  store db[j] %20
}}
"""


@pytest.mark.parametrize(("i", "j"), [(300, 96), (3, 1000), (0, 5), (1031, 257)])
def test_layernorm_backward_in_one_kernel(i, j):
    tensors = {
        "g": randn(i, j),
        "x": randn(i, j, seed=1),
        "mean": randn(i, seed=2) * 0.1,
        "rstd": randn(i, seed=3).abs() + 0.5,
        "w": randn(j, seed=4),
    }
    outputs = {"dx": ((i, j), d.f32), "dw": ((j,), d.f32), "db": ((j,), d.f32)}
    check(LAYERNORM_BACKWARD.format(i=i, j=j), tensors, outputs)


@pytest.mark.parametrize("monoid", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize(
    ("reduced", "kept"),
    [("j, k", "i"), ("i, k", "j"), ("i, j", "k"), ("i, j, k", ""), ("j", "i, k")],
)
def test_reductions_over_any_axes(monoid, reduced, kept):
    extents = {"i": 9, "j": 70, "k": 33}
    text = f"""
comp reduction [i:9, j:70, k:33] {{
  %0 = load x[i, j, k] : f32
  %1 = reduce.{monoid}[{reduced}] %0 : f32
  store y[{kept}] %1
}}
"""
    shape = tuple(extents[a] for a in kept.split(", ") if a)
    x = 1 + 0.01 * randn(9, 70, 33) if monoid == "prod" else randn(9, 70, 33)
    exact = monoid in ("max", "min")
    check(text, {"x": x}, {"y": (shape, d.f32)}, 0 if exact else 2e-5 if monoid == "prod" else 1e-6)


@pytest.mark.parametrize("shape", [(1_000_003,), (200_001, 5), (5, 200_001)])
def test_long_sums_are_as_exact_as_eager(shape):
    names, x = (
        ["i", "j"][: len(shape)],
        torch.rand(*shape, generator=torch.Generator().manual_seed(0)),
    )
    axes = ", ".join(f"{n}:{e}" for n, e in zip(names, shape))
    for reduced in ([n] for n in names):
        kept = [n for n in names if n not in reduced]
        text = f"""
comp long [{axes}] {{
  %0 = load x[{", ".join(names)}] : f32
  %1 = reduce.sum[{", ".join(reduced)}] %0 : f32
  store y[{", ".join(kept)}] %1
}}
"""
        dims = [names.index(n) for n in reduced]
        exact = x.double().sum(dims)
        outputs = {"y": (tuple(exact.shape), d.f32)}
        eager = error(x.sum(dims), exact)
        check(text, {"x": x}, outputs, max(1.5 * eager, 6e-8))


@pytest.mark.parametrize("monoid", ["argmax", "argmin"])
@pytest.mark.parametrize("strided", [False, True])
def test_arg_extremes_take_the_first_and_nan_wins(monoid, strided):
    text = f"""
comp arg [i:40, j:53] {{
  %0 = load x[i, j] : f32
  %1 = index j : i64
  %2 = reduce.{monoid}[j] %0 %1 : f32
  %3 = pick.1 %2 : i64
  store y[i] %3
}}
"""
    x = torch.randint(0, 4, (40, 53)).float()
    x[3, 20], x[3, 30], x[4] = math.nan, math.nan, -math.inf
    x = x.t().contiguous().t() if strided else x
    check(text, {"x": x}, {"y": ((40,), d.i64)}, 0)


def test_logsumexp_then_mean_over_rows():
    text = """
comp loss [i:60, j:301] {
  %0 = load x[i, j] : f32
  %1 = reduce.logsumexp[j] %0 : f32
  %2 = pick.0 %1 : f32
  %3 = pick.1 %1 : f32
  %4 = log %3 : f32
  %5 = add %4 %2 : f32
  %6 = reduce.sum[i] %5 : f32
  %7 = const 60.0 : f32
  %8 = div %6 %7 : f32
  store lse[i] %5
  store loss[] %8
}
"""
    check(text, {"x": randn(60, 301) * 4}, {"lse": ((60,), d.f32), "loss": ((), d.f32)})


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("monoid", ["sum", "max", "logaddexp"])
def test_scans(strided, monoid):
    text = f"""
comp scan [i:30, j:211] {{
  %0 = load x[i, j] : f32
  %1 = scan.{monoid}[j] %0 : f32
  store y[i, j] %1
}}
"""
    x = randn(211, 30).t() if strided else randn(30, 211)
    check(
        text, {"x": x}, {"y": ((30, 211), d.f32, x.stride())}, 0 if monoid == "max" else F32_ERROR
    )


@pytest.mark.parametrize("columns", (1, 7, 8, 63, 65, 1001))
def test_running_sums(columns):
    """As exact as in float64, and what is infinite or no number is so from there on."""
    text = f"""
comp sums [i:9, j:{columns}] {{
  %0 = load x[i, j] : f32
  %1 = scan.sum[j] %0 : f32
  store y[i, j] %1
}}
"""
    x = randn(9, columns) * 1e4 + 1e6
    x[1, columns // 2 :], x[2, columns // 3], x[2, columns // 2] = math.nan, math.inf, -math.inf
    found = run(parse_comp(text), {"x": x}, {"y": ((9, columns), d.f32)})["y"]
    exact = x.double().cumsum(-1).float()
    torch.testing.assert_close(found, exact, rtol=1e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("machine", ["native", "haswell", "x86-64"])
@pytest.mark.parametrize("monoid", ["max", "min", "logaddexp"])
@pytest.mark.parametrize("dtype", [d.f32, d.f64, d.i32, d.i64], ids=str)
def test_scans_of_blocks(monoid, dtype, machine):
    """Vectors of every width; NaN in the first block, in a later one and in none."""
    if monoid == "logaddexp" and not dtype.is_float:
        pytest.skip("of floats")
    for columns in (1, 15, 17, 64, 200):
        text = f"""
comp scans [i:5, j:{columns}] {{
  %0 = load x[i, j] : {dtype}
  %1 = scan.{monoid}[j] %0 : {dtype}
  store y[i, j] %1
}}
"""
        x = (randn(5, columns) * 20).to(to_torch(dtype))
        if dtype.is_float:
            x[1, columns // 3 :: 40], x[2, columns * 2 // 3] = math.nan, math.nan
            x[3, :: 7], x[4, 1::5] = -math.inf, math.inf
        outputs, comp = {"y": ((5, columns), dtype)}, parse_comp(text)
        found = run(comp, {"x": x}, outputs, flags=(f"-march={machine}",))["y"]
        exact = reference(comp, {"x": x}, outputs)["y"].to(x.dtype)
        bits = monoid != "logaddexp"
        close = dict(rtol=0, atol=0) if bits else dict(rtol=3e-7, atol=3e-7)
        torch.testing.assert_close(found, exact, equal_nan=True, **close)


def test_booleans_and_integers():
    text = """
comp mixed [i:20, j:67] {
  %0 = load m[i, j] : b1
  %1 = load k[i, j] : i32
  %2 = const 3 : i32
  %3 = remainder %1 %2 : i32
  %4 = const 1 : i32
  %5 = eq %3 %4 : b1
  %6 = bit_and %0 %5 : b1
  %7 = reduce.any[j] %6 : b1
  %8 = reduce.all[j] %0 : b1
  %9 = cast %1 : i64
  %10 = reduce.sum[j] %9 : i64
  %11 = reduce.max[j] %1 : i32
  store any[i] %7
  store all[i] %8
  store sum[i] %10
  store max[i] %11
  store hit[i, j] %6
}
"""
    mask = torch.rand(20, 67) < 0.5
    mask[3], mask[4] = True, False
    tensors = {"m": mask, "k": torch.randint(-50, 50, (20, 67), dtype=torch.int32)}
    outputs = {
        "any": ((20,), d.b1),
        "all": ((20,), d.b1),
        "sum": ((20,), d.i64),
        "max": ((20,), d.i32),
        "hit": ((20, 67), d.b1),
    }
    check(text, tensors, outputs, 0)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
@pytest.mark.parametrize("shape", ((1, 3), (1, 15), (1, 17), (1, 255), (1, 5001), (300, 37)))
def test_sixteen_bit_floats_in_blocks(shape, dtype):
    """Two loads, one of them at a distance, two stores, one of them of what is loaded: bitwise what
    torch rounds."""
    (i, j), t = shape, d.from_torch(dtype)
    text = f"""
comp halves [i:{i}, j:{j}] {{
  %0 = load x[i, j+1] : {t}
  %1 = cast %0 : f32
  %2 = load b[j] : {t}
  %3 = cast %2 : f32
  %4 = mul %1 %3 : f32
  %5 = div %1 %3 : f32
  %6 = div %5 %4 : f32
  %7 = add %6 %1 : f32
  %8 = cast %7 : {t}
  store y[i, j] %8
  store z[i, j] %0
}}
"""
    x, b = (randn(i, j + 2) * 30).to(dtype), (randn(j, seed=1) * 3000).to(dtype)
    x[:, ::7], x[:, 3::11] = math.inf, math.nan
    shapes = {"y": ((i, j), t), "z": ((i, j), t)}
    found = run(parse_comp(text), {"x": x, "b": b}, shapes)
    wide = x[:, 1:-1].float()
    expected = (wide / b.float() / (wide * b.float()) + wide).to(dtype)
    assert torch.equal(found["y"].isnan(), expected.isnan())
    assert torch.equal(found["y"].nan_to_num(), expected.nan_to_num())
    assert torch.equal(found["z"].view(torch.int16), x[:, 1:-1].view(torch.int16))


def test_float64():
    text = SOFTMAX.replace("f32", "f64")
    check(text.format(i=10, j=33), {"x": randn(10, 33).double()}, {"y": ((10, 33), d.f64)}, 1e-15)


def test_dropout_draws_what_the_interpreter_draws():
    text = """
comp dropout [i:1000] {
  %0 = load seed[] : i64
  %1 = index i : i64
  %2 = philox %0 %1 : f32
  store y[i] %2
}
"""
    check(text, {"seed": torch.tensor(2**40 + 12345)}, {"y": ((1000,), d.f32)}, 0)


@pytest.mark.parametrize("strided", [False, True])
def test_symbolic_sizes(strided):
    text = SOFTMAX.format(i="s0", j="s1")
    s0, s1 = symbol("s0"), symbol("s1")
    strides = (1, s0) if strided else (s1, 1)
    symbolic = {n: Buffer(n, (s0, s1), d.f32, strides) for n in "xy"}
    for i, j in [(4, 100), (0, 3), (3, 0), (17, 3001), (300, 9)]:
        x = randn(j, i).t() if strided else randn(i, j)
        outputs, sizes = {"y": ((i, j), d.f32, x.stride())}, {"s0": i, "s1": j}
        check(text, {"x": x}, outputs, sizes=sizes, symbolic=symbolic)


def test_symbolic_sums_over_rows():
    text = """
comp sums [i:s0, j:s1] {
  %0 = load x[i, j] : f32
  %1 = exp %0 : f32
  %2 = reduce.sum[i] %1 : f32
  store y[j] %2
}
"""
    s0, s1 = symbol("s0"), symbol("s1")
    symbolic = {"x": Buffer("x", (s0, s1), d.f32, (s1, 1)), "y": Buffer("y", (s1,), d.f32, (1,))}
    for i, j in [(4, 100), (0, 3), (3, 0), (3001, 17), (9, 300)]:
        sizes = {"s0": i, "s1": j}
        check(text, {"x": randn(i, j)}, {"y": ((j,), d.f32)}, sizes=sizes, symbolic=symbolic)


# -- random nests --

AXES = "ijk"


def random_operand(rng: random.Random, extents):
    """A tensor over some of the axes, its dimensions in memory in any order, with gaps of NaN."""
    axes = [a for a in AXES if rng.random() < 0.75] or ["k"]
    memory = rng.sample(axes, len(axes))
    wide = torch.full([extents[a] + rng.choice([0, 0, 3]) for a in memory], math.nan)
    tensor = wide[tuple(slice(extents[a]) for a in memory)]
    generator = torch.Generator().manual_seed(rng.randrange(2**30))
    tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return axes, tensor.permute([memory.index(a) for a in axes])


@pytest.mark.parametrize("seed", range(30))
def test_random_nests(seed):
    rng = random.Random(seed)
    extents = {a: rng.choice([1, 2, 5, 16, 17, 33, 64, 127, 130]) for a in AXES}
    (x_axes, x), (z_axes, z) = random_operand(rng, extents), random_operand(rng, extents)
    reduced = ", ".join(sorted(rng.sample(AXES, rng.choice([1, 1, 2, 3]))))
    body = f"""
  %0 = load x[{", ".join(x_axes)}] : f32
  %1 = load z[{", ".join(z_axes)}] : f32
  %2 = add %0 %1 : f32
  %3 = exp %2 : f32
  %4 = reduce.sum[{reduced}] %3 : f32
  %5 = reduce.max[{reduced}] %2 : f32
  %6 = div %3 %4 : f32
  %7 = mul %6 %5 : f32
  store y[i, j, k] %7
"""
    header = ", ".join(f"{a}:{n}" for a, n in extents.items())
    memory = rng.sample(AXES, 3)
    empty = torch.empty([extents[a] for a in memory]).permute([memory.index(a) for a in AXES])
    outputs = {"y": (tuple(extents.values()), d.f32, empty.stride())}
    check(f"comp nest [{header}] {{{body}}}", {"x": x, "z": z}, outputs, 1e-6)


@pytest.mark.parametrize("dtype", (d.f32, d.f16, d.bf16), ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_few_points_beside_each_other(seed, dtype):
    """The last axis is written out: guards along it and along others, a store of fewer axes,
    places that its point decides."""
    rng, t = random.Random(seed), str(dtype)
    extents = {"i": rng.choice((1, 3, 40)), "j": rng.choice((16, 33, 2100))}
    extents["k"] = rng.choice((2, 3, 7))
    (x_axes, x), (z_axes, z) = random_operand(rng, extents), random_operand(rng, extents)
    header = ", ".join(f"{a}:{n}" for a, n in extents.items())
    text = f"""
comp short [{header}] {{
  %0 = load x[{", ".join(x_axes)}] : {t}
  %1 = cast %0 : f32
  %2 = index k : i64
  %3 = const 1 : i64
  %4 = ge %2 %3 : b1
  %5 = index i : i64
  %6 = lt %5 %3 : b1
  %7 = load z[{", ".join(z_axes)}] if %6 else 0.0 : {t}
  %8 = load w[j, k-1] if %4 else 2.0 : {t}
  %9 = cast %8 : f32
  %10 = mul %1 %9 : f32
  %11 = cast %7 : f32
  %12 = add %10 %11 : f32
  %13 = exp %12 : f32
  %14 = cast %13 : {t}
  %15 = mul %9 %9 : f32
  %16 = cast %15 : {t}
  %17 = sub %3 %2 : i64
  %18 = abs %17 : i64
  %19 = load w[j, %18] : {t}
  store y[i, j, k] %14
  store v[j, k] %16
  store u[j, k] %19
}}
"""
    w = randn(extents["j"], extents["k"])
    tensors = {n: s.to(d.to_torch(dtype)) for n, s in (("x", x), ("z", z), ("w", w))}
    pair = (extents["j"], extents["k"])
    outputs = {"y": (tuple(extents.values()), dtype), "v": (pair, dtype), "u": (pair, dtype)}
    check(text, tensors, outputs, F32_ERROR if dtype == d.f32 else BF16_ERROR)


def test_a_value_rounded_to_float16_stays_in_float32():
    """Converted there and back, it took as long as all else."""
    text = """
    comp rounded [i:3, j:129] {
      %0 = load x[i, j] : f32
      %1 = cast %0 : f16
      %2 = cast %1 : f32
      %3 = add %2 %0 : f32
      store y[i, j] %3
    }"""
    x = torch.randn(3, 129) * torch.logspace(-9, 6, 129)
    x[0, :4] = torch.tensor([65519.0, 65520.0, math.inf, math.nan])
    outputs = {"y": (tuple(x.shape), d.f32)}
    found = run(parse_comp(text), {"x": x}, outputs)["y"]
    assert torch.equal(found.nan_to_num(7, 8, 9), (x.half().float() + x).nan_to_num(7, 8, 9))
    source = generate(parse_comp(text), layouts(parse_comp(text), {"x": x}, outputs)).sources[0]
    part = source.text[source.text.index("static void part") :]
    assert "tw_round_f16" in part and "tw_from_f16" not in part

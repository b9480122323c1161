"""Pointwise rows against eager and float64, several rows to a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from lowered import capture, check, comps, externs, lowered, run

from torchweld.capture import lower as lowering
from torchweld.capture.lowering import call
from torchweld.ir.nodes import Const, Load, Op

aten = torch.ops.aten
FLOATS = [torch.float32, torch.bfloat16, torch.float64]
UNARY = [
    "neg",
    "abs",
    "sign",
    "sgn",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "sigmoid",
    "ceil",
    "floor",
    "trunc",
    "round",
    "frac",
    "square",
    "signbit",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
]
ACTIVATIONS = [
    "relu",
    "relu6",
    "silu",
    "mish",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "softplus",
    "leaky_relu",
    "elu",
    "celu",
    "selu",
    "hardshrink",
    "softshrink",
    "gelu",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "atan2",
    "remainder",
    "fmod",
    "floor_divide",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "copysign",
]
WITH_NUMBER = [
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "remainder",
    "fmod",
    "floor_divide",
    "eq",
    "lt",
    "ge",
]


def values(*shape, dtype=torch.float32):
    """Normal numbers, with infinities, NaN and both zeros among the first ones of a vector."""
    x = 2 * torch.randn(*shape, dtype=torch.float64)
    if x.numel() > 12:
        x.view(-1)[:6] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0])
    return x.to(dtype)


def integers(*shape, dtype=torch.int64):
    return torch.randint(-7, 8, shape, dtype=dtype)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_unary(dtype):
    check(lambda x: [getattr(aten, n)(x) for n in UNARY], values(3, 13, dtype=dtype))


OF_GPUS = {
    "erfc": lambda x: x.erfc(),
    "erfinv": lambda x: (x / 4).erfinv(),
    "lgamma": lambda x: x.lgamma(),
    "nextafter": lambda x: torch.nextafter(x, x.flip(1)),
}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", OF_GPUS)
def test_functions_that_aten_vectorises_are_calls_on_a_cpu(monkeypatch, device, dtype, name):
    of = call.spec_of
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(of(*a), device=device))
    x, function = values(3, 13, dtype=dtype), OF_GPUS[name]
    x[0, 6:9] = torch.tensor([1e-40, -1e-40, 9.0])
    result = lowered(lambda x: function(x) * 2, x)
    of_bits = name == "nextafter" and dtype == torch.bfloat16
    assert externs(result) == ([f"aten.{name}.default"] if device == "cpu" or of_bits else [])
    (found,) = run(result, [x], exact=False)
    assert torch.equal(found.nan_to_num(1e9), (function(x) * 2).nan_to_num(1e9))


def test_hypot_neither_overflows_nor_vanishes():
    x = torch.tensor([1e30, -1e-30, 0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.0, 1e-45])
    check(lambda x: [torch.hypot(x[:, None], x)], x)


def test_bits_of_a_number_and_a_tensor():
    x = integers(5).abs()
    check(lambda x: [3 & x, 3 | x, 3 ^ x, 3 << x, 99 >> x], x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_activations(dtype):
    check(lambda x: [getattr(aten, n)(x) for n in ACTIVATIONS], torch.randn(3, 13).to(dtype) * 4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_binary_with_broadcast(dtype):
    check(
        lambda x, y: [getattr(aten, n)(x, y) for n in BINARY],
        torch.rand(3, 5).to(dtype) + 0.1,
        torch.randn(5).to(dtype),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_binary_with_number(dtype):
    check(
        lambda x: [getattr(aten, n)(x, 0.7) for n in WITH_NUMBER], torch.rand(3, 5).to(dtype) + 0.1
    )


def test_type_promotion():
    def mixed(i, j, f, h, s):
        return [
            torch.add(i, j, alpha=3),
            i / j.abs().clamp(min=1),
            i * 2.5,
            (f > 0) + (h > 0),
            (f > 0) * h,
            f + h,
            f + s,
            h + s,
            i + f,
            2**f,
            torch.rsub(f, 2.5, alpha=2),
            i < f,
            h < f,
        ]

    check(
        mixed,
        integers(4, 3),
        integers(4, 1, dtype=torch.int32),
        torch.randn(4, 3),
        torch.randn(3).bfloat16(),
        torch.tensor(2.5, dtype=torch.float64),
    )


def test_integers_are_bitwise():
    def whole(i, j):
        k = j.abs() + 1
        return [
            i & j,
            i | j,
            i ^ j,
            ~i,
            i << 2,
            i >> 1,
            i**2,
            i**3,
            i**4,
            i % k,
            torch.fmod(i, k),
            i // k,
            torch.div(i, k, rounding_mode="trunc"),
            torch.div(i, k, rounding_mode="floor"),
            i.sign(),
            ~(i > 0),
        ]

    check(whole, integers(4, 3), integers(4, 3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_selection(dtype):
    def chosen(x, y, m):
        return [
            torch.where(x > 0, x, y),
            torch.where(x > y, 1.5, y),
            torch.where(x > y, x, float("-inf")),
            x.masked_fill(m > 0, float("-inf")),
            x.clamp(-1, 1),
            x.clamp(min=0),
            torch.clamp(x, max=y),
            x.clamp_min(0.5),
            torch.logical_and(x, m),
            torch.logical_or(x > 0, m),
            torch.logical_xor(x > 0, y),
        ]

    check(chosen, values(4, 7, dtype=dtype), torch.randn(7).to(dtype), torch.randn(4, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_powers_and_mixtures(dtype):
    x, y, z = (torch.rand(4, 3).to(dtype) + 0.2 for _ in range(3))
    check(
        lambda x, y, z: [
            x**2,
            x**3,
            x**0.5,
            x**-1,
            x**-0.5,
            x**-2,
            x**2.5,
            torch.lerp(x, y, 0.3),
            torch.lerp(x, y, 0.8),
            torch.lerp(x, y, z),
            torch.addcmul(x, y, z, value=0.5),
            torch.addcdiv(x, y, z, value=2),
            torch.hypot(x, y),
            torch.logit(x, 1e-3),
        ],
        x,
        y,
        z,
    )


def test_casts_round():
    check(
        lambda x: [
            x.to(torch.bfloat16),
            x.to(torch.float64),
            x.to(torch.int64),
            x.to(torch.bool),
            x.half().float(),
        ],
        2 * torch.randn(4, 3),
        rounds=True,
    )


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_keeps_its_tails(approximate):
    x = torch.linspace(-12, 12, 201)
    check(
        lambda g, x: [
            F.gelu(x, approximate=approximate),
            aten.gelu_backward(g, x, approximate=approximate),
        ],
        torch.randn(201),
        x,
        ulps=16,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_activations(dtype):
    def gradients(g, x):
        return [
            aten.silu_backward(g, x),
            aten.sigmoid_backward(g, x.sigmoid()),
            aten.tanh_backward(g, x.tanh()),
            aten.threshold_backward(g, x, 0),
            aten.leaky_relu_backward(g, x, 0.1, False),
            aten.elu_backward(g, 1.0, 1.0, 1.0, False, x),
            aten.hardtanh_backward(g, x, -1, 1),
            aten.hardsigmoid_backward(g, x),
            aten.hardswish_backward(g, x),
            aten.mish_backward(g, x),
            aten.softplus_backward(g, x, 1.0, 20.0),
        ]

    check(gradients, torch.randn(7, 9).to(dtype), 3 * torch.randn(7, 9).to(dtype), ulps=16)


def test_gated_units():
    check(lambda x: F.glu(x, 1), torch.randn(3, 8, 5))
    check(lambda g, x: aten.glu_backward(g, x, 1), torch.randn(3, 4, 5), torch.randn(3, 8, 5))
    check(
        lambda x, w: [
            aten._prelu_kernel(x, w.view(1, 4, 1)),
            *aten._prelu_kernel_backward(x * 2, x, w.view(1, 4, 1)),
        ],
        torch.randn(3, 4, 5),
        torch.randn(4),
    )
    check(lambda x: [F.logsigmoid(x), *aten.log_sigmoid_forward(x)], 5 * torch.randn(7))
    x, g, nothing = 5 * torch.randn(7), torch.randn(7), torch.empty(0)  # what a GPU's forward keeps
    graph = lowered(lambda g, x, kept: aten.log_sigmoid_backward(g, x, kept), g, x, nothing)
    assert externs(graph) == []
    torch.testing.assert_close(run(graph, [g, x, nothing], exact=False)[0], g * torch.sigmoid(-x))


def test_empty_and_scalar():
    check(lambda x, y: [x + 1, x * y, y * 2, y.exp()], torch.randn(0, 3), torch.tensor(2.0))


def test_eager_numerics_marks_every_rounding():
    x = torch.randn(4, 3).bfloat16()
    marks = {
        numerics: [
            i.must_round
            for n in lowered(lambda x: x.exp() + 1, x, numerics=numerics).graph.nodes
            for i in n.body
            if type(i).__name__ == "Cast" and i.dtype.bits == 16
        ]
        for numerics in ("contract", "eager")
    }
    assert marks == {"contract": [False, False], "eager": [True, True]}


def test_unknown_dtype_stays_with_aten():
    z = torch.randn(4, dtype=torch.complex64)
    result = lowered(lambda z: torch.view_as_real(z * 2), z)
    targets = [n.target for n in result.graph.nodes]
    assert targets == ["aten.mul.Tensor", "aten.view_as_real.default"]
    assert torch.equal(run(result, [z], exact=False)[0], torch.view_as_real(z * 2))


def test_pairs_of_an_input_have_memory_of_their_own():
    """Somebody may write to it."""
    z = torch.randn(4, dtype=torch.complex64)
    result = lowered(lambda z: torch.view_as_real(z) + 1, z)
    assert result.graph.nodes[0].target == "aten.view_as_real_copy.default"


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("number", [3, 0.1, 7.3, 0.0, 0.03])
def test_a_gpu_divides_by_a_number_as_torch_does_there(monkeypatch, device, dtype, number):
    """It multiplies by the reciprocal in float64, rounded once."""
    of = call.spec_of
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(of(*a), device=device))
    x = torch.randn(100, dtype=torch.float64).to(dtype)
    quotient, _, mean = comps(
        lowered(lambda x: [x / number, x.div(number, rounding_mode="floor"), x.mean()], x)
    )
    for comp, divisor in ((quotient, number), (mean, 100)):
        assert {i.name for i in comp.body if isinstance(i, Op)} == {
            "div" if device == "cpu" else "mul"
        }
        if device != "cpu" and dtype != torch.float64:
            factor = next(i.value for i in comp.body if isinstance(i, Const))
            assert factor == (1 / torch.tensor(divisor, dtype=torch.float64)).float().item()


def test_what_a_backward_makes_again_is_rounded_as_in_the_forward():
    """There a cast to more bits is no gradient of one to fewer."""

    def backward(primals_1, tangents_1):
        again, gradient = (primals_1 * 0.3).float(), (tangents_1 * 0.3).float()
        return [again.exp(), gradient.exp()]

    x = torch.randn(4, 3).bfloat16()
    captured = replace(capture(backward, x, x.clone()), kind="backward")
    for node, name in zip(captured.module.graph.nodes, ("primals_1", "tangents_1")):
        node.name = name
    again, gradient = (
        [i.exact for n in lowering.lower(captured).graph.nodes for i in n.body
         if isinstance(i, Load) and i.buffer == f"mul{part}"] for part in ("", "_1")
    )  # fmt: skip
    assert again == [False] and gradient == [True]


@pytest.mark.parametrize(
    "x, y, dim",
    [
        (torch.randn(7, 3), torch.randn(1, 3), -1),
        (torch.randn(5, 3, 11), torch.randn(5, 3, 1), 1),
        (torch.randn(3, 13).bfloat16(), torch.randn(13, 3).T.bfloat16(), 0),
        (torch.arange(12).view(4, 3), torch.arange(12).view(4, 3) ** 2 - 50, 1),
        (torch.randn(0, 3), torch.randn(0, 3), -1),
        (torch.randn(7, 4)[:, 1:], torch.randn(21).view(7, 3), -1),
    ],
)
def test_a_cross_product_is_one_nest_that_reads_known_places(x, y, dim):
    result = check(lambda a, b: [torch.linalg.cross(a, b, dim=dim)], x, y)
    (comp,) = comps(result)
    assert sum(isinstance(i, Load) for i in comp.body) == 6
    assert not any(isinstance(i, Op) and i.name == "remainder" for i in comp.body)


def test_the_gradients_of_a_cross_product_are_cross_products():
    def gradients(x, y, g):
        out, back = torch.func.vjp(torch.linalg.cross, x, y)
        return [out, *back(g)]

    result = check(gradients, *(torch.randn(9, 3) for _ in range(3)))
    assert len(comps(result)) == 3

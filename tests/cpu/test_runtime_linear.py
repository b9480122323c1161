"""Linear layers by oneDNN: exact, up to date with the weight, packed only where allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import Extern
from torchweld.ir.parser import parse_graph
from torchweld.plan import cpu_products
from torchweld.plan.cpu_products import choose_products
from torchweld.plan.decisions import Plan
from torchweld.runtime.load import load
from torchweld.targets.find import target_of
from torchweld.targets.rates import favouring
from torchweld.templates.library.calls import (
    LINEAR,
    PACKED_LINEAR,
    cpu_calls,
    gpu_calls,
    linear_pieces,
)

GRAPH = """
graph layer {{
  buffer x : {dtype}[{m}, {k}] strides [{k}, 1] on cpu
  buffer w : {dtype}[{n}, {k}] strides [{k}, 1] on cpu{frozen}
  buffer b : {dtype}[{n}] strides [1] on cpu frozen
  buffer t : {dtype}[{m}, {n}] strides [{n}, 1] on cpu
  buffer y : {dtype}[1, {m}, {n}] strides [{mn}, {n}, 1] on cpu
  input x, w, b
  extern up t = "aten.addmm.default"(view(b, [{n}], [1], 0), {xv}, {wv}) {{
  }}
  comp act [i:{m}, j:{n}] {{
    %0 = load t[i, j] : {dtype}
    %1 = cast %0 : f32
    {body}
    store y[0, i, j] %9
  }}
  output view(y, [1, {m}, {n}], [{mn}, {n}, 1], 0)
}}"""
SILU = ["sigmoid %1 : f32", "mul %1 %2 : f32"]
GELU = [
    "const 0.5 : f32",
    "mul %2 %1 : f32",
    "const 0.7071067811865476 : f32",
    "mul %1 %4 : f32",
    "erf %5 : f32",
    "const 1.0 : f32",
    "add %6 %7 : f32",
    "mul %3 %8 : f32",
]
TANH_GELU = [
    "mul %1 %1 : f32",
    "mul %2 %1 : f32",
    "const 0.044715 : f32",
    "mul %3 %4 : f32",
    "add %1 %5 : f32",
    "const 0.7978845608028654 : f32",
    "mul %6 %7 : f32",
    "tanh %8 : f32",
    "const 1.0 : f32",
    "add %9 %10 : f32",
    "const 0.5 : f32",
    "mul %12 %1 : f32",
    "mul %13 %11 : f32",
]
CLAMPED = [*SILU, "const 5.0 : f32", "minimum %3 %4 : f32"]
SCALED = [*SILU, "const 1.5 : f32", "mul %3 %4 : f32"]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def layer(m, k, n, dtype="f32", body=SILU, frozen=" frozen"):
    xv, wv = f"view(x, [{m}, {k}], [{k}, 1], 0)", f"view(w, [{k}, {n}], [1, {k}], 0)"
    lines = [f"%{2 + i} = {text}" for i, text in enumerate(body)]
    last = len(body) + 1
    if dtype != "f32":
        lines.append(f"%{last + 1} = cast %{last} : {dtype}")
        last += 1
    text = GRAPH.format(
        m=m, k=k, n=n, mn=m * n, dtype=dtype, xv=xv, wv=wv, frozen=frozen, body="\n    ".join(lines)
    )
    return parse_graph(text.replace("store y[0, i, j] %9", f"store y[0, i, j] %{last}"))


def chosen(graph, kind="inference", **options):
    rates = {w: r for w, r in favouring("onednn").items() if not w.endswith("own")}
    target = replace(target_of("cpu"), rates=rates)
    made = choose_products(Plan(graph, ()), target, Options(**options), kind)
    return cpu_calls(made.graph, Options(**options))


def inputs(m, k, n, dtype=torch.float32):
    weight = torch.nn.Parameter((torch.randn(n, k) / k**0.5).to(dtype))
    return torch.randn(m, k).to(dtype), weight, torch.randn(n).to(dtype)


def error(value, exact):
    return float(((value.double() - exact).norm() / exact.norm()).detach())


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "m, k, n", [(1, 1031, 1024), (17, 768, 257), (33, 2000, 129), (515, 512, 64)]
)
@pytest.mark.parametrize("body, act", [(SILU, F.silu), (GELU, F.gelu)], ids=["silu", "gelu"])
@pytest.mark.parametrize("pack", [False, True], ids=["plain", "packed"])
def test_as_exact_as_eager(m, k, n, dtype, body, act, pack):
    graph = chosen(layer(m, k, n, dtype, body), pack_weights=pack)
    program = load(graph, {}, {}, Options(), static_inputs={1, 2})
    for _ in range(2):
        x, weight, bias = inputs(m, k, n, DTYPES[dtype])
        (y,) = program([x, weight, bias])
        exact = act(F.linear(x.double(), weight.detach().double(), bias.double()))[None]
        eager = act(F.linear(x, weight, bias))[None]
        assert y.dtype == x.dtype
        assert y.shape == exact.shape
        assert error(y, exact) <= 1.5 * error(eager, exact) + torch.finfo(x.dtype).eps


def targets(graph):
    return [n.target if isinstance(n, Extern) else "comp" for n in graph.nodes]


def activations(graph):
    return [n.args[3:] for n in graph.nodes if isinstance(n, Extern)]


def test_the_activation_moves_into_the_call():
    assert targets(chosen(layer(16, 768, 768))) == [LINEAR]
    assert activations(chosen(layer(16, 768, 768))) == [("swish", None)]
    assert activations(chosen(layer(16, 768, 768, body=GELU))) == [("gelu", "none")]


def test_types_without_instructions_are_not_asked_for(monkeypatch):
    monkeypatch.setattr(cpu_products, "narrow_types", lambda: frozenset((dtypes.bf16,)))
    assert LINEAR not in targets(chosen(layer(1, 1031, 1024, "bf16")))


@pytest.mark.parametrize("body", [CLAMPED, SCALED], ids=["clamped", "scaled"])
def test_another_function_stays_a_kernel(body):
    graph = chosen(layer(16, 768, 768, body=body))
    assert targets(graph) == [LINEAR, "comp"]
    assert activations(graph) == [("none", None)]


def test_a_reduction_in_pieces_takes_no_activation():
    assert targets(chosen(layer(512, 769, 768))) == [LINEAR, "comp"]
    assert targets(chosen(layer(16, 769, 768), pack_weights=True)) == [PACKED_LINEAR, "comp"]


def test_a_weight_in_pieces_is_copied_for_many_rows_only():
    assert targets(chosen(layer(511, 769, 768))) == ["aten.mm.default", "comp"]


@pytest.mark.parametrize(
    "width, sizes",
    [
        (1, [1]),
        (384, [384]),
        (385, [384, 1]),
        (512, [384, 128]),
        (768, [768]),
        (1024, [768, 256]),
        (3072, [768] * 4),
        (2048, [768, 768, 384, 128]),
    ],
)
def test_pieces_cover_the_reduction(width, sizes):
    pieces = linear_pieces(width, dtypes.f32)
    assert [p.stop - p.start for p in pieces] == sizes
    assert (pieces[0].start, pieces[-1].stop) == (0, width)
    assert linear_pieces(width, dtypes.bf16) == [slice(0, width)]


GRADIENT = """
graph gradient {
  buffer g : f32[40, 200] strides [200, 1] on cpu
  buffer w : f32[200, 390] strides [390, 1] on cpu
  buffer x : f32[40, 390] strides [390, 1] on cpu
  buffer dx : f32[40, 390] strides [390, 1] on cpu
  buffer dw : f32[200, 390] strides [390, 1] on cpu
  input g, w, x
  extern a dx = "aten.mm.default"({G}, {W}) {
  }
  extern b dw = "aten.mm.default"({T}, {X}) {
  }
  output view(dx, [40, 390], [390, 1], 0), view(dw, [200, 390], [390, 1], 0)
}"""
OPERANDS = {
    "{G}": "view(g, [40, 200], [200, 1], 0)",
    "{T}": "view(g, [200, 40], [1, 200], 0)",
    "{W}": "view(w, [200, 390], [390, 1], 0)",
    "{X}": "view(x, [40, 390], [390, 1], 0)",
}


def test_gradients_are_products_too():
    text = GRADIENT
    for name, view in OPERANDS.items():
        text = text.replace(name, view)
    graph = chosen(parse_graph(text), "backward")
    assert targets(graph) == [LINEAR, LINEAR]
    g, w, x = torch.randn(40, 200), torch.randn(200, 390), torch.randn(40, 390)
    dx, dw = load(graph, {}, {}, Options())([g, w, x])
    for mine, a, b in ((dx, g, w), (dw, g.T, x)):
        exact = a.double() @ b.double()
        assert error(mine, exact) <= 1.5 * error(a @ b, exact) + torch.finfo(x.dtype).eps


def test_eager_numerics_round_before_the_activation():
    assert targets(chosen(layer(16, 768, 768), numerics="eager")) == [LINEAR, "comp"]


@pytest.mark.parametrize(
    "graph, kind",
    [
        (layer(16, 768, 768), "forward"),
        (layer(64, 768, 768), "inference"),
        (layer(16, 768, 768, frozen=""), "inference"),
    ],
    ids=["training", "many rows", "a weight that changes"],
)
def test_what_is_not_packed(graph, kind):
    assert targets(chosen(graph, kind, pack_weights=True)) == [LINEAR]


def test_what_is_packed():
    assert targets(chosen(layer(16, 768, 768), pack_weights=True)) == [PACKED_LINEAR]


def test_a_small_product_stays_with_aten():
    assert targets(chosen(layer(2, 16, 16))) == ["aten.mm.default", "comp"]


@pytest.mark.parametrize("pack", [False, True], ids=["plain", "packed"])
def test_a_changed_weight_is_seen(pack):
    graph = chosen(layer(16, 768, 768), pack_weights=pack)
    program = load(graph, {}, {}, Options(), static_inputs={1, 2})
    x, weight, bias = inputs(16, 768, 768)
    before = program([x, weight, bias])[0]
    with torch.no_grad():
        weight.mul_(2)
    changed = program([x, weight, bias])[0]
    assert not torch.equal(before, changed)
    torch.testing.assert_close(changed[0], F.silu(F.linear(x, weight.detach(), bias)))
    weight.data = torch.randn(768, 768)
    torch.testing.assert_close(
        program([x, weight, bias])[0][0], F.silu(F.linear(x, weight.detach(), bias)),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def test_packing_works_in_inference_mode():
    program = load(
        chosen(layer(16, 768, 768), pack_weights=True), {}, {}, Options(), static_inputs={1, 2}
    )
    with torch.inference_mode():
        x, weight, bias = torch.randn(16, 768), torch.randn(768, 768), torch.randn(768)
        y = program([x, weight, bias])[0]
        torch.testing.assert_close(y[0], F.silu(F.linear(x, weight, bias)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "numerics", "target"),
    [
        (TANH_GELU, "contract", "aten._addmm_activation.default"),
        (TANH_GELU, "eager", "aten.addmm.default"),
        (GELU, "contract", "aten.addmm.default"),
        (SILU, "contract", "aten.addmm.default"),
    ],
    ids=["tanh", "tanh, rounded", "erf", "silu"],
)
def test_on_a_gpu_only_the_gelu_by_tanh_moves_into_the_product(body, numerics, target):
    """cublasLt's epilogue is that one."""
    graph = layer(64, 48, 32, "bf16", body)
    moved = {n: replace(b, device="cuda:0") for n, b in graph.buffers.items()}
    graph = replace(graph, buffers=moved)
    options = Options(numerics=numerics)
    first, *rest = gpu_calls(graph, options, "inference").nodes
    assert first.target == target
    assert (first.outputs == ("y",)) == (not rest) == (target != "aten.addmm.default")

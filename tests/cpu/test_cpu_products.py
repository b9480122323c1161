"""Products of float32 matrices by kernels of our own: as exact as eager's, in every layout, with
what follows them inside."""

from __future__ import annotations

import copy
import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld import pipeline
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import Comp, Extern
from torchweld.ir.parser import parse_graph
from torchweld.ir.printer import text as print_graph
from torchweld.plan import cpu_products
from torchweld.plan.cpu_products import choose_products
from torchweld.plan.decisions import Plan, RefusalRecord
from torchweld.plan.refusals import Reason
from torchweld.runtime.load import load
from torchweld.targets.find import target_of
from torchweld.targets.rates import favouring
from torchweld.templates import registry
from torchweld.templates.gemm.cpu.schedule import product_of

GRAPH = """
graph g {{
  buffer x : f32{x} on cpu
  buffer w : f32{w} on cpu
  buffer b : f32[{n}] strides [1] on cpu
  buffer t : f32[{m}, {n}] strides [{n}, 1] on cpu
  buffer y : f32{y} on cpu
  input x, w, b
  extern up t = "aten.addmm.default"(view(b, [{m}, {n}], [0, 1], 0), {xv}, {wv}) {{
  }}
  comp act [i:{m}, j:{n}] {{
    %0 = load t[i, j] : f32
    %1 = sigmoid %0 : f32
    %2 = mul %0 %1 : f32
    store y[i, j] %2
  }}
  output view(y, [{m}, {n}], {ys}, 0)
}}"""


def layer(m, k, n, turned):
    """silu(x @ w + b); `turned`: which of x, w and y lie in memory column by column."""
    rows = {"x": (m, k), "w": (k, n), "y": (m, n)}
    strides = {v: [1, r] if v in turned else [c, 1] for v, (r, c) in rows.items()}
    kinds = {v: f"[{r}, {c}] strides {strides[v]}" for v, (r, c) in rows.items()}
    xv, wv = (f"view({v}, {list(rows[v])}, {strides[v]}, 0)" for v in "xw")
    return parse_graph(GRAPH.format(m=m, k=k, n=n, xv=xv, wv=wv, ys=strides["y"], **kinds))


OWN = replace(target_of("cpu"), rates=favouring("own"))


@pytest.fixture(autouse=True)
def _whatever_is_faster_here(monkeypatch):
    monkeypatch.setattr(pipeline, "target_of", lambda device: OWN)


def chosen(plan):
    """With the products that our kernels take."""
    return choose_products(plan, OWN, Options(), "inference")


def compiled(graph):
    made = chosen(Plan(graph, ())).graph
    comps = [n for n in made.nodes if isinstance(n, Comp)]
    bundles = {c.name: registry.bundle_of(c, made.buffers, target_of("cpu")) for c in comps}
    return made, load(made, bundles, {}, Options())


def error(value, exact):
    return float((value.double() - exact).norm() / exact.norm())


LAYOUTS = ["", "x", "w", "y", "xw", "xwy"]
SIZES = [(8, 8192, 8), (17, 400, 97), (129, 193, 50), (100, 96, 481), (1031, 64, 47)]
# Each kernel takes half a second to compile: each layout with two of the sizes.
TWICE = [(*SIZES[(at + by) % 5], turned) for at, turned in enumerate(LAYOUTS) for by in (0, 2)]


@pytest.mark.parametrize(("m", "k", "n", "turned"), TWICE)
def test_as_exact_as_eager(m, k, n, turned):
    graph, program = compiled(layer(m, k, n, turned))
    assert [type(node) for node in graph.nodes] == [Comp]
    ours, eagers = [], []
    for seed in range(6):  # 64 sums, as the smallest has, scatter
        torch.manual_seed(seed)
        made = {"x": torch.randn(m, k), "w": torch.randn(k, n) / k**0.5}
        x, w = (v.t().contiguous().t() if name in turned else v for name, v in made.items())
        b = torch.randn(n)
        exact = F.silu(x.double() @ w.double() + b.double())
        (y,) = program([x, w, b])
        assert y.is_contiguous() != ("y" in turned)
        ours.append(error(y, exact))
        eagers.append(error(F.silu(torch.addmm(b, x, w)), exact))
    assert math.hypot(*ours) <= 1.5 * math.hypot(*eagers)


@pytest.mark.parametrize("m, k, n", [(2, 1031, 777), (3, 500, 777), (2, 7000, 65)])
def test_few_rows_column_by_column_are_as_exact_as_eagers_with_one_thread(m, k, n):
    """MKL adds up vectors there, where chains of 192 terms had 2.3 and 2.8 times its error."""
    _, program = compiled(layer(m, k, n, "xw"))
    ours, eagers = [], []
    with one_thread():
        for seed in range(4):
            torch.manual_seed(seed)
            x, w = torch.randn(k, m).t(), (torch.randn(n, k) / k**0.5).t()
            b = torch.zeros(n)
            exact = F.silu(x.double() @ w.double())
            ours.append(error(program([x, w, b])[0], exact))
            eagers.append(error(F.silu(x @ w), exact))
    assert math.hypot(*ours) <= 1.5 * math.hypot(*eagers)


@contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def narrow_layer(dtype, m, k, n, turned):
    """As `layer`, in a 16-bit type."""
    text = print_graph(layer(m, k, n, turned)).replace("f32", dtype.name)
    widened = f"%0 = load t[i, j] : {dtype.name}\n    %1 = sigmoid %0 : {dtype.name}"
    wide = f"%0 = load t[i, j] : {dtype.name}\n    %1 = cast %0 : f32\n    %2 = sigmoid %1 : f32"
    assert widened in text
    text = text.replace(widened, wide)
    last = f"%2 = mul %0 %1 : {dtype.name}\n    store y[i, j] %2"
    then = f"%3 = mul %1 %2 : f32\n    %4 = cast %3 : {dtype.name}\n    store y[i, j] %4"
    assert last in text
    return parse_graph(text.replace(last, then))


NARROW_SIZES = [(2, 1031, 300), (17, 400, 97), (129, 193, 50), (100, 96, 481)]
NARROW = [(dtype, *NARROW_SIZES[(2 * by + at) % 4], turned)
          for by, dtype in enumerate((dtypes.f16, dtypes.bf16))
          for at, turned in enumerate(("", "x", "w", "y", "xw"))]  # fmt: skip


@pytest.mark.parametrize(("dtype", "m", "k", "n", "turned"), NARROW)
def test_sixteen_bits_are_widened_where_they_are_packed(monkeypatch, dtype, m, k, n, turned):
    monkeypatch.setattr(cpu_products, "narrow_types", lambda: frozenset((dtype,)))
    graph, program = compiled(narrow_layer(dtype, m, k, n, turned))
    assert [type(node) for node in graph.nodes] == [Comp]
    kind = dtypes.to_torch(dtype)
    made = {"x": torch.randn(m, k).to(kind), "w": (torch.randn(k, n) / k**0.5).to(kind)}
    x, w = (v.t().contiguous().t() if name in turned else v for name, v in made.items())
    b = torch.randn(n).to(kind)
    exact = F.silu(x.double() @ w.double() + b.double())
    (y,) = program([x, w, b])
    assert error(y, exact) <= 0.5 * torch.finfo(kind).eps


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_few_rows_of_bfloat16_are_multiplied_as_they_lie(monkeypatch, rows):
    monkeypatch.setattr(cpu_products, "narrow_types", frozenset)
    torch._dynamo.reset()
    layer = torch.nn.Linear(1031, 700).bfloat16()
    fused, x = torchweld.fuse(lambda x: F.silu(layer(x))), torch.randn(rows, 1031).bfloat16()
    with torch.no_grad():
        weight, bias = layer.weight.double(), layer.bias.double()
        exact = F.silu(F.linear(x.double(), weight, bias))
        assert error(fused(x), exact) <= 0.5 * torch.finfo(torch.bfloat16).eps
    assert [type(n) for r in torchweld.records(fused) for n in r.graph.nodes] == [Comp]


@pytest.mark.parametrize(
    "m, k, n", [(0, 8, 8), (2, 0, 8), (1, 8, 0), (3, 5, 7), (1, 1, 1), (2, 17, 1)]
)
def test_products_of_next_to_nothing(m, k, n):
    torch._dynamo.reset()
    x, w = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    fused = torchweld.fuse(lambda x, w: (x @ w).relu())
    torch.testing.assert_close(fused(x, w), (x @ w).relu())
    assert torchweld.records(fused)


def test_a_row_times_a_matrix_whose_columns_lie_apart(monkeypatch):
    monkeypatch.setattr(cpu_products, "narrow_types", lambda: frozenset((dtypes.f16,)))
    torch._dynamo.reset()
    x, w = torch.randn(1, 1031).half(), (torch.randn(1031, 700) / 32).half()
    fused = torchweld.fuse(lambda x, w: (x @ w).relu())
    assert error(fused(x, w), (x.double() @ w.double()).relu()) < 4e-4
    assert all(isinstance(n, Comp) for r in torchweld.records(fused) for n in r.graph.nodes)


def test_what_is_joined_is_on_record():
    graph = layer(64, 128, 128, "")
    apart = RefusalRecord("up", "act", Reason.EXTERN, "aten.addmm.default", 4 * 64 * 128)
    made = chosen(Plan(graph, (apart,)))
    (fusion,) = made.decisions
    (comp,) = made.graph.nodes
    assert (fusion.kernel, fusion.members) == (comp.name, ("up", "act"))
    assert fusion.bytes_before - fusion.bytes_after == 2 * apart.bytes_at_stake
    assert fusion.saved_us > 0


def test_what_little_work_or_one_row_across_columns_needs_is_the_library():
    row, small = layer(1, 4096, 4096, ""), layer(16, 16, 16, "")
    for graph in (row, small):
        kept = chosen(Plan(graph, ())).graph
        assert [type(node) for node in kept.nodes] == [Extern, Comp]


def test_few_rows_of_a_size_that_varies_are_the_librarys():
    torch._dynamo.reset()
    layer = torch.nn.Linear(512, 700)
    fused = torchweld.fuse(layer, dynamic=True)
    with torch.no_grad():
        for rows in (3, 4):
            x = torch.randn(rows, 512)
            torch.testing.assert_close(fused(x), layer(x))
    assert all(isinstance(n, Extern) for r in torchweld.records(fused) for n in r.graph.nodes)


@pytest.mark.parametrize("m, turned, form", [
    (1, "w", "<1, TW_BY_DOTS>"), (4, "", "<4, TW_BY_STEPS>"), (8, "w", "<8, TW_BY_DOTS>"),
])  # fmt: skip
def test_few_rows_are_compiled_in_the_one_form_that_is_called(m, turned, form):
    """gcc takes 15 times as long for all sixteen forms."""
    made = chosen(Plan(layer(m, 3333, 200, turned), ())).graph
    bundle = registry.bundle_of(made.nodes[0], made.buffers, OWN)
    assert f"tw_multiply_few{form}(a, " in bundle.sources[0].text


FEW_SIZES = [(1, 3333, 200), (2, 1031, 777), (4, 6150, 131), (8, 191, 401), (301, 2000, 3)]
FEW = [(*size, turned) for at, size in enumerate(FEW_SIZES)
       for by, turned in enumerate(("", "w", "y", "xw", "wy")) if (at + by) % 5 < 3]  # fmt: skip


@pytest.mark.parametrize(("m", "k", "n", "turned"), FEW)
def test_few_rows_are_as_exact(m, k, n, turned):
    graph, program = compiled(layer(m, k, n, turned))
    library = m == 1 and "w" not in turned
    assert type(graph.nodes[0]) is (Extern if library else Comp)
    made = {"x": torch.randn(m, k), "w": torch.randn(k, n) / k**0.5}
    x, w = (v.t().contiguous().t() if name in turned else v for name, v in made.items())
    b = torch.randn(n)
    exact = F.silu(x.double() @ w.double() + b.double())
    (y,) = program([x, w, b])
    assert error(y, exact) <= 1.5 * error(F.silu(torch.addmm(b, x, w)), exact)


def test_a_result_that_others_read_is_stored():
    text = """
    graph g {
      buffer x : f32[64, 128] strides [128, 1] on cpu
      buffer w : f32[128, 128] strides [128, 1] on cpu
      buffer t : f32[64, 128] strides [128, 1] on cpu
      buffer y : f32[64, 128] strides [128, 1] on cpu
      input x, w
      extern up t = "aten.mm.default"(X, W) {
      }
      comp act [i:64, j:128] {
        %0 = load t[i, j] : f32
        %1 = exp %0 : f32
        store y[i, j] %1
      }
      output view(t, [64, 128], [128, 1], 0), view(y, [64, 128], [128, 1], 0)
    }"""
    graph, program = compiled(parsed(text))
    assert [product_of(n) is not None for n in graph.nodes] == [True, False]
    x, w = torch.randn(64, 128), torch.randn(128, 128) / 16
    t, y = program([x, w])
    torch.testing.assert_close(t, x @ w)
    torch.testing.assert_close(y, t.exp())


def test_a_factor_that_is_overwritten_before_the_reader_keeps_the_product_where_it_is():
    text = """
    graph g {
      buffer x : f32[64, 128] strides [128, 1] on cpu
      buffer w : f32[128, 128] strides [128, 1] on cpu
      buffer t : f32[64, 128] strides [128, 1] on cpu
      buffer y : f32[64, 128] strides [128, 1] on cpu
      input x, w
      extern up t = "aten.mm.default"(X, W) {
      }
      comp clear [i:64, j:128] {
        %0 = const 0.0 : f32
        store x[i, j] %0
      }
      comp act [i:64, j:128] {
        %0 = load t[i, j] : f32
        %1 = exp %0 : f32
        store y[i, j] %1
      }
      output view(y, [64, 128], [128, 1], 0)
    }"""
    graph = chosen(Plan(parsed(text), ())).graph
    assert [product_of(n) is not None for n in graph.nodes] == [True, False, False]


def parsed(text):
    views = {"X": "view(x, [64, 128], [128, 1], 0)", "W": "view(w, [128, 128], [128, 1], 0)"}
    return parse_graph(text.replace("(X, W)", f"({views['X']}, {views['W']})"))


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(96, 200), torch.nn.Linear(200, 96, bias=False)

    def forward(self, x):
        heads = x.view(*x.shape[:2], 3, 32).transpose(1, 2)
        mixed = (heads @ heads.transpose(2, 3)).softmax(-1) @ heads
        x = x + mixed.transpose(1, 2).reshape(x.shape)
        return x + self.down(F.gelu(self.up(x)))


def gradients(call, model, x):
    """The result, and the gradients of the input and the parameters."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = call(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_in_training(dynamic):
    """Batches of products, sizes that change, and the two products of each gradient."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Layers()
    exact_model = copy.deepcopy(model).double()
    fused = torchweld.fuse(model, dynamic=dynamic)
    for length in (70, 81) if dynamic else (81,):
        x = torch.randn(4, length, 96)
        expected = gradients(exact_model, exact_model, x.double())
        for value, exact in zip(gradients(fused, model, x), expected):
            assert error(value, exact) < 2e-6


def test_user_written_sums_are_no_products():
    torch._dynamo.reset()
    x, y = torch.randn(64, 1, 512), torch.randn(1, 96, 512)
    fused = torchweld.fuse(lambda a, b: (a * b).sum(-1))
    exact = (x.double() * y.double()).sum(-1)
    assert error(fused(x, y), exact) <= 1.5 * error((x * y).sum(-1), exact)

"""The interpreter against torch: each kind of instruction, each mode, odd sizes and strides."""

import math

import pytest
import torch

from torchweld.core import dtypes
from torchweld.ir import interpret
from torchweld.ir.interpret import run_comp, run_graph
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp, parse_graph
from torchweld.ir.scalar import TABLE


def layout(name, *shape, dtype="f32"):
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    return Buffer(name, shape, dtypes.BY_NAME[dtype], tuple(strides))


def run(body, axes, outputs, exact=False, sizes=None, **buffers):
    comp = parse_comp(f"comp c [{axes}] {{\n{body}\n}}")
    layouts = {b.name: b for b in outputs}
    found = run_comp(comp, buffers, layouts, sizes or {}, exact)
    return found[outputs[0].name] if len(outputs) == 1 else found


SOFTMAX = """
  %0 = load x[i, j] : f32
  %1 = reduce.max[j] %0 : f32
  %2 = sub %0 %1 : f32
  %3 = exp %2 : f32
  %4 = reduce.sum[j] %3 : f32
  %5 = div %3 %4 : f32
  store y[i, j] %5"""


@pytest.mark.parametrize("rows, columns", [(0, 5), (5, 0), (1, 1), (7, 13), (3, 65)])
def test_softmax(rows, columns):
    x = torch.randn(rows, columns)
    y = run(SOFTMAX, f"i:{rows}, j:{columns}", [layout("y", rows, columns)], x=x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, torch.softmax(x, 1))


def test_exact_is_float64_and_ignores_rounding():
    x = torch.randn(5, 3, dtype=torch.bfloat16)
    body = """
      %0 = load x[i, j] : bf16
      %1 = cast %0 : f32
      %2 = const 0.1 : f32
      %3 = mul %1 %2 : f32
      %4 = cast.round %3 : bf16
      store y[i, j] %4"""
    outputs = [layout("y", 5, 3, dtype="bf16")]
    exact = run(body, "i:5, j:3", outputs, exact=True, x=x)
    assert exact.dtype == torch.float64
    assert torch.equal(exact, x.double() * 0.1)
    native = run(body, "i:5, j:3", outputs, x=x)
    assert torch.equal(native, (x.float() * 0.1).bfloat16())


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 6),
        torch.randn(6, 4).t(),
        torch.randn(4, 1).expand(4, 6),
        torch.randn(8, 13)[::2, 1::2],
    ],
    ids=["contiguous", "transposed", "expanded", "gaps"],
)
def test_strides_of_inputs_do_not_matter(x):
    body = "%0 = load x[i, j] : f32\n %1 = neg %0 : f32\n store y[j, i] %1"
    assert torch.equal(run(body, "i:4, j:6", [layout("y", 6, 4)], x=x), -x.t())


def test_flip_slice_and_offset():
    x = torch.randn(9)
    body = "%0 = load x[-2*i+8] : f32\n store y[i] %0"
    assert torch.equal(run(body, "i:4", [layout("y", 4)], x=x), x.flip(0)[::2][:4])
    body = "%0 = load x[i] : f32\n store y[-1*i+3] %0"
    assert torch.equal(run(body, "i:4", [layout("y", 4)], x=x), x[:4].flip(0))


PAD = """
  %0 = index i-2 : i64
  %1 = const 0 : i64
  %2 = const {n} : i64
  %3 = ge %0 %1 : b1
  %4 = lt %0 %2 : b1
  %5 = bit_and %3 %4 : b1
  %6 = load x[i-2] if %5 else 7.5 : f32
  store y[i] %6"""


@pytest.mark.parametrize("n", [0, 1, 5])
def test_guarded_load_is_a_pad(n):
    x = torch.randn(n)
    y = run(PAD.format(n=n), f"i:{n + 5}", [layout("y", n + 5)], x=x)
    assert torch.equal(y, torch.nn.functional.pad(x, (2, 3), value=7.5))


def test_guarded_load_of_a_scalar():
    body = """
      %0 = index i : i64
      %1 = const 1 : i64
      %2 = lt %0 %1 : b1
      %3 = load x[] if %2 else -inf : f32
      store y[i] %3"""
    y = run(body, "i:3", [layout("y", 3)], x=torch.tensor(2.0))
    assert y.tolist() == [2.0, -math.inf, -math.inf]


def test_embedding_and_gather():
    table, at = torch.randn(11, 5), torch.randint(0, 11, (7,), dtype=torch.int32)
    body = "%0 = load at[i] : i32\n %1 = load table[%0, j] : f32\n store y[i, j] %1"
    assert torch.equal(
        run(body, "i:7, j:5", [layout("y", 7, 5)], table=table, at=at), table[at.long()]
    )


@pytest.mark.parametrize(
    "combine, reduce", [("add", "sum"), ("max", "amax"), ("min", "amin"), ("mul", "prod")]
)
@pytest.mark.parametrize("exact", [False, True])
def test_scatter_with_initial_values(combine, reduce, exact):
    x, at, start = torch.randn(9, 3), torch.randint(0, 4, (9,)), torch.randn(4, 3)
    body = f"""
      %0 = load at[i] : i64
      %1 = load x[i, j] : f32
      store.{combine} y[%0, j] %1 init copy start"""
    y = run(body, "i:9, j:3", [layout("y", 4, 3)], exact=exact, x=x, at=at, start=start)
    expected = start.scatter_reduce(0, at[:, None].expand(9, 3), x, reduce)
    torch.testing.assert_close(y.float(), expected)


def test_a_combining_store_sums_the_axes_that_its_index_lacks():
    x = torch.randn(5, 7)
    y = run(
        "%0 = load x[i, j] : f32\n store.add y[j] %0 init 1.0", "i:5, j:7", [layout("y", 7)], x=x
    )
    torch.testing.assert_close(y, x.sum(0) + 1)


def test_guarded_store_leaves_the_rest():
    body = """
      %0 = index i : i64
      %1 = const 2 : i64
      %2 = lt %0 %1 : b1
      %3 = load x[i] : f32
      store y[i] %3 init -1.0 if %2"""
    y = run(body, "i:4", [layout("y", 4)], x=torch.ones(4))
    assert y.tolist() == [1, 1, -1, -1]


@pytest.mark.parametrize(
    "monoid, of",
    [
        ("max", lambda x: x.amax(1)),
        ("min", lambda x: x.amin(1)),
        ("sum", lambda x: x.sum(1)),
        ("prod", lambda x: x.prod(1)),
    ],
)
def test_reductions(monoid, of):
    x = torch.randn(6, 17)
    x[2, 3] = math.nan
    body = f"%0 = load x[i, j] : f32\n %1 = reduce.{monoid}[j] %0 : f32\n store y[i] %1"
    torch.testing.assert_close(run(body, "i:6, j:17", [layout("y", 6)], x=x), of(x), equal_nan=True)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["f32", "i64", "bf16"])
def test_arg_reductions_take_the_first_of_equals_and_nan(name, dtype):
    x = torch.randint(-2, 3, (40, 9)).to(dtypes.to_torch(dtypes.BY_NAME[dtype]))
    if x.is_floating_point():
        x[3, 4] = x[3, 6] = math.nan
    body = f"""
      %0 = load x[i, j] : {dtype}
      %1 = index j : i64
      %2 = reduce.{name}[j] %0 %1 : {dtype}
      %3 = pick.1 %2 : i64
      store y[i] %3"""
    y = run(body, "i:40, j:9", [layout("y", 40, dtype="i64")], x=x)
    assert torch.equal(y, getattr(torch, name)(x, 1))


def test_welford_is_the_variance_also_far_from_zero():
    x = torch.randn(4, 301) + 1000
    body = """
      %0 = load x[i, j] : f32
      %1 = reduce.welford[j] %0 : f32
      %2 = pick.0 %1 : f32
      %3 = pick.1 %1 : f32
      store mean[i] %2
      store m2[i] %3"""
    found = run(body, "i:4, j:301", [layout("mean", 4), layout("m2", 4)], x=x)
    torch.testing.assert_close(found["mean"], x.mean(1))
    torch.testing.assert_close(found["m2"] / 301, x.var(1, correction=0))


def test_logsumexp_of_a_masked_row_is_no_nan():
    x = torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]])
    body = """
      %0 = load x[i, j] : f32
      %1 = reduce.logsumexp[j] %0 : f32
      %2 = pick.0 %1 : f32
      %3 = pick.1 %1 : f32
      %4 = log %3 : f32
      %5 = add %2 %4 : f32
      store y[i] %5"""
    torch.testing.assert_close(run(body, "i:2, j:2", [layout("y", 2)], x=x), torch.logsumexp(x, 1))


@pytest.mark.parametrize(
    "monoid, expected", [("sum", 0.0), ("prod", 1.0), ("max", -math.inf), ("min", math.inf)]
)
def test_a_reduction_over_nothing_is_the_identity(monoid, expected):
    body = f"%0 = load x[i, j] : f32\n %1 = reduce.{monoid}[j] %0 : f32\n store y[i] %1"
    y = run(body, "i:3, j:0", [layout("y", 3)], x=torch.empty(3, 0))
    assert y.tolist() == [expected] * 3


def test_reducing_a_value_along_an_axis_that_it_lacks():
    body = "%0 = load x[i] : f32\n %1 = reduce.sum[j] %0 : f32\n store y[i] %1"
    assert run(body, "i:3, j:5", [layout("y", 3)], x=torch.ones(3)).tolist() == [5.0] * 3


@pytest.mark.parametrize(
    "monoid, of", [("sum", torch.cumsum), ("max", lambda x, d: torch.cummax(x, d)[0])]
)
@pytest.mark.parametrize("dtype", ["f32", "i32"])
@pytest.mark.parametrize("length", [0, 1, 33])
def test_scans(monoid, of, dtype, length):
    x = (torch.randn(2, length) * 9).to(dtypes.to_torch(dtypes.BY_NAME[dtype]))
    body = f"%0 = load x[i, j] : {dtype}\n %1 = scan.{monoid}[j] %0 : {dtype}\n store y[i, j] %1"
    y = run(body, f"i:2, j:{length}", [layout("y", 2, length, dtype=dtype)], x=x)
    assert torch.equal(y, of(x, 1).to(x.dtype))


def test_philox_is_uniform_and_repeats():
    body = """
      %0 = const 42 : i64
      %1 = index 100*i+j : i64
      %2 = philox %0 %1 : f32
      store y[i, j] %2"""
    y = run(body, "i:100, j:100", [layout("y", 100, 100)])
    assert y.min() >= 0 and y.max() < 1 and abs(y.mean() - 0.5) < 0.02
    assert y.unique().numel() > 9900
    assert torch.equal(y, run(body, "i:100, j:100", [layout("y", 100, 100)]))


def test_symbols_and_constant_outputs():
    body = "%0 = index i+s0 : i64\n store y[i] %0"
    y = run(body, "i:s0", [layout("y", 4, dtype="i64")], sizes={"s0": 4})
    assert y.tolist() == [4, 5, 6, 7]
    full = run("%0 = const 2.5 : f32\n store y[i, j] %0", "i:2, j:3", [layout("y", 2, 3)])
    assert torch.equal(full, torch.full((2, 3), 2.5))


def test_writes_into_given_tensors():
    comp = parse_comp("comp c [i:3] {\n %0 = load x[i] : f32\n store y[i] %0\n}")
    y = torch.zeros(6)[::2]
    found = run_comp(comp, {"x": torch.ones(3)}, {}, {}, into={"y": y})
    assert found["y"] is y and y.tolist() == [1, 1, 1]


def test_large_intermediates_come_in_pieces(monkeypatch):
    body = """
      %0 = load a[i, k] : f32
      %1 = load b[k, j] : f32
      %2 = maximum %0 %1 : f32
      %3 = reduce.sum[k] %2 : f32
      store.add y[i, j] %3 init 0.0"""
    a, b = torch.randn(13, 40), torch.randn(40, 11)
    monkeypatch.setattr(interpret, "PIECE_ELEMENTS", 64)
    shapes = []
    monkeypatch.setattr(interpret, "_run_piece", spy(interpret._run_piece, shapes))
    torch.testing.assert_close(
        run(body, "i:13, j:11, k:40", [layout("y", 13, 11)], a=a, b=b),
        torch.maximum(a[:, None], b.T).sum(-1),
    )
    assert len(shapes) > 2


def spy(function, calls):
    def called(*args):
        calls.append(args)
        return function(*args)

    return called


GRAPH = """
graph g {
  symbol s0 = ["size", 0, 0] hint 4
  symbol s1 = ["floor_div", s0, 2] hint 2
  buffer x : bf16[s0, 3] strides [3, 1] on cpu
  buffer w : bf16[3, 5] strides [5, 1] on cpu
  buffer h : bf16[s0, 5] strides [5, 1] on cpu
  buffer y : f32[s0, 5] strides [5, 1] on cpu
  input x, w, _
  extern mm h = "aten.mm.default"(view(x, [s0, 3], [3, 1], 0), view(w, [3, 5], [5, 1], 0)) {
  }
  comp relu [i:s0, j:5] {
    %0 = load h[i, j] : bf16
    %1 = cast %0 : f32
    %2 = const 0.0 : f32
    %3 = maximum %1 %2 : f32
    store y[i, j] %3
  }
  output view(y, [5, s0], [1, 5], 0), s1, None, 3
}"""


@pytest.mark.parametrize("exact", [False, True])
def test_a_graph(exact):
    x, w = torch.randn(8, 3).bfloat16(), torch.randn(3, 5).bfloat16()
    y, half, nothing, three = run_graph(parse_graph(GRAPH), (x, w, 7), exact=exact)
    expected = (x.double() @ w.double()) if exact else (x @ w).float()
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected.relu().t())
    assert (half, nothing, three) == (4, None, 3)


def test_exact_keeps_gaps_and_expanded_inputs():
    graph = parse_graph("""graph g {
      buffer x : f32[2, 3] strides [0, 2] on cpu
      input x
      output view(x, [3], [2], 0)
    }""")
    x = torch.arange(8.0)[1:7:2].expand(2, 3)
    (y,) = run_graph(graph, (x,))
    assert y.tolist() == [1, 3, 5] and y.dtype == torch.float64


def test_a_place_in_a_buffer_without_elements():
    """The same at all points, of which there are none."""
    graph = parse_graph("""
graph g {
  buffer x : f32[0] strides [1] on cpu
  buffer at : i64[0] strides [1] on cpu
  buffer y : f32[0] strides [1] on cpu
  input x, at
  comp a [i:0] {
    %0 = load x[0] : f32
    %1 = load at[0] : i64
    %2 = load x[%1] : f32
    %3 = add %0 %2 : f32
    store y[i] %3
  }
  output view(y, [0], [1], 0)
}
""")
    (found,) = run_graph(graph, [torch.empty(0), torch.empty(0, dtype=torch.int64)])
    assert found.shape == (0,)


@pytest.mark.parametrize("name", ["remainder", "fmod"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_remainders_of_any_quotient(name, dtype):
    """Vectors of torch's give NaN where the quotient is beyond float32."""
    a = torch.tensor([6.0, -6.5, 0.0, float("inf"), float("nan")] * 16).to(dtype)
    b = torch.full_like(a, torch.finfo(torch.float32).tiny)
    found, one = TABLE[name].meaning(a, b), getattr(torch, name)
    wanted = torch.stack([one(*pair) for pair in zip(a, b)])
    assert torch.equal(found.isnan(), wanted.isnan()) and found.isnan().sum() == 32
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num()) and found.dtype == dtype
    by_zero = TABLE[name].meaning(a, torch.zeros_like(a))
    assert by_zero.isnan().all()

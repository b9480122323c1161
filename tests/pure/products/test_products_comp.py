"""Library calls written as Comps: windows on buffers as loops, the elements that torch would
read."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchweld.core import dtypes
from torchweld.ir.check import check_comp
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Buffer, Extern, View
from torchweld.ir.printer import text
from torchweld.ir.size import evaluate, symbol
from torchweld.templates.gemm.comp import product_comp, window

S = symbol("s0")


def dense(name: str, *shape, dtype=dtypes.bf16) -> Buffer:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return Buffer(name, shape, dtype, tuple(reversed(strides)))


def places(tensor, buffer: Buffer, sizes) -> list[int]:
    """Flat offsets of a window's elements, in order, by its loops."""
    found = []
    shape = [range(evaluate(a.extent, sizes)) for dim in tensor.dims for a in dim]
    atoms = [a for dim in tensor.dims for a in dim]
    for point in itertools.product(*shape):
        index = [evaluate(b, sizes) for b in tensor.base]
        for atom, i in zip(atoms, point):
            for d, step in atom.steps:
                index[d] += i * evaluate(step, sizes)
        extents = [evaluate(n, sizes) for n in buffer.shape]
        assert all(0 <= i < n for i, n in zip(index, extents))
        found.append(sum(i * evaluate(s, sizes) for i, s in zip(index, buffer.strides)))
    return found


def strided(view: View, sizes) -> list[int]:
    shape = [range(evaluate(n, sizes)) for n in view.shape]
    strides = [evaluate(s, sizes) for s in view.strides]
    start = evaluate(view.offset, sizes)
    return [start + sum(i * s for i, s in zip(p, strides)) for p in itertools.product(*shape)]


X = dense("x", 2, 5, 24)
GAPS = Buffer("x", (2, 5, 24), dtypes.bf16, (200, 32, 1))


@pytest.mark.parametrize("buffer, view", [
    (X, View("x", (10, 24), (24, 1))),
    (X, View("x", (24, 10), (1, 24))),
    (X, View("x", (5, 24), (24, 1), 120)),
    (X, View("x", (2, 24), (120, 1), 48)),
    (X, View("x", (10, 8), (24, 1), 16)),
    (X, View("x", (10, 3, 8), (24, 8, 1))),
    (X, View("x", (240,), (1,))),
    (X, View("x", (10, 12), (24, 2), 1)),
    (X, View("x", (7, 24), (0, 1), 24)),
    (X, View("x", (1, 24), (77, 1))),
    (X, View("x", (4, 24), (24, 1), 0)),
    (GAPS, View("x", (2, 5, 24), (200, 32, 1))),
    (GAPS, View("x", (5, 24), (32, 1), 200)),
    (Buffer("x", (4, 6), dtypes.bf16, (1, 4)), View("x", (6, 4), (4, 1))),
    (dense("x", S, 3, 8), View("x", (S * 3, 8), (8, 1))),
    (dense("x", 4, S, 8), View("x", (S * 4, 8), (8, 1))),
    (dense("x", S, 24), View("x", (24, S), (1, 24))),
    (dense("x", 1, S, 24), View("x", (S, 24), (24, 1))),
])  # fmt: skip
def test_window(buffer, view):
    found = window(view, buffer)
    assert found is not None and found.shape == view.shape
    for sizes in ({"s0": 2}, {"s0": 7}):
        assert places(found, buffer, sizes) == strided(view, sizes)


@pytest.mark.parametrize("buffer, view", [
    (X, View("x", (9, 24), (24, 1), 24 * 3)),  # begins inside one row of five, ends in the other
    (X, View("x", (16, 15), (15, 1))),  # rows of 15 in rows of 24
    (GAPS, View("x", (10, 24), (32, 1))),  # the gap after five rows
    (dense("x", S, 24), View("x", (S - 1, 24), (24, 1), 24 * S)),  # nobody knows
])  # fmt: skip
def test_no_window(buffer, view):
    assert window(view, buffer) is None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_windows_name_the_elements_of_as_strided(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    buffer = dense("x", *shape)
    count = torch.Size(shape).numel()
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    strides = data.draw(st.lists(st.integers(0, 8), min_size=len(sizes), max_size=len(sizes)))
    offset = data.draw(st.integers(0, count - 1))
    view = View("x", tuple(sizes), tuple(strides), offset)
    if max(strided(view, {})) >= count:
        return
    found = window(view, buffer)
    assert found is None or places(found, buffer, {}) == strided(view, {})


def call(target: str, *args, **kwargs) -> Extern:
    return Extern("p", f"aten.{target}.default", args, tuple(kwargs.items()), ("y",))


def whole(buffer: Buffer) -> View:
    return View(buffer.name, buffer.shape, buffer.strides)


CALLS = {
    "mm": ("mm", ((7, 13), (13, 5)), (7, 5), {}),
    "one row": ("mm", ((1, 13), (13, 5)), (1, 5), {}),
    "one column": ("mm", ((7, 13), (13, 1)), (7, 1), {}),
    "one term": ("mm", ((7, 1), (1, 5)), (7, 5), {}),
    "addmm": ("addmm", ((5,), (7, 13), (13, 5)), (7, 5), {"beta": 0.5, "alpha": -2}),
    "addmm of rows": ("addmm", ((7, 1), (7, 13), (13, 5)), (7, 5), {}),
    "no bias": ("addmm", ((7, 5), (7, 13), (13, 5)), (7, 5), {"beta": 0}),
    "bmm": ("bmm", ((3, 7, 13), (3, 13, 5)), (3, 7, 5), {}),
    "batch of one": ("bmm", ((1, 7, 13), (1, 13, 5)), (1, 7, 5), {}),
    "baddbmm": ("baddbmm", ((3, 1, 5), (3, 7, 13), (3, 13, 5)), (3, 7, 5), {"alpha": 3}),
    "linear": ("linear", ((2, 3, 13), (5, 13), (5,)), (2, 3, 5), {}),
    "linear of a vector": ("linear", ((13,), (5, 13)), (5,), {}),
}


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_mean_what_they_compute(name, dtype):
    target, shapes, result, kwargs = CALLS[name]
    kind = dtypes.BY_NAME[dtype]
    buffers = {n: dense(n, *s, dtype=kind) for n, s in zip("abc", shapes)}
    buffers["y"] = dense("y", *result, dtype=kind)
    node = call(target, *(whole(buffers[n]) for n in "abc"[: len(shapes)]), **kwargs)
    comp = product_comp(node, buffers)
    check_comp(comp, buffers)
    given_ = {n: torch.randn(buffers[n].shape).to(dtypes.to_torch(kind)) for n in comp.reads}
    if "beta" in kwargs and kwargs["beta"] == 0:
        given_["a"] = torch.full(shapes[0], torch.nan)
    wide = [given_[n].double() for n in "abc"[: len(shapes)]]
    function = getattr(torch.ops.aten, target).default
    exact = run_comp(comp, given_, buffers, {}, exact=True)["y"]
    torch.testing.assert_close(exact, function(*wide, **kwargs), rtol=1e-12, atol=1e-12)


def test_what_a_call_looks_like():
    buffers = {b.name: b for b in (X, dense("w", 7, 24), dense("y", 10, 7))}
    left, right = View("x", (10, 24), (24, 1)), View("w", (24, 7), (1, 24))
    made = text(product_comp(call("mm", left, right), buffers))
    assert made == """comp p [m0:2, m1:5, n:7, k:24] {
  %0 = load x[m0, m1, k] : bf16
  %1 = cast %0 : f32
  %2 = load w[n, k] : bf16
  %3 = cast %2 : f32
  %4 = mul %1 %3 : f32
  %5 = reduce.sum[k] %4 : f32
  %6 = cast %5 : bf16
  store y[5*m0+m1, n] %6
}"""


@pytest.mark.parametrize("case", ["two dtypes", "integers", "no window", "another call", "unused"])
def test_calls_without_a_comp(case):
    kind = dtypes.i64 if case == "integers" else dtypes.bf16
    other = dtypes.f32 if case == "two dtypes" else kind
    buffers = {b.name: b for b in (
        dense("a", 4, 6, dtype=kind), dense("b", 6, 8, dtype=other), dense("y", 4, 8, dtype=kind),
    )}  # fmt: skip
    left = View("a", (4, 6), (5, 1)) if case == "no window" else whole(buffers["a"])
    node = call("add" if case == "another call" else "mm", left, whole(buffers["b"]))
    if case == "unused":
        node = Extern("p", node.target, node.args, (), (None,))
    assert product_comp(node, buffers) is None

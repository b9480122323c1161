"""Simplification gives the same bits with fewer instructions; each rule does what its text says."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.check import check_comp
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Axis, Buffer, Comp, Store
from torchweld.ir.parser import parse_comp
from torchweld.ir.printer import text
from torchweld.ir.scalar import TABLE
from torchweld.ir.simplify import _number, simplify

HARD = (0.0, -0.0, 1.0, -1.0, 2.5, math.inf, -math.inf, math.nan, 1e-45, 3e38, 0.5, -7.0)
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, math.inf, math.nan)
FLOAT_OPS = (
    "neg",
    "abs",
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "minimum",
    "maximum",
    "fmin",
    "fmax",
    "sqrt",
    "floor",
)
BOOL_OPS = ("lt", "eq", "isnan", "logical_not", "bit_and", "bit_or", "where")


def simplified(body, axes="i:8, j:6"):
    comp = simplify(parse_comp(f"comp c [{axes}] {{\n{body}\n}}"))
    return [line.strip() for line in text(comp).splitlines()[1:-1]]


@pytest.mark.parametrize(
    "body, expected",
    [
        ("%0 = load x[i] : f32\n %1 = const 1.0 : f32\n %2 = mul %1 %0 : f32", "load x[i]"),
        ("%0 = load x[i] : f32\n %1 = const -0.0 : f32\n %2 = add %0 %1 : f32", "load x[i]"),
        ("%0 = load x[i] : i32\n %1 = const 0 : i32\n %2 = add %0 %1 : i32", "load x[i]"),
        ("%0 = load x[i] : i32\n %1 = const 0 : i32\n %2 = mul %0 %1 : i32", "const 0"),
        ("%0 = load x[i] : f32\n %1 = neg %0 : f32\n %2 = neg %1 : f32", "load x[i]"),
        ("%0 = load c[i] : b1\n %1 = load x[i] : f32\n %2 = where %0 %1 %1 : f32", "load x[i]"),
        ("%0 = load x[i] : bf16\n %1 = cast %0 : f32\n %2 = cast %1 : bf16", "load x[i]"),
        ("%0 = const 2.0 : f32\n %1 = const 3.0 : f32\n %2 = mul %0 %1 : f32", "const 6.0"),
        (
            "%0 = const 1.00390626 : f32\n %1 = const 0.0 : f32\n %2 = cast %0 : bf16",
            "const 1.0",
        ),
        ("%0 = const 0 : i64\n %1 = index i : i64\n %2 = load x[%1, %0] : f32", "load x[i, 0]"),
        ("%0 = index i : i64\n %1 = const 0 : i64\n %2 = maximum %0 %1 : i64", "index i"),
        ("%0 = index i : i64\n %1 = index 2*j+1 : i64\n %2 = add %0 %1 : i64", "index i+2*j+1"),
        ("%0 = index i-4 : i64\n %1 = const 4 : i64\n %2 = lt %0 %1 : b1", "const True"),
        ("%0 = index i : i64\n %1 = const 8 : i64\n %2 = ge %0 %1 : b1", "const False"),
        ("%0 = load x[i] : f32\n %1 = const 0.0 : f32\n %2 = pow %0 %1 : f32", "const 1.0"),
    ],
)
def test_rules(body, expected):
    lines = simplified(f"{body}\n store y[i] %2")
    assert len(lines) == 2 and expected in lines[0]


@pytest.mark.parametrize("body", [
    "%0 = load x[i] : f32\n %1 = const 0.0 : f32\n %2 = add %0 %1 : f32",  # -0.0 + 0.0 is 0.0
    "%0 = load x[i] : f32\n %1 = const -0.0 : f32\n %2 = sub %0 %1 : f32",
    "%0 = load x[i] : f32\n %1 = const 0.0 : f32\n %2 = mul %0 %1 : f32",  # NaN and infinities
    "%0 = load x[i] : f32\n %1 = cast %0 : bf16\n %2 = cast %1 : f32",  # rounds
    "%0 = load x[i] : i64\n %1 = cast %0 : f32\n %2 = cast %1 : f64",  # i64 does not fit into f32
    "%0 = load x[i] : f32\n %1 = const 0.5 : f32\n %2 = pow %0 %1 : f32",
    "%0 = index i : i64\n %1 = const 7 : i64\n %2 = lt %0 %1 : b1",
    "%0 = const 1 : i64\n %1 = const 0 : i64\n %2 = floor_div %0 %1 : i64",
])  # fmt: skip
def test_what_must_stay(body):
    assert len(simplified(f"{body}\n store y[i] %2")) == 4


def test_symbolic_extents_decide_comparisons():
    body = "%0 = index i : i64\n %1 = index s0 : i64\n %2 = lt %0 %1 : b1\n store y[i] %2"
    assert "const True" in simplified(body, "i:s0")[0]
    assert len(simplified(body.replace("index s0", "index s1"), "i:s0")) == 4


@pytest.mark.parametrize("monoid, dtype, identity", [
    ("sum", "f32", "0.0"), ("prod", "f32", "1.0"), ("max", "f32", "-inf"), ("min", "f16", "inf"),
    ("sum", "i64", "0"), ("max", "i32", "-2147483648"), ("min", "b1", "True"),
    ("max", "b1", "False"),
])  # fmt: skip
def test_a_reduction_of_nothing_is_a_number(monoid, dtype, identity):
    body = f"%0 = load x[i, 0] : {dtype}\n %1 = reduce.{monoid}[i] %0 : {dtype}\n store y[j] %1"
    comp = simplify(parse_comp(f"comp c [i:0, j:6] {{\n{body}\n}}"))
    assert f"const {identity}" in text(comp) and "load" not in text(comp)
    assert [a.name for a in comp.axes] == ["j"]  # or nothing would be stored


def test_picks_of_a_reduction_of_nothing_are_numbers():
    body = """
      %0 = load x[0] : f32
      %1 = reduce.welford[i] %0 : f32
      %2 = pick.0 %1 : f32
      %3 = pick.1 %1 : f32
      %4 = sub %2 %3 : f32
      store y[j] %4"""
    assert simplified(body, "i:0, j:6")[0] == "%0 = const 0.0 : f32"


def test_an_empty_axis_that_a_store_goes_along_stays():
    body = """
      %0 = load x[0] : f32
      %1 = reduce.sum[i] %0 : f32
      %2 = load at[i] : i64
      store.add y[%2] %1 init 0.0"""
    comp = simplify(parse_comp(f"comp c [i:0] {{\n{body}\n}}"))
    assert [a.name for a in comp.axes] == ["i"]


def test_decided_guards_disappear():
    body = """
      %0 = index i : i64
      %1 = const {limit} : i64
      %2 = lt %0 %1 : b1
      %3 = load x[i] if %2 else 7.0 : f32
      store y[i] %3 if %2"""
    assert simplified(body.format(limit=8)) == ["%0 = load x[i] : f32", "store y[i] %0"]
    assert simplified(body.format(limit=0))[1].endswith("const 7.0 : f32")


def test_a_choice_of_a_guarded_load_is_its_fill():
    body = """
      %0 = load c[i] : b1
      %1 = load x[i] if %0 else 0.0 : f32
      %2 = const 5.0 : f32
      %3 = where %0 %1 %2 : f32
      store y[i] %3"""
    assert simplified(body)[1] == "%1 = load x[i] if %0 else 5.0 : f32"


def test_dead_instructions_go_and_effects_stay():
    body = """
      %0 = load x[i] : f32
      %1 = load w[i] : f32
      %2 = exp %1 : f32
      %3 = load at[i] : i64
      store.add y[%3] %0 init 0.0"""
    assert simplified(body) == [
        "%0 = load x[i] : f32",
        "%1 = load at[i] : i64",
        "store.add y[%1] %0 init 0.0",
    ]


def _pick(draw, values):
    return draw(st.sampled_from(values))


@st.composite
def bodies(draw):
    """A random body over two hard inputs: every operation that a rule mentions."""
    b = BodyBuilder()
    i = affine.axis("i")
    floats = [b.load("x", (i,), dtypes.f32), b.load("y", (i,), dtypes.f32)]
    bools = [b.const(True, dtypes.b1), b.const(False, dtypes.b1)]
    for _ in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from((*FLOAT_OPS, *BOOL_OPS, "const", "round")))
        if name == "const":
            floats.append(b.const(_pick(draw, CONSTANTS), dtypes.f32))
        elif name == "round":
            floats.append(b.widen(b.cast(_pick(draw, floats), dtypes.bf16)))
        elif name == "where":
            floats.append(
                b.op("where", _pick(draw, bools), _pick(draw, floats), _pick(draw, floats))
            )
        else:
            row = TABLE[name]
            values = bools if "f" not in row.kinds else floats
            result = b.op(name, *(_pick(draw, values) for _ in range(row.arity)))
            (bools if row.result == "bool" or values is bools else floats).append(result)
    stores = (Store("f", (i,), floats[-1]), Store("b", (i,), bools[-1]))
    return Comp("c", (Axis("i", len(HARD) ** 2),), b.body, stores)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(bodies())
def test_the_bits_stay_the_same(comp):
    n = len(HARD) ** 2
    layouts = {
        "f": Buffer("f", (n,), dtypes.f32, (1,)),
        "b": Buffer("b", (n,), dtypes.b1, (1,)),
        "x": Buffer("x", (n,), dtypes.f32, (1,)),
        "y": Buffer("y", (n,), dtypes.f32, (1,)),
    }
    x, y = (
        t.reshape(-1) for t in torch.meshgrid(torch.tensor(HARD), torch.tensor(HARD), indexing="ij")
    )
    smaller = simplify(comp)
    check_comp(smaller, layouts)
    assert len(smaller.body) <= len(comp.body)
    before = run_comp(comp, {"x": x, "y": y}, layouts, {})
    after = run_comp(smaller, {"x": x, "y": y}, layouts, {})
    assert torch.equal(before["b"], after["b"])
    same_bits = before["f"].view(torch.int32) == after["f"].view(torch.int32)
    assert (same_bits | (before["f"].isnan() & after["f"].isnan())).all()


def test_an_extreme_whose_place_nobody_picks_is_a_plain_one():
    body = """comp extreme [i:4, j:5] {{
      %0 = load x[i, j] : f32
      %1 = index j : i64
      %2 = reduce.argmax[j] %0 %1 : f32
      %3 = pick.0 %2 : f32
      %4 = pick.1 %2 : i64
      store y[i] %3
      {}
    }}"""
    alone, both = (simplify(parse_comp(body.format(s))) for s in ("", "store at[i] %4"))
    assert [getattr(i, "monoid", None) for i in alone.body] == [None, "max"]
    assert both.body[2].monoid == "argmax"


class _Dispatched(TorchDispatchMode):
    """Counts what goes through it, as through a trace."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


PLACES = """
%0 = const 0.25 : f32
%1 = sqrt %0 : f32
%2 = cast %1 : f64
%3 = cast %2 : f16
%4 = const 5 : i64
%5 = const 7 : i64
%6 = lt %4 %5 : b1
%7 = add %4 %5 : i64
store y[i] %7 if %6
store z[i] %3
"""


def test_numbers_are_folded_outside_of_a_trace():
    """A stack of a loop's steps has thousands of them: 28 of 34 s of a first call were spent on
    tensors without memory."""
    _number.cache_clear()
    with _Dispatched() as seen:
        body = simplified(PLACES)
    assert not seen.count and len(body) == 4


def test_integers_are_compared_without_a_tensor(monkeypatch):
    _number.cache_clear()
    comparisons = "\n".join(f"%{k + 1} = {op} %0 %0 : b1" for k, op in enumerate(
        ("lt", "le", "eq", "ne", "ge", "gt")))  # fmt: skip
    stores = "\n".join(f"store y{k}[i] %{k}" for k in range(1, 7))
    body = simplified(f"%0 = const 3 : i64\n{comparisons}\n{stores}")
    assert _number.cache_info().misses == 0
    assert [line.split()[-1] for line in body if line.startswith("store")] == [
        "%0", "%1", "%1", "%0", "%1", "%0"]  # fmt: skip


def test_zeros_of_both_signs_are_other_numbers():
    for zero, expected in (("0.0", "inf"), ("-0.0", "-inf"), ("0.0", "inf")):
        body = simplified(f"%0 = const {zero} : f32\n%1 = reciprocal %0 : f32\nstore y[i] %1")
        assert body[0] == f"%0 = const {expected} : f32"

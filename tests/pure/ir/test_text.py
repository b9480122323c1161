"""The printer and the parser: round trips are exact, errors say where."""

import math

import pytest

from torchweld.core import dtypes
from torchweld.core.errors import InvalidIR
from torchweld.ir import affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Attr,
    Axis,
    Buffer,
    Comp,
    Extern,
    Graph,
    Op,
    Origin,
    Ref,
    Store,
    Symbol,
    View,
)
from torchweld.ir.parser import parse_comp, parse_graph
from torchweld.ir.printer import text
from torchweld.ir.size import symbol

s0, s1 = symbol("s0"), symbol("s1")
i, j = affine.axis("i"), affine.axis("j")

SOFTMAX = """\
comp softmax [i:1024, j:768] {
  %0 = load x[i, j] : f32
  %1 = reduce.max[j] %0 : f32
  %2 = sub %0 %1 : f32
  %3 = exp %2 : f32
  %4 = reduce.sum[j] %3 : f32
  %5 = div %3 %4 : f32
  store y[i, j] %5
}"""


def everything() -> Comp:
    """A Comp that uses every instruction and every field."""
    b = BodyBuilder()
    at = b.index(i * s0 + j * -2 + (s0 * s1 - 3))
    guard = b.op("lt", at, b.const(7, dtypes.i64))
    x = b.load("x", (i, Ref(at)), dtypes.bf16, guard, -math.inf, exact=True)
    wide = b.cast(b.cast(b.widen(x), dtypes.f16, must_round=True), dtypes.f32)
    best = b.reduce("argmax", (wide, at), ("j",))
    total = b.scan("sum", b.op("add", wide, b.const(-0.0, dtypes.f32)), "j")
    dice = b.emit(Op("philox", (at, at), dtypes.f32))
    scalar = b.load("layers.0.bias", (), dtypes.f32)
    result = b.op("mul", b.op("mul", total, dice), scalar)
    stores = (
        Store("y", (i, affine.constant(s0)), result, guard=guard),
        Store("z 1", (Ref(at),), b.pick(best, 1), "add", "x"),
        Store("w", (), b.pick(best, 0), "max", -math.inf),
    )
    origins = (Origin("aten.add.Tensor", 'a "quoted" module', "m.py:3"), Origin("aten.mul"))
    return Comp("add+mul", (Axis("i", s0 * 2 + 1), Axis("j", 5)), b.body, stores, origins)


def whole_graph() -> Graph:
    symbols = (Symbol("s0", ("size", 0, 1), 8), Symbol("s1", ("floor_div", s0 + 1, 2), 4))
    args = (
        View("x", (s0, 3), (3, 1), s0 * 2),
        2,
        -1,
        1.5,
        -math.inf,
        True,
        None,
        "mean",
        Attr("dtype", "bf16"),
        s1,
        (1, (s0,), ()),
    )
    extern = Extern(
        "mm",
        "aten.mm.default",
        args,
        (("alpha", 1e-05), ("beta", 0)),
        ("out", None),
        ("x",),
        (Origin("aten.mm"),),
    )
    buffers = {
        "x": Buffer("x", (s0, s1), dtypes.bf16, (s1, 1), "cuda:0", True),
        "apart": Buffer("apart", (4, 5), dtypes.bf16, (8, 1), "cuda:0", slack=3),
        "out": Buffer("out", (), dtypes.b1, ()),
    }
    outputs = (View("out", (), ()), s0 * s1, None, 3)
    return Graph("g", symbols, buffers, (everything(), extern), ("x", None), outputs)


def test_the_documented_example_reads_and_prints_back():
    assert text(parse_comp(SOFTMAX)) == SOFTMAX


def test_a_comp_round_trips_exactly():
    comp = everything()
    again = parse_comp(text(comp))
    assert again == comp
    assert text(again) == text(comp)  # tells -0.0 from 0.0


def test_a_graph_round_trips_exactly():
    graph = whole_graph()
    again = parse_graph(text(graph))
    assert again == graph
    assert dict(again.buffers) == dict(graph.buffers)


def test_an_empty_graph_round_trips():
    graph = Graph("empty", (), {}, (), (), ())
    assert parse_graph(text(graph)) == graph


def test_nan_is_printed_and_read():
    comp = parse_comp("comp c [] {\n %0 = const nan : f32\n store y[] %0\n}")
    assert math.isnan(comp.body[0].value)


def test_comments_and_blank_lines_are_skipped():
    assert parse_comp(SOFTMAX.replace("%1 =", "# a remark\n\n  %1 =")) == parse_comp(SOFTMAX)


@pytest.mark.parametrize(
    "bad, message",
    [
        ("%0 = load x[i, j] : f99", "line 2.*f99|f99.*line 2"),
        ("%1 = load x[i, j] : f32", "numbered in order.*line 2"),
        ("%0 = frobnicate %1 : f32", "frobnicate.*line 2"),
        ("%0 = load x[i*j] : f32", "not affine.*line 2"),
        ("%0 = load x[i, j : f32", "expected ','.*line 2"),
        ("%0 = load x[i] : f32 extra", "unexpected 'extra'.*line 2"),
        ("%0 = load x[i] ? 3", "cannot read.*line 2"),
        ("stare y[i] %0", "stare.*line 2"),
    ],
)
def test_errors_name_the_line(bad, message):
    with pytest.raises(InvalidIR, match=message):
        parse_comp(f"comp c [i:4, j:4] {{\n  {bad}\n}}")


def test_a_missing_brace_is_an_error():
    with pytest.raises(InvalidIR, match="too early"):
        parse_comp("comp c [i:4] {")

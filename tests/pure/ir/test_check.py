"""The checker accepts what the IR's grammar allows and refuses each violation by name."""

import pytest

from torchweld.core import dtypes
from torchweld.core.errors import InvalidIR
from torchweld.ir.check import check_comp, check_graph
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp, parse_graph

BUFFERS = {
    "x": Buffer("x", (4, 6), dtypes.f32, (6, 1)),
    "at": Buffer("at", (4,), dtypes.i64, (1,)),
    "y": Buffer("y", (4, 6), dtypes.f32, (6, 1)),
    "z": Buffer("z", (4,), dtypes.f32, (1,)),
}


def check(body):
    """`body` may leave out its first line, a plain load."""
    first = "" if body.startswith("%0") else "%0 = load x[i, j] : f32\n"
    check_comp(parse_comp(f"comp c [i:4, j:6] {{\n{first}{body}\n}}"), BUFFERS)


@pytest.mark.parametrize(
    "body",
    [
        "store y[i, j] %0",
        "%0 = load at[i] : i64\n %1 = load x[%0, j] : f32\n store y[i, j] %1",
        "store.add z[i] %0 init 0.0",
        "%1 = reduce.welford[j] %0 : f32\n %2 = pick.1 %1 : f32\n store z[i] %2",
        "%0 = const 1.0 : f32\n store y[i, j] %0",
        "%1 = const 0 : i64\n %2 = index j : i64\n %3 = lt %2 %1 : b1\n"
        " %4 = load x[i, j+100] if %3 : f32\n store y[i, j] %4",
        "%0 = load x[i, -1*j+5] : f32\n store y[i, j] %0",
    ],
)
def test_valid(body):
    check(body)


@pytest.mark.parametrize(
    "body, message",
    [
        (
            "%0 = neg %1 : f32\n %1 = load x[i, j] : f32\n store y[i, j] %0",
            "%1 is not computed before.*neg",
        ),
        ("%0 = load x[i, j] : bf16\n store y[i, j] %0", "x is f32"),
        ("%0 = load x[i] : f32\n store z[i] %0", "2 dimensions"),
        (
            "%0 = load x[i, j+1] : f32\n store y[i, j] %0",
            r"dimension 1: \[1, 6\] is outside \[0, 6\)",
        ),
        ("%0 = load x[i-1, j] : f32\n store y[i, j] %0", "outside"),
        ("store y[2*i, j] %0", "outside"),
        (
            "%1 = load x[%0, j] : f32\n store y[i, j] %1",
            "%0 is no integer",
        ),
        (
            "%1 = load x[i, j] if %0 : f32\n store y[i, j] %1",
            "guard is not b1",
        ),
        ("store z[i] %0", r"does not vary along \['j'\]"),
        ("store.add z[i] %0", "combines with nothing"),
        ("store.xor z[i] %0 init 0", "unknown combine"),
        ("%1 = add %0 %0 : f64\n store y[i, j] %1", "the result is f32"),
        ("%1 = lt %0 %0 : f32\n store y[i, j] %1", "the result is b1"),
        (
            "%1 = bit_and %0 %0 : f32\n store y[i, j] %1",
            "does not take f32",
        ),
        ("%1 = add %0 : f32\n store y[i, j] %1", "takes 2 arguments"),
        (
            "%1 = index j : i64\n %2 = add %0 %1 : i64\n store y[i, j] %0",
            "several types",
        ),
        (
            "%1 = where %0 %0 %0 : f32\n store y[i, j] %1",
            "condition is not b1",
        ),
        ("%1 = reduce.sum[k] %0 : f32\n store z[i] %1", "unknown axis k"),
        (
            "%1 = reduce.sum[] %0 : f32\n store y[i, j] %1",
            "axes, each once",
        ),
        (
            "%1 = reduce.mode[j] %0 : f32\n store z[i] %1",
            "unknown monoid",
        ),
        (
            "%1 = reduce.argmax[j] %0 : f32\n store z[i] %1",
            "arguments of types",
        ),
        (
            "%1 = reduce.welford[j] %0 : f32\n store z[i] %1",
            "several results",
        ),
        (
            "%1 = reduce.sum[j] %0 : f32\n %2 = pick.0 %1 : f32\n store z[i] %2",
            "has one result",
        ),
        ("%1 = scan.welford[j] %0 : f32\n store y[i, j] %1", "no scan"),
        ("%1 = reduce.logaddexp[j] %0 : f32\n store y[i, j] %1", "no reduction"),
        ("%0 = load y[j, i] : f32\n store y[i, j] %0", "written elsewhere by the same comp"),
        ("store y[i, j] %0\n store y[i, j] %0", "stored twice"),
        ("%0 = load w[i, j] : f32\n store y[i, j] %0", "unknown buffer w"),
        ("%0 = const 1.5 : i32\n store y[i, j] %0", "a float in an integer type"),
        ("%0 = index i : f32\n store y[i, j] %0", "an index is i64"),
        ("%0 = load x[i, j] : f32", "nothing is stored"),
    ],
)
def test_refusals_show_the_instruction(body, message):
    with pytest.raises(InvalidIR, match=message):
        check(body)


GRAPH = """graph g {{
  symbol s0 = ["size", 0, 0] hint 4
  buffer x : f32[s0, 6] strides [6, 1] on cpu
  buffer y : f32[s0, 6] strides [6, 1] on cpu
  buffer z : f32[s0, 6] strides [6, 1] on cpu
  input x
  {0}
  output view(z, [s0, {1}], [6, 1], 0)
}}"""
FIRST = "comp first [i:s0, j:6] {\n %0 = load x[i, j] : f32\n store y[i, j] %0\n}\n"
SECOND = "comp second [i:s0, j:6] {\n %0 = load y[i, j] : f32\n store z[i, j] %0\n}\n"


def test_a_valid_graph():
    check_graph(parse_graph(GRAPH.format(FIRST + SECOND, 6)))


@pytest.mark.parametrize(
    "nodes, columns, message",
    [
        (SECOND + FIRST, 6, "y is read before it is written"),
        (FIRST + FIRST + SECOND, 6, "y is written twice"),
        (FIRST, 6, "never written"),
        (FIRST + SECOND, 7, "outside the buffer's memory"),
        (FIRST.replace("s0", "s9") + SECOND, 6, "unknown symbol.*s9"),
        (FIRST.replace("x[i, j]", "x[i, k]") + SECOND, 6, r"unknown symbol \['k'\]"),
        (FIRST.replace("y[", "q[") + SECOND, 6, "q is no buffer"),
        (FIRST.replace("i:s0", "i:s0+1") + SECOND, 6, "outside"),
    ],
)
def test_graph_refusals(nodes, columns, message):
    with pytest.raises(InvalidIR, match=message):
        check_graph(parse_graph(GRAPH.format(nodes, columns)))

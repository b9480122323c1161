"""float8_e4m3fn and float8_e5m2 are moved and converted in kernels; all else stays ATen's."""

from __future__ import annotations

import pytest
import torch
from lowered import comps, externs, lowered, run

from torchweld.core import dtypes
from torchweld.ir.nodes import Cast
from torchweld.ir.parser import parse_graph
from torchweld.ir.printer import text
from torchweld.ir.simplify import holds

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
X = torch.randn(5, 7).bfloat16()


def casts(result) -> list[tuple[str, bool]]:
    found = (i for comp in comps(result) for i in comp.body if isinstance(i, Cast))
    return [(i.dtype.name, i.must_round) for i in found]


@pytest.mark.parametrize("dtype", (E4, E5), ids=str)
def test_a_cast_is_no_call_and_keeps_its_rounding(dtype):
    def round_trip(x):
        return x.to(dtype).to(x.dtype) + 1

    result, name = lowered(round_trip, X), dtypes.from_torch(dtype).name
    assert externs(result) == [] and (name, True) in casts(result)
    assert parse_graph(text(result.graph)) == result.graph
    assert torch.equal(run(result, [X], exact=False)[0], round_trip(X))


def test_of_two_formats_each_rounds():
    result = lowered(lambda x: x.to(E4).to(E5).to(E4), X)
    assert casts(result) == [("f8e4m3", True), ("f8e5m2", True), ("f8e4m3", True)]
    assert torch.equal(run(result, [X], exact=False)[0].float(), X.to(E4).to(E5).to(E4).float())


def test_what_moves_numbers_takes_them_as_they_are():
    b = torch.arange(252).to(torch.uint8).view(E4).view(7, 36)

    def program(a, b, mask):
        return torch.cat([a.t().to(E4), b], 1), torch.where(mask, b, torch.zeros((), dtype=E4))

    args = X, b, torch.rand(7, 36) < 0.5
    result = lowered(program, *args)
    assert externs(result) == []
    for found, eager in zip(run(result, args, exact=False), program(*args)):
        assert torch.equal(found.view(torch.uint8), eager.view(torch.uint8))


def test_arithmetic_and_other_formats_stay_with_aten():
    assert externs(lowered(lambda x: x.to(E4).abs(), X)) == ["aten.abs.default"]
    assert externs(lowered(lambda x: x.to(E4) == 1, X)) == ["aten.eq.Scalar"]
    other = lowered(lambda x: x.to(torch.float8_e4m3fnuz).to(x.dtype), X)
    assert externs(other) == ["aten._to_copy.default"] * 2


BITS = torch.randint(0, 120, (5, 8), dtype=torch.uint8)
VIEWS = {
    "weights in bytes": (lambda w: w.view(E4).float() * 2, BITS),
    "signed bytes": (lambda w: w.view(E5).float() + 1, BITS.to(torch.int8)),
    "codes": (lambda x: x.to(E4).view(torch.uint8) >> 4, X),
    "halves": (lambda x: x.view(torch.float16).view(torch.int16) & 7, X),
    "powers of two": (lambda s: (s.to(torch.int32) << 23).view(torch.float32) * 3, BITS),
}


@pytest.mark.parametrize("exact", (False, True))
@pytest.mark.parametrize(("function", "given"), VIEWS.values(), ids=VIEWS)
def test_the_same_bits_as_another_type(function, given, exact: bool):
    result = lowered(function, given)
    assert externs(result) == [] and parse_graph(text(result.graph)) == result.graph
    (found,) = run(result, [given], exact)
    assert torch.equal(found, function(given).to(found.dtype))


def test_a_view_of_another_size_stays_a_call():
    assert externs(lowered(lambda x: x.view(torch.uint8) + 1, X)) == ["aten.view_copy.dtype"]


@pytest.mark.parametrize("narrow", (dtypes.f8e4m3, dtypes.f8e5m2), ids=repr)
def test_types_that_hold_all_values(narrow):
    numbers = torch.arange(256).to(torch.uint8).view(dtypes.to_torch(narrow)).double()
    for wide in dtypes.ALL:
        there = numbers.to(dtypes.to_torch(wide)).double()
        fits = torch.equal(there.nan_to_num(), numbers.nan_to_num())
        assert holds(wide, narrow) == (fits and wide.is_float), wide
    for other in (dtypes.i8, dtypes.u8, dtypes.bf16, dtypes.f32):
        assert not holds(narrow, other)
    assert holds(narrow, dtypes.b1)

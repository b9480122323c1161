"""What a Triton kernel rounds as eager does, although its compiler could do otherwise."""

from __future__ import annotations

import math

import pytest

from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Cast
from torchweld.templates.pointwise_reduce.gpu.roundings import (
    are_coarse,
    compared_values,
    divides_a_reduction,
    narrowed_products,
    products_before_steps,
    products_in_differences,
    rounded_products,
    shared_products,
)

F32 = dtypes.f32
AT = (affine.axis("i0"),)


def loaded(body: BodyBuilder, *names: str):
    return [body.load(n, AT, F32) for n in names]


def test_products_that_several_read_are_rounded_once():
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    square, other = body.op("mul", x, x), body.op("mul", x, y)
    body.op("sub", body.op("round", square), square)
    body.op("add", other, y)
    assert shared_products(body.body, ()) == {square}
    assert shared_products(body.body, (other,)) == {square, other}


def test_both_sides_of_a_difference_are_two_reads():
    body = BodyBuilder()
    (x,) = loaded(body, "x")
    square = body.op("mul", x, x)
    body.op("sub", square, square)
    assert shared_products(body.body, ()) == {square}


def test_who_reads_a_choice_reads_what_it_chooses_from():
    """`cat` of two parts, less its mean over one element: zero, and NaN divided by zero."""
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    factor = body.const(1.5, F32)
    left, right = body.op("mul", x, factor), body.op("mul", y, factor)
    chosen = body.op("where", body.op("lt", x, y), left, right)
    body.op("sub", chosen, body.op("neg", body.op("where", body.op("lt", y, x), chosen, x)))
    assert shared_products(body.body, ()) == {left, right}


@pytest.mark.parametrize("step", ["round", "floor", "lt", "i8"])
def test_products_in_sums_before_a_step_are_rounded(step):
    """Quantisation: `(x / (largest * scale + 1e-8)).round()`."""
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    scaled = body.op("mul", x, body.const(1 / 127, F32))
    quotient = body.op("div", y, body.op("add", scaled, body.const(1e-8, F32)))
    if step == "i8":
        body.cast(quotient, dtypes.i8)
    else:
        body.op(step, quotient, *([x] if step == "lt" else []))
    other = body.op("mul", y, y)
    body.op("add", other, x)  # no step is taken from it
    assert products_before_steps(body.body, ()) == {scaled}


@pytest.mark.parametrize("extreme", ["max", "min", "argmin", "scan"])
def test_products_in_sums_that_an_extreme_is_taken_of_are_rounded(extreme):
    """The gradient of `((x - y) ** 2 + z ** 2).amin()` looks for the minimum among elements that
    another kernel computes: if none equals it, their number is zero, and the gradient NaN."""
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    squares = [body.op("mul", v, v) for v in (x, y)]
    total = body.op("add", *squares)
    if extreme == "scan":
        found = body.scan("max", total, "i0")
    elif extreme == "argmin":
        found = body.pick(body.reduce(extreme, (total, body.index(AT[0])), ("i0",)), 0)
    else:
        found = body.reduce(extreme, (total,), ("i0",))
    body.reduce("sum", (body.op("add", body.op("mul", x, y), y),), ("i0",))  # of no extreme
    negative = body.op("neg", found)
    assert products_before_steps(body.body, {negative}) == set(squares)
    kept = body.op("exp", body.op("sub", total, found))  # as a softmax does
    assert not products_before_steps(body.body, {kept})
    body.op("eq", total, found)
    assert products_before_steps(body.body, {kept}) == set(squares)


def test_what_is_compared():
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    root, product = body.op("sqrt", x), body.op("mul", x, y)
    body.op("lt", x, body.const(0.5, F32))
    body.op("ne", y, y)
    assert not compared_values(body.body)
    body.op("ge", root, y)
    marked = body.emit(Cast(product, F32, must_round=True))
    assert compared_values(body.body) == {root, y, product}
    total, largest = body.op("add", root, y), body.reduce("max", (root,), ("i0",))
    assert are_coarse(body.body, {total})
    assert not are_coarse(body.body, {marked, largest})


@pytest.mark.parametrize("narrow", [dtypes.bf16, dtypes.f16])
def test_products_that_are_rounded_to_16_bits_and_added(narrow):
    """A compiler that multiplies and adds in 16 bits makes one operation of the two."""
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    products = [body.op("mul", x, y), body.op("mul", x, x), body.op("mul", y, y)]
    chosen = body.op("where", body.op("lt", x, y), body.op("neg", products[0]), products[1])
    body.op("add", body.cast(body.cast(chosen, narrow), F32), y)
    body.op("add", products[2], y)  # in 32 bits
    body.op("exp", body.cast(body.cast(body.op("mul", x, y), narrow), F32))
    assert narrowed_products(body.body) == {*products[:2]}
    assert rounded_products(body.body, (), coarse=True) >= {*products[:2]}


def test_products_of_differences_are_rounded():
    """The mean of a square less the square of a mean is zero for one element."""
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    square = body.op("mul", x, x)
    body.op("sub", y, square)
    negated, scaled = body.op("mul", body.op("neg", x), y), body.op("mul", x, body.const(-0.3, F32))
    body.op("add", y, negated)
    body.op("add", scaled, y)
    body.op("add", body.op("mul", x, y), y)  # sums have nothing that cancels
    assert products_in_differences(body.body) == {square, negated, scaled}
    assert rounded_products(body.body, (), coarse=False) >= {square, negated, scaled}
    assert not rounded_products(body.body, (), coarse=True)


@pytest.mark.parametrize("factor,exact", [(0.5, True), (-4.0, True), (0.3, False), (0.0, False)])
def test_what_is_exact_needs_no_rounding(factor, exact):
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    product = body.op("mul", x, body.const(factor, F32))
    body.op("add", product, y)
    body.op("exp", product)
    assert shared_products(body.body, ()) == (set() if exact else {product})


@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_infinite_factors_have_no_exponent(factor):
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    product = body.op("mul", x, body.const(factor, F32))
    body.op("add", product, y)
    assert shared_products(body.body, (product,)) == {product}


def test_a_mean_is_a_division_of_a_reduction():
    body = BodyBuilder()
    x, y = loaded(body, "x", "y")
    total, count = body.reduce("sum", (x,), ("i0",)), body.const(7.0, F32)
    mean, each = body.op("div", total, count), body.op("div", y, count)
    assert divides_a_reduction(body.body, body.body[mean])
    assert not divides_a_reduction(body.body, body.body[each])

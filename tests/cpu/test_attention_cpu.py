"""Score nests in C++ against float64 and eager: every form, odd sizes, masks, strides, dtypes."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

import cpp_runner
from nest_cases import KEY_AXES, TEXTS, nest_case
from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.expand import with_values
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Axis, Buffer, Cast, Load
from torchweld.ir.normal_form import normalised
from torchweld.ir.parser import parse_comp
from torchweld.ir.simplify import simplify
from torchweld.ir.size import symbol
from torchweld.ir.views import contiguous_strides
from torchweld.targets.cpu import cpu_target
from torchweld.templates import registry
from torchweld.templates.attention.cpu.template import TEMPLATE
from torchweld.templates.gemm.choice import choose
from torchweld.templates.template import Problem

SIZES = (
    {},
    {"i": 1, "g": 1},
    {"i": 1, "g": 5, "l": 131},
    {"i": 100, "l": 300, "d": 33, "e": 70, "x": 33, "z": 70},
    {"i": 49, "l": 129, "d": 64, "e": 80, "x": 64, "z": 80},
    {"i": 2, "l": 1, "d": 1, "e": 1, "x": 1, "z": 1},
)


def nest_kernel(comp, buffers, threads=2, hints=None):
    """The KernelSource that the template makes of a normalised Comp."""
    problem = Problem(comp, buffers, cpu_target(threads), hints or {}, choose)
    kernel = registry.chosen(problem)
    assert kernel.template == "attention/cpu", kernel.reason
    return registry.generate(kernel).sources[0]


def last(index, comp) -> tuple[int, ...]:
    at = {a.name: a.extent - 1 for a in comp.axes}
    return tuple(1 + affine.value(entry, at, {}) for entry in index)


def inputs(comp) -> dict[str, torch.Tensor]:
    torch.manual_seed(len(comp.body))
    loads = {i.buffer: i for i in comp.body if isinstance(i, Load)}
    made = {n: torch.randn(last(i.index, comp)) for n, i in loads.items()}
    if "t" in made:
        made["t"] = made["t"].abs() + 1
    return {n: t.to(dtypes.to_torch(loads[n].dtype)) for n, t in made.items()}


def run(comp, tensors, keys=("l",)):
    """What the kernel writes, what float64 gives, what eager's order of operations gives."""
    outputs = {
        s.buffer: (last(s.index, comp), comp.body[s.value].dtype) for s in comp.stores
    }
    layouts = cpp_runner.layouts(comp, tensors, outputs)
    form = normalised(comp, keys)
    written = {
        n: torch.full(s, math.nan, dtype=dtypes.to_torch(d)) for n, (s, d) in outputs.items()
    }
    cpp_runner.call(nest_kernel(form, layouts), {**tensors, **written}, {})
    exact = cpp_runner.reference(comp, tensors, outputs)
    eager = run_comp(comp, tensors, layouts, {}, False)
    return written, exact, eager


def check(written, exact, eager, times: float = 1.5) -> None:
    """As exact as eager: relative L2 error of each result, NaN and infinities in place."""
    for name, found in written.items():
        limit = times * (1 + 4 / found.numel() ** 0.5)
        floor = 2.0**-23 if found.dtype == torch.float32 else 2.0**-12
        error = cpp_runner.error(found, exact[name])
        assert error <= max(limit * cpp_runner.error(eager[name], exact[name]), floor), name


# Sizes matter to the loops, which all forms share: all sizes of one form of a walk over keys and of
# one over rows, three of the others.
FORMS = [(name, sizes) for at, name in enumerate(TEXTS)
         for sizes in (SIZES if name in ("forward", "keys") else SIZES[at % 2 :: 2])]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes"), FORMS, ids=str)
def test_forms_are_as_exact_as_eager(name, sizes):
    comp = nest_case(name, **sizes)
    check(*run(comp, inputs(comp), KEY_AXES.get(name, ("l",))))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("sizes", [{}, {"i": 1, "g": 3, "l": 200}, {"i": 70, "l": 150, "d": 40}])
def test_16_bit_factors_are_widened(kind, sizes):
    comp = narrow(nest_case("forward", **sizes), dtypes.BY_NAME[kind])
    check(*run(comp, inputs(comp)))


def narrow(comp, dtype):
    """`comp` with q, k, v and y stored in `dtype`."""
    builder, images = BodyBuilder(), []
    for instr in comp.body:
        moved = with_values(instr, images)
        if isinstance(moved, Load) and moved.buffer in ("q", "k", "v"):
            moved = Cast(builder.emit(replace(moved, dtype=dtype)), dtypes.f32)
        images.append(builder.emit(moved))
    values = [images[s.value] for s in comp.stores]
    values = [
        builder.emit(Cast(v, dtype)) if s.buffer == "y" else v
        for v, s in zip(values, comp.stores)
    ]
    stores = tuple(replace(s, value=v) for s, v in zip(comp.stores, values))
    return replace(comp, body=builder.body, stores=stores)


def forward(change: str = "", to: str = "", **sizes: int):
    """The forward form with a part of its text replaced."""
    assert change in TEXTS["forward"]
    return sized(TEXTS["forward"].replace(change, to), **sizes)


def sized(text: str, **sizes: int):
    """A Comp with other extents."""
    comp = parse_comp(renumbered(text))
    axes = tuple(Axis(a.name, sizes.get(a.name, a.extent)) for a in comp.axes)
    return simplify(replace(comp, axes=axes))


@pytest.mark.parametrize("first", [0, -3, -40])
def test_rows_that_see_nothing_are_nan_as_eager_has_them(first):
    comp = forward("%7 = const 4", f"%7 = const {first}", i=53, l=150)
    written, exact, eager = run(comp, inputs(comp))
    assert written["y"].isnan().any() == (first < 0)
    check(written, exact, eager)


def test_rows_that_see_nothing_are_zero_where_the_user_says_so():
    """As scaled_dot_product_attention does: no sum, no result."""
    guarded = """
  %18 = reduce.sum[l] %17 : f32
  %19 = const 0.0 : f32
  %20 = eq %14 %19 : b1
  %21 = where %20 %19 %18 : f32
  store y[b, h, g, i, e] %21"""
    text = TEXTS["forward"].replace("%7 = const 4", "%7 = const -2")
    text = text.replace("%12 = sub %10 %11", "%12 = sub %10 %24")
    text = text.replace("%11 = reduce.max[l] %10 : f32", SAFE)
    text = text.replace("""
  %18 = reduce.sum[l] %17 : f32
  store y[b, h, g, i, e] %18""", guarded)
    comp = sized(text)
    written, exact, eager = run(comp, inputs(comp))
    assert (written["y"][..., :2, :] == 0).all()
    check(written, exact, eager)


SAFE = """%11 = reduce.max[l] %10 : f32
  %22 = const 0.0 : f32
  %23 = eq %11 %9 : b1
  %24 = where %23 %22 %11 : f32"""


def renumbered(text: str) -> str:
    """Values in the order of their lines."""
    names = re.findall(r"^\s*(%\d+) =", text, re.MULTILINE)
    places = {name: f"%{n}" for n, name in enumerate(names)}
    return re.sub(r"%\d+", lambda found: places[found[0]], text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["q", "k"])
def test_nan_and_infinities_in_scores(value, where):
    comp = nest_case("forward", i=40, l=140)
    tensors = inputs(comp)
    tensors[where].view(-1, tensors[where].shape[-1])[7, 3] = value
    written, exact, eager = run(comp, tensors)
    assert written["y"].isnan().any() and not written["y"].isnan().all()
    for name, found in written.items():
        assert torch.equal(found.isnan(), eager[name].isnan()), name
        ok = ~exact[name].isnan()
        torch.testing.assert_close(found[ok], exact[name][ok].float(), rtol=1e-5, atol=1e-5)


WINDOW = """%8 = le %6 %7 : b1
  %30 = const -20 : i64
  %31 = lt %30 %6 : b1
  %32 = bit_and %8 %31 : b1"""


@pytest.mark.parametrize("sizes", [{"i": 300, "l": 300}, {"i": 5, "l": 400}, {"i": 200, "l": 31}])
def test_windows_skip_keys_outside(sizes):
    text = TEXTS["forward"].replace("%8 = le %6 %7 : b1", WINDOW).replace("where %8", "where %32")
    comp = sized(text, **sizes)
    check(*run(comp, inputs(comp)))


@pytest.mark.parametrize("sizes", [{"i": 37, "l": 150}, {"i": 1, "g": 4, "l": 150, "e": 16}])
def test_any_strides(sizes):
    """Projections of all heads side by side, keys along memory, values across it."""
    comp = nest_case("forward", **sizes)
    tensors = inputs(comp)
    tensors["q"] = tensors["q"].permute(0, 3, 1, 2, 4).contiguous().permute(0, 2, 3, 1, 4)
    tensors["k"] = tensors["k"].mT.contiguous().mT
    tensors["v"] = tensors["v"].transpose(1, 2).contiguous().transpose(1, 2)
    check(*run(comp, tensors))
    tensors["k"] = tensors["k"].permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    tensors["v"] = tensors["v"][:1].mT.contiguous().mT.expand(tensors["v"].shape)
    check(*run(comp, tensors))


def test_factors_that_are_computed():
    """Queries scaled before the product, values through an activation."""
    text = TEXTS["forward"].replace(
        "%0 = load q[b, h, g, i, d] : f32",
        "%40 = load q[b, h, g, i, d] : f32\n  %41 = const 1.5 : f32\n  %0 = mul %40 %41 : f32",
    ).replace(
        "%16 = load v[b, h, l, e] : f32",
        "%42 = load v[b, h, l, e] : f32\n  %16 = tanh %42 : f32",
    )
    for sizes in ({"i": 60, "l": 140}, {"i": 1, "g": 1, "l": 140}):
        comp = sized(text, **sizes)
        check(*run(comp, inputs(comp)))


@pytest.mark.parametrize("queries, keys", [(1, 1), (7, 130), (129, 300)])
def test_lengths_known_at_the_call(queries, keys):
    comp = nest_case("forward", i=queries, l=keys)
    tensors = inputs(comp)
    outputs = {s.buffer: (last(s.index, comp), dtypes.f32) for s in comp.stores}
    lengths = {"i": symbol("s0"), "l": symbol("s1")}
    axes = tuple(Axis(a.name, lengths.get(a.name, a.extent)) for a in comp.axes)
    open_ = replace(comp, axes=axes)
    layouts = cpp_runner.layouts(comp, tensors, outputs)
    layouts = {n: with_lengths(b, queries, keys) for n, b in layouts.items()}
    source = nest_kernel(normalised(open_, ("l",)), layouts, hints={"s0": 100, "s1": 200})
    written = {n: torch.full(s, math.nan) for n, (s, _) in outputs.items()}
    cpp_runner.call(source, {**tensors, **written}, {"s0": queries, "s1": keys})
    check(written, cpp_runner.reference(comp, tensors, outputs),
          run_comp(comp, tensors, cpp_runner.layouts(comp, tensors, outputs), {}, False))


def with_lengths(buffer: Buffer, queries: int, keys: int) -> Buffer:
    """A contiguous buffer of the form with symbols for both lengths."""
    place = {"q": (3, "s0"), "y": (3, "s0"), "m": (3, "s0"), "t": (3, "s0")}
    axis, name = place.get(buffer.name, (2, "s1"))
    shape = tuple(symbol(name) if n == axis else s for n, s in enumerate(buffer.shape))
    return replace(buffer, shape=shape, strides=contiguous_strides(shape))


def test_results_repeat():
    comp = nest_case("forward", i=200, l=300)
    tensors = inputs(comp)
    (one, _, _), (other, _, _) = (run(comp, tensors) for _ in range(2))
    assert all(torch.equal(one[n], other[n]) for n in one)


def test_what_is_refused_says_why():
    comp = nest_case("forward")
    text = TEXTS["forward"].replace("f32", "f64")
    wide = normalised(simplify(parse_comp(text)), ("l",))
    tensors = {n: t.double() for n, t in inputs(comp).items()}
    outputs = {s.buffer: (last(s.index, comp), dtypes.f64) for s in comp.stores}
    layouts = cpp_runner.layouts(comp, tensors, outputs)
    problem = Problem(wide, layouts, cpu_target(2), {}, choose)
    roles = TEMPLATE.match(problem)
    assert TEMPLATE.supports(roles, problem) == "a reduction is not in float32"

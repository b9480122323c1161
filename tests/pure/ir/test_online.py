"""Reductions that depend on reductions: in how many walks, and that states over tiles merge."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from nest_cases import KEY_AXES, TEXTS, nest_case
from torchweld.core import dtypes
from torchweld.ir import online
from torchweld.ir.affine import axis
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Axis, Buffer, Comp, Load, Reduce, Store, value_axes
from torchweld.ir.normal_form import normalised
from torchweld.ir.parser import parse_comp
from torchweld.ir.substitute import substitute_comp
from torchweld.ir.views import contiguous_strides


def results(comp: Comp, inputs) -> dict[str, torch.Tensor]:
    extents, layouts = comp.extents, {}
    for store in comp.stores:
        shape = tuple(extents[e.as_axis] for e in store.index)
        layouts[store.buffer] = Buffer(store.buffer, shape, dtypes.f64, contiguous_strides(shape))
    return run_comp(comp, inputs, layouts, {}, exact=True)


def inputs_of(comp: Comp) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    extents, made = comp.extents, {}
    for load in (i for i in comp.body if isinstance(i, Load)):
        shape = [extents[e.as_axis] for e in load.index]
        made.setdefault(load.buffer, torch.randn(shape, dtype=torch.float64))
    if "t" in made:
        made["t"] = made["t"].exp() + 1
    return made


def keys_of(name: str) -> tuple[str, ...]:
    return KEY_AXES.get(name, ("l",))


@pytest.mark.parametrize("name", TEXTS)
def test_a_normal_form_means_the_same(name: str):
    comp = nest_case(name)
    made, inputs = normalised(comp, keys_of(name)), inputs_of(comp)
    for key, wanted in results(comp, inputs).items():
        torch.testing.assert_close(results(made, inputs)[key], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TEXTS)
def test_one_walk_is_enough(name: str):
    comp = normalised(nest_case(name), keys_of(name))
    assert len(online.walks(comp, keys_of(name))) == 1


def test_sums_of_exponentials_are_rescaled_by_their_maximum():
    comp = normalised(nest_case("forward"), "l")
    (walk,) = online.walks(comp, "l")
    top, total, mix = walk.reductions
    assert walk.rescaled == ((total, top), (mix, top))


def test_without_the_normal_form_a_second_walk_is_needed():
    first, second = online.walks(nest_case("forward"), "l")
    assert len(first.reductions) == 2 and first.rescaled
    assert len(second.reductions) == 1 and not second.rescaled


ROUNDED = TEXTS["forward"].replace(
    "%16 = load v[b, h, l, e] : f32\n  %17 = mul %15 %16 : f32\n  %18 = reduce.sum[l] %17 : f32",
    "%16 = cast.round %15 : bf16\n  %17 = cast %16 : f32\n  %18 = load v[b, h, l, e] : f32\n"
    "  %19 = mul %17 %18 : f32\n  %20 = reduce.sum[l] %19 : f32",
).replace("e] %18", "e] %20")  # fmt: skip
OF_OTHERS = TEXTS["forward"].replace("%12 = sub %10 %11", "%12 = sub %5 %11")
OF_MEAN = TEXTS["forward"].replace("reduce.max[l]", "reduce.sum[l]")


@pytest.mark.parametrize("text", [ROUNDED, OF_OTHERS, OF_MEAN], ids=["rounded", "others", "mean"])
def test_what_is_not_online_is_walked_over_again(text: str):
    """A rounded weight is not proportional to exp(-max); the exponential of what the maximum is not
    of may be infinite before it is known; a running sum rescales nothing."""
    comp = normalised(parse_comp(text), "l")
    found = online.walks(comp, "l")
    assert len(found) > 1
    assert all(len(w.reductions) for w in found)


LESS_THE_MAXIMUM = """comp o [i:7, e:4, l:64] {
  %0 = load s[i, l] : f32
  %1 = reduce.max[l] %0 : f32
  %2 = sub %0 %1 : f32
  %3 = reduce.sum[l] %2 : f32
  %4 = sub %2 %3 : f32
  %5 = load v[l, e] : f32
  %6 = mul %4 %5 : f32
  %7 = reduce.sum[l] %6 : f32
  store o[i, e] %7
}"""


def test_no_number_of_a_row_is_added_up_over_its_keys():
    """A walk that is saved by that would need the number before it is known."""
    comp = normalised(parse_comp(LESS_THE_MAXIMUM), "l")
    axes = value_axes(comp.body)
    sums = [i for i in comp.body if isinstance(i, Reduce) and i.monoid == "sum"]
    assert sums and all("l" in axes[i.args[0]] for i in sums)


GRADIENT = """comp gradient [i:4, l:6, e:3] {
  %0 = load s[i, l] : f32
  %1 = load m[i] : f32
  %2 = sub %0 %1 : f32
  %3 = exp %2 : f32
  %4 = reduce.sum[l] %3 : f32
  %5 = load g[i, l] : f32
  %6 = div %3 %4 : f32
  %7 = mul %6 %5 : f32
  %8 = reduce.sum[l] %7 : f32
  %9 = sub %5 %8 : f32
  %10 = mul %6 %9 : f32
  %11 = load k[l, e] : f32
  %12 = mul %10 %11 : f32
  %13 = reduce.sum[l] %12 : f32
  store o[i, e] %13
}"""
BY_HAND = """comp weights [i:4, l:6, e:3] {
  %0 = load s[i, l] : f32
  %1 = exp %0 : f32
  %2 = reduce.sum[l] %1 : f32
  %3 = div %1 %2 : f32
  %4 = load v[l, e] : f32
  %5 = mul %3 %4 : f32
  %6 = reduce.sum[l] %5 : f32
  store o[i, e] %6
}"""
OUT = {"o": Buffer("o", (4, 3), dtypes.f32, (3, 1))}


def test_exponentials_of_any_size_are_divided_before_they_are_multiplied():
    comp = normalised(parse_comp(BY_HAND), "l")
    made = {"s": torch.randn(4, 6) + 85, "v": torch.randn(6, 3) + 1e3}
    found = run_comp(comp, made, OUT, {}, exact=False)["o"]
    torch.testing.assert_close(found, made["s"].softmax(-1) @ made["v"])


def test_a_gradient_is_not_summed_in_two_parts_that_cancel():
    """sum(w * g * k) - D * sum(w * k) takes a walk less, and errs as much as D is large."""
    comp = normalised(parse_comp(GRADIENT), "l")
    assert len(online.walks(comp, "l")) == 2
    made = {"s": torch.randn(4, 6), "g": torch.randn(4, 6) + 1e5, "k": torch.randn(6, 3)}
    made["m"] = made["s"].amax(-1)
    w, g, k = made["s"].double().softmax(-1), made["g"].double(), made["k"].double()
    wanted = (w * (g - (w * g).sum(-1, keepdim=True))) @ k
    found = run_comp(comp, made, OUT, {}, exact=False)["o"]
    assert (found - wanted).abs().max() < 0.1


def tile(comp: Comp, name: str, start: int, stop: int) -> Comp:
    """The Comp over keys start to stop."""
    axes = tuple(Axis(a.name, stop - start) if a.name == name else a for a in comp.axes)
    return substitute_comp(comp, axes, {name: axis(name) + start})


def state(comp: Comp, walk: online.Walk, inputs) -> dict[int, torch.Tensor]:
    """What the reductions of a walk are, with one dimension for each axis."""
    axes = value_axes(comp.body)
    names = [a.name for a in comp.axes]
    places = {v: tuple(axis(n) for n in names if n in axes[v]) for v in walk.reductions}
    stores = tuple(Store(f"r{v}", places[v], v) for v in walk.reductions)
    found = results(replace(comp, stores=stores), inputs)
    shapes = {v: [comp.extents[n] if n in axes[v] else 1 for n in names] for v in walk.reductions}
    return {v: found[f"r{v}"].reshape(shapes[v]) for v in walk.reductions}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("cuts", [(0, 17), (0, 1, 17), (0, 5, 6, 13, 17)])
def test_states_of_tiles_merge_to_that_of_all(name: str, cuts: tuple[int, ...]):
    keys = keys_of(name)
    comp = normalised(nest_case(name, i=17), keys)
    inputs = inputs_of(comp)
    (walk,) = online.walks(comp, keys)
    tiles = [state(tile(comp, keys[-1], a, b), walk, inputs) for a, b in pairwise(cuts)]
    while len(tiles) > 1:
        tiles = [online.combine(comp, walk, *tiles[k : k + 2]) if tiles[k + 1 :] else tiles[k]
                 for k in range(0, len(tiles), 2)]  # fmt: skip
    wanted = state(comp, walk, inputs)
    for value in walk.reductions:
        torch.testing.assert_close(tiles[0][value], wanted[value], rtol=1e-12, atol=1e-12)


def test_tiles_that_see_nothing_change_nothing():
    """Of keys beyond l = i + 4, all are masked; so is each key of a row of -inf."""
    comp = normalised(nest_case("forward", i=2), "l")
    inputs = inputs_of(comp)
    (walk,) = online.walks(comp, "l")
    seen, unseen = (state(tile(comp, "l", a, b), walk, inputs) for a, b in ((0, 6), (6, 17)))
    assert all((unseen[v] == (-math.inf if k == 0 else 0)).all() for k, v in enumerate(unseen))
    for merged in (online.combine(comp, walk, seen, unseen),
                   online.combine(comp, walk, unseen, seen)):  # fmt: skip
        assert all(torch.equal(merged[v], seen[v]) for v in walk.reductions)
    nothing = online.combine(comp, walk, unseen, unseen)
    assert all(torch.equal(nothing[v], unseen[v]) for v in walk.reductions)


@pytest.mark.parametrize("name", ["forward", "differential"])
def test_a_row_without_keys_is_nan_as_by_hand(name: str):
    comp = nest_case(name)
    inputs = inputs_of(comp)
    inputs["q"][:, :1] = 0
    inputs["k"] = torch.full_like(inputs["k"], math.nan)
    made = normalised(comp, "l")
    assert torch.equal(results(made, inputs)["y"].isnan(), results(comp, inputs)["y"].isnan())
    low = parse_comp(TEXTS["forward"].replace("const 4 :", "const -1 :"))
    inputs = inputs_of(low)  # the first query sees nothing
    for key, wanted in results(low, inputs).items():
        got = results(normalised(low, "l"), inputs)[key]
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12, equal_nan=True)
        assert wanted[:, :, :, 0].isnan().all() or key == "m"


def test_a_row_without_keys_has_its_sink():
    comp = parse_comp(TEXTS["sinks"].replace("const 4 :", "const -1 :"))
    inputs = inputs_of(comp)  # the first query sees nothing
    got = results(normalised(comp, "l"), inputs)
    for key, wanted in results(comp, inputs).items():
        torch.testing.assert_close(got[key], wanted, rtol=1e-12, atol=1e-12)
    assert not got["y"][:, :, :, 0].any()


LOGSUMEXP = """comp lse [i:5, l:33] {
  %0 = load x[i, l] : f32
  %1 = reduce.logsumexp[l] %0 : f32
  %2 = pick.0 %1 : f32
  %3 = pick.1 %1 : f32
  %4 = log %3 : f32
  %5 = add %4 %2 : f32
  store y[i] %5
}"""


def test_logsumexp_is_one_walk():
    comp = parse_comp(LOGSUMEXP)
    made = normalised(comp, "l")
    (walk,) = online.walks(made, "l")
    assert len(walk.reductions) == 2 and len(walk.rescaled) == 1
    inputs = inputs_of(comp)
    inputs["x"][1] = -math.inf
    wanted = torch.logsumexp(inputs["x"], -1)
    torch.testing.assert_close(results(made, inputs)["y"], wanted)
    tiles = [state(tile(made, "l", a, b), walk, inputs) for a, b in ((0, 7), (7, 33))]
    for value, merged in online.combine(made, walk, *tiles).items():
        torch.testing.assert_close(merged, state(made, walk, inputs)[value])


SQUARES = """comp squares [i:5, l:33] {
  %0 = load x[i, l] : f32
  %1 = reduce.max[l] %0 : f32
  %2 = sub %0 %1 : f32
  %3 = exp %2 : f32
  %4 = reduce.sum[l] %3 : f32
  %5 = div %3 %4 : f32
  %6 = load c[i] : f32
  %7 = sub %5 %6 : f32
  %8 = mul %7 %7 : f32
  %9 = reduce.sum[l] %8 : f32
  %10 = mul %3 %3 : f32
  %11 = reduce.sum[l] %10 : f32
  store y[i] %9
  store z[i] %11
}"""


def test_a_square_has_a_factor_twice():
    comp = parse_comp(SQUARES)
    made, inputs = normalised(comp, "l"), inputs_of(comp)
    for key, wanted in results(comp, inputs).items():
        torch.testing.assert_close(results(made, inputs)[key], wanted, rtol=1e-12, atol=1e-12)
    assert sum(len(w.reductions) for w in online.walks(made, "l")) >= 4

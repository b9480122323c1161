"""Score nests: which Comps are, with which parts, and which keys can count."""

from __future__ import annotations

import pytest

from nest_cases import KEY_AXES, SAVED, SCORES, TEXTS, nest_case
from torchweld.ir.affine import axis
from torchweld.ir.nodes import Load
from torchweld.ir.normal_form import normalised
from torchweld.ir.parser import parse_comp
from torchweld.ir.simplify import simplify
from torchweld.templates.attention.nest import Bound, Nest, nest_of, nest_or_reason
from torchweld.templates.attention.sums import sums_of, sums_or_reason


def nest(name: str) -> Nest:
    found = nest_or_reason(normalised(nest_case(name), KEY_AXES.get(name, ("l",))))
    assert isinstance(found, Nest), found
    return found


def test_forward():
    n = nest("forward")
    assert (n.batch, n.rows, n.keys) == (("b", "h"), ("g", "i"), ("l",))
    assert [i.depth for i in n.inners] == [("d",)]
    assert [o.columns for o in n.outers] == [("e",)]
    assert len(n.statistics) == 2
    assert n.bound == Bound("l", None, axis("i") + 5)


def test_gradient_of_queries():
    n = nest("queries")
    assert (n.batch, n.rows, n.keys) == (("b", "h"), ("g", "i"), ("l",))
    assert [i.depth for i in n.inners] == [("d",), ("e",)]
    assert [o.columns for o in n.outers] == [("x",)]
    assert n.statistics == ()
    assert n.bound == Bound("l", None, axis("i") + 5)


def test_gradient_of_keys_and_values():
    n = nest("keys")
    assert (n.batch, n.rows, n.keys) == (("b", "h"), ("l",), ("g", "i"))
    assert [i.depth for i in n.inners] == [("d",), ("e",)]
    assert [o.columns for o in n.outers] == [("x",), ("z",)]
    assert n.bound == Bound("i", axis("l") + -4, None)


def test_sigmoid():
    n = nest("sigmoid")
    assert (n.batch, n.rows, n.keys) == (("b",), ("i",), ("l",))
    assert n.statistics == () and len(n.outers) == 1
    assert n.bound == Bound("l", None, axis("i") + 1)


def test_differential_shares_a_walk():
    n = nest("differential")
    assert len(n.inners) == len(n.outers) == 2
    assert len(n.statistics) == 4 and len(n.walks) == 1
    assert n.bound == Bound()


SUMS = f"""comp sums [b:2, h:2, g:2, i:13, d:8, l:17, e:5] {{ {SCORES}{SAVED}
  %26 = reduce.sum[b] %24 : f32
  store db[h, g, i, l] %26
}}"""


def test_sums_over_a_batch_are_no_walk_over_keys():
    comp = normalised(simplify(parse_comp(SUMS)), "b")
    n = sums_of(comp)
    assert (n.turns, n.batch, n.rows, n.keys) == (("b",), ("h",), ("g", "i"), ("l",))
    assert [i.depth for i in n.inners] == [("d",), ("e",)]
    assert n.bound == Bound("l", None, axis("i") + 5)
    assert nest_of(comp) is None


@pytest.mark.parametrize("old, new, why", [
    ("store db[h, g, i, l] %26", "store db[h, g, l, i] %26", "rows or keys"),  # turned, of 2 heads
    ("reduce.sum[b] %24", "reduce.max[b] %24", "two products"),
    ("reduce.sum[b] %24", "reduce.sum[b] %5", "two products"),
    ("reduce.sum[b] %24 : f32\n  store db[h, g, i, l]",
     "reduce.sum[b,i] %24 : f32\n  store db[h, g, l]", "rows or keys"),
])  # fmt: skip
def test_what_is_no_sum_of_scores(old: str, new: str, why: str):
    assert old in SUMS
    found = sums_or_reason(normalised(simplify(parse_comp(SUMS.replace(old, new))), "b"))
    assert isinstance(found, str) and why in found


@pytest.mark.parametrize("name", TEXTS)
def test_factors_are_loads(name: str):
    comp = normalised(nest_case(name), KEY_AXES.get(name, ("l",)))
    n = nest_of(comp)
    parts = [v for p in n.inners for v in (p.row, p.key)] + [o.key for o in n.outers]
    assert all(isinstance(comp.body[v], Load) for v in parts)


@pytest.mark.parametrize("mask, bound", [
    ("lt %6 %7", Bound("l", None, axis("i") + 4)),
    ("ge %6 %7", Bound("l", axis("i") + 4, None)),
    ("gt %6 %7", Bound("l", axis("i") + 5, None)),
    ("eq %6 %7", Bound("l", axis("i") + 4, axis("i") + 5)),
    ("ne %6 %7", Bound()),
])  # fmt: skip
def test_bounds_of_comparisons(mask: str, bound: Bound):
    text = TEXTS["forward"].replace("le %6 %7", mask)
    assert nest_of(normalised(simplify(parse_comp(text)), "l")).bound == bound


WINDOW = TEXTS["forward"].replace("%8 = le %6 %7 : b1\n", """%8 = le %6 %7 : b1
  %91 = const -3 : i64
  %92 = lt %6 %91 : b1
  %93 = logical_not %92 : b1
  %94 = bit_and %8 %93 : b1
""").replace("where %8 %5 %9", "where %94 %5 %9")  # fmt: skip


def numbered(text: str) -> str:
    """The values of a text in the order in which they come."""
    import re

    order = {old: k for k, old in enumerate(re.findall(r"^\s*%(\d+) =", text, re.M))}
    return re.sub(r"%(\d+)", lambda m: f"%{order[m[1]]}", text)


def test_a_window_has_both_bounds():
    comp = normalised(simplify(parse_comp(numbered(WINDOW))), "l")
    assert nest_of(comp).bound == Bound("l", axis("i") + -3, axis("i") + 5)


@pytest.mark.parametrize("old, new", [
    ("where %8 %5 %9", "where %8 %9 %5"),  # the others are masked
    ("const -inf", "const -100.0"),  # they count a little
], ids=["other side", "finite"])  # fmt: skip
def test_bounds_that_are_others_or_none(old: str, new: str):
    text = TEXTS["forward"].replace(old, new)
    found = nest_of(normalised(simplify(parse_comp(text)), "l")).bound
    assert found in (Bound(), Bound("l", axis("i") + 5, None))


@pytest.mark.parametrize("old, new, why", [
    ("store t[b, h, g, i] %14", "store t[b, h, g, i, l] %13", "large"),
    ("reduce.sum[d] %2", "reduce.max[d] %2", "not a product"),
    ("load v[b, h, l, e]", "load v[b, h, l, i]", "values"),
], ids=["stored", "maximum", "no columns"])  # fmt: skip
def test_what_is_no_nest(old: str, new: str, why: str):
    text = TEXTS["forward"].replace(old, new)
    found = nest_or_reason(normalised(simplify(parse_comp(text)), "l"))
    assert isinstance(found, str) and why in found


def test_a_row_with_keys_of_its_own_is_a_batch():
    text = TEXTS["forward"].replace("load k[b, h, l, d]", "load k[b, h, i, l, d]")
    n = nest_of(normalised(simplify(parse_comp(text)), "l"))
    assert (n.batch, n.rows) == (("b", "h", "i"), ("g",))

"""Transformations of Comps keep their meaning; signatures see structure and nothing else."""

import math
from dataclasses import replace

import pytest
import torch

from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.canonical import canonical, signature
from torchweld.ir.check import check_comp
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Axis, Buffer, Store
from torchweld.ir.parser import parse_comp
from torchweld.ir.printer import text
from torchweld.ir.substitute import (
    drop_unit_axes,
    inline,
    rename_axes,
    rename_buffers,
    split_axis,
    substitute_comp,
)

SOFTMAX = parse_comp("""
comp softmax [i:4, j:6] {
  %0 = load x[i, j] : f32
  %1 = reduce.max[j] %0 : f32
  %2 = sub %0 %1 : f32
  %3 = exp %2 : f32
  %4 = reduce.sum[j] %3 : f32
  %5 = div %3 %4 : f32
  store y[i, j] %5
}""")
LAYOUTS = {
    "x": Buffer("x", (4, 6), dtypes.f32, (6, 1)),
    "y": Buffer("y", (4, 6), dtypes.f32, (6, 1)),
}


def run(comp, x, layouts=LAYOUTS):
    check_comp(comp, layouts)
    return run_comp(comp, {"x": x}, layouts, {})["y"]


def test_rename():
    x = torch.randn(4, 6)
    renamed = rename_axes(SOFTMAX, {"i": "j", "j": "i"})
    assert [a.name for a in renamed.axes] == ["j", "i"]
    assert torch.equal(run(renamed, x), run(SOFTMAX, x))


@pytest.mark.parametrize("axis, outer, inner", [("j", 2, 3), ("i", 4, 1), ("j", 1, 6)])
def test_split(axis, outer, inner):
    x = torch.randn(4, 6)
    split = split_axis(SOFTMAX, axis, Axis("a", outer), Axis("b", inner))
    assert [a.name for a in split.axes if a.name != axis] == [n.name for n in split.axes]
    torch.testing.assert_close(run(split, x), torch.softmax(x, 1))


def test_split_refuses():
    with pytest.raises(ValueError, match="is not the extent"):
        split_axis(SOFTMAX, "j", Axis("a", 2), Axis("b", 4))
    scan = parse_comp(
        "comp c [j:6] {\n %0 = load x[j] : f32\n %1 = scan.sum[j] %0 : f32\n store y[j] %1\n}"
    )
    with pytest.raises(ValueError, match="scanned"):
        split_axis(scan, "j", Axis("a", 2), Axis("b", 3))


def test_substitution_shifts_a_domain():
    copy = parse_comp("comp c [i:3] {\n %0 = load x[i] : f32\n store y[i] %0\n}")
    shifted = substitute_comp(copy, (Axis("k", 3),), {"i": affine.axis("k") * -1 + 2})
    assert "load x[-1*k+2]" in text(shifted) or "load x[(-1)*k+2]" in text(shifted)


@pytest.mark.parametrize(
    "monoid, item",
    [("welford", 0), ("welford", 1), ("logsumexp", 0), ("logsumexp", 1), ("argmax", 1)],
)
def test_unit_axes_disappear(monoid, item):
    position = "%1 = index k : i64\n " if monoid == "argmax" else "%1 = const 0 : i64\n "
    args = "%0 %1" if monoid == "argmax" else "%0"
    dtype = "i64" if monoid == "argmax" else "f32"
    comp = parse_comp(f"""comp c [i:6, k:1] {{
      %0 = load x[i, k] : f32
      {position}
      %2 = reduce.{monoid}[k] {args} : f32
      %3 = pick.{item} %2 : {dtype}
      store y[i] %3
    }}""")
    layouts = {
        "x": Buffer("x", (6, 1), dtypes.f32, (1, 1)),
        "y": Buffer("y", (6,), dtypes.BY_NAME[dtype], (1,)),
    }
    x = torch.tensor([[0.5], [-2.0], [math.inf], [-math.inf], [math.nan], [0.0]])
    dropped = drop_unit_axes(comp)
    assert [a.name for a in dropped.axes] == ["i"] and "reduce" not in text(dropped)
    torch.testing.assert_close(run(dropped, x, layouts), run(comp, x, layouts), equal_nan=True)


def test_unit_axes_of_scans_and_stores():
    comp = parse_comp(
        """comp c [i:4, k:1] {
      %0 = load x[i, k] : f32
      %1 = scan.sum[k] %0 : f32
      store y[k, i] %1
    }"""
    )
    assert text(drop_unit_axes(comp)).splitlines()[1:-1] == [
        "  %0 = load x[i, 0] : f32",
        "  store y[0, i] %0",
    ]


def test_inline_shares_what_is_equal_and_replaces_loads():
    producer = parse_comp(
        "comp p [i:8] {\n %0 = load x[i] : f32\n %1 = exp %0 : f32\n store h[i] %1\n}"
    )
    consumer = parse_comp(
        """comp c [r:4] {
      %0 = load h[2*r] : f32
      %1 = load x[2*r] : f32
      %2 = add %0 %1 : f32
      store y[r] %2
    }"""
    )
    builder = BodyBuilder()
    made = inline(builder, producer.body, {"i": affine.axis("r") * 2})
    used = inline(builder, consumer.body, {}, {0: made[1]})
    fused = replace(
        consumer, body=builder.body, stores=(Store("y", consumer.stores[0].index, used[2]),)
    )
    assert text(fused).splitlines()[1:4] == [
        "  %0 = load x[2*r] : f32",
        "  %1 = exp %0 : f32",
        "  %2 = add %1 %0 : f32",
    ]


def test_signatures_ignore_names_and_origins():
    other = rename_buffers(
        rename_axes(SOFTMAX, {"i": "row", "j": "column"}), {"x": "layer7.h", "y": "out"}
    )
    layouts = {
        "layer7.h": replace(LAYOUTS["x"], name="layer7.h"),
        "out": replace(LAYOUTS["y"], name="out"),
    }
    assert signature(replace(other, name="other"), layouts) == signature(SOFTMAX, LAYOUTS)
    assert canonical(other)[1] == ("layer7.h", "out")


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": dtypes.f64},
        {"strides": (1, 4)},
        {"shape": (4, 7)},
        {"device": "cuda:0"},
    ],
)
def test_signatures_see_layouts(change):
    changed = {**LAYOUTS, "x": replace(LAYOUTS["x"], **change)}
    assert signature(SOFTMAX, changed) != signature(SOFTMAX, LAYOUTS)


def test_signatures_see_structure():
    variants = [
        SOFTMAX,
        replace(SOFTMAX, axes=(Axis("i", 4), Axis("j", 5))),
        parse_comp(text(SOFTMAX).replace("max", "min")),
    ]
    assert len({signature(v, LAYOUTS) for v in variants}) == len(variants)

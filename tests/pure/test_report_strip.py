"""Strips of kernels before and after: which kernels of eager went into which fused kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from report_example import GELU, LAYERS, LINEAR, MUL, NORM, example
from torchweld.observe.record.profile import Kernel, Place
from torchweld.observe.views.strip import APART, MOST_MARKED, OTHERS, strips

BEFORE, AFTER = example().profiles


def kernel(id: int, us: float, *places: Place, phase: str = "forward") -> Kernel:
    kind = "generated" if places[1:] else "operator"
    return Kernel(id, "k", kind, list(places), phase, "float32", 1, us, None, 8, 1.0, False,
                  "memory", None)  # fmt: skip


def of(eager: list[Kernel], fused: list[Kernel]):
    return strips(replace(BEFORE, kernels=eager), replace(AFTER, kernels=fused))


def test_kernels_of_repeated_layers_are_one_block_with_the_number_of_their_group():
    found = strips(BEFORE, AFTER)
    before = [(b.row.operations, b.group, b.row.calls) for b in found.before.blocks]
    assert before == [("addmm", APART, LAYERS), ("gelu", 1, LAYERS), ("mul", 1, LAYERS),
                      ("native_layer_norm", 1, LAYERS)]
    assert [b.group for b in found.after.blocks] == [APART, 1]
    assert [b.leaf for b in found.before.blocks] == ["up", "", "", ""]


def test_what_a_group_saves_is_measured():
    (fused,) = strips(BEFORE, AFTER).fused
    spent = sum(k.measured_us for k in BEFORE.kernels if k.places[0].op in (GELU, MUL, NORM))
    assert (fused.before, fused.after) == (3 * LAYERS, LAYERS)
    assert fused.before_us == pytest.approx(spent)
    assert fused.saved_us == pytest.approx(spent - fused.after_us)


def test_without_both_profiles_there_are_no_strips():
    assert strips(None, AFTER) is None and strips(BEFORE, None) is None


def test_an_operation_goes_to_the_kernel_at_its_line():
    """A module that adds twice: one of the two is fused, the other is not."""
    first, second = Place("aten.add.Tensor", "m", "f.py:1"), Place("aten.add.Tensor", "m", "f.py:9")
    norm = Place(NORM, "m.norm", "f.py:9")
    found = of([kernel(0, 5, first), kernel(1, 5, second), kernel(2, 5, norm)],
               [kernel(0, 5, first), kernel(1, 6, second, norm)])
    assert [b.group for b in found.before.blocks] == [APART, 1, 1]
    assert [b.group for b in found.after.blocks] == [APART, 1]


def test_what_was_simplified_away_belongs_to_the_kernel_at_its_line():
    gone = Place("aten.clone.default", "m", "f.py:3")
    a, b = Place(GELU, "m", "f.py:3"), Place(MUL, "m", "f.py:3")
    product = replace(kernel(3, 9, Place(LINEAR, "m", "f.py:3")), product=True)
    found = of([kernel(0, 1, gone), kernel(1, 1, a), kernel(2, 1, b), product],
               [kernel(0, 1, a, b)])
    assert found.fused[0].before == 3
    assert [x.group for x in found.before.blocks] == [1, 1, 1, APART]


def test_forward_and_backward_are_apart():
    a, b = Place(GELU, "m"), Place(MUL, "m")
    found = of([kernel(0, 1, a), kernel(1, 1, b, phase="backward")], [kernel(0, 1, a, b)])
    assert [x.group for x in found.before.blocks] == [1, APART]


def test_groups_beyond_the_marked_ones_share_a_number():
    many = MOST_MARKED + 2
    pairs = [(Place(f"aten.op{n}.default", "m"), Place(GELU, f"m{n}")) for n in range(many)]
    eager = [kernel(2 * n + side, 10 * (many - n), pair[side])
             for n, pair in enumerate(pairs) for side in (0, 1)]
    found = of(eager, [kernel(n, 1, *pair) for n, pair in enumerate(pairs)])
    assert found.others == 2 and len(found.fused) == MOST_MARKED
    assert [b.group for b in found.after.blocks][-3:] == [MOST_MARKED, OTHERS, OTHERS]
    assert [f.saved_us for f in found.fused] == sorted(f.saved_us for f in found.fused)[::-1]

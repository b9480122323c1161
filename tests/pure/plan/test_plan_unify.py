"""Index maps brought together: images, splits, and what does not factor."""

from __future__ import annotations

import pytest

from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.size import symbol
from torchweld.plan.unify import Mismatch, Split, covered, solve

S = symbol("s0")
INNER = {"h": 12, "d": 64, "n": 768, "r": S}
OUTER = {"n": 768, "k": 12, "e": 64, "m": 5, "q": 48, "t": S}
FLAT = axis("h") * 64 + axis("d")


@pytest.mark.parametrize(
    ("store", "load", "images"),
    [
        (FLAT, axis("k") * 64 + axis("e"), {"h": axis("k"), "d": axis("e")}),
        (axis("n"), axis("k") * 64 + axis("e"), {"n": axis("k") * 64 + axis("e")}),
        (FLAT, axis("q") + 64, {"h": constant(1), "d": axis("q")}),
        (FLAT, axis("k") * 64 + axis("q") + 16, {"h": axis("k"), "d": axis("q") + 16}),
        (axis("h") * 2 + 1, axis("k") * 4 + 3, {"h": axis("k") * 2 + 1}),
        (axis("r") * 64 + axis("d"), axis("t") * 64 + axis("e"), {"r": axis("t"), "d": axis("e")}),
    ],
)
def test_images(store: Affine, load: Affine, images):
    # The slowest digit has no upper bound, the others may not overflow.
    assert solve((store,), (load,), INNER, OUTER) == images


def test_a_flat_read_asks_for_a_split():
    assert solve((FLAT,), (axis("n"),), INNER, OUTER) == Split("n", 64)


@pytest.mark.parametrize("load, meets", [(constant(3), True), (constant(2), False),
                                         (axis("m"), False), (axis("one") + 3, True)])  # fmt: skip
def test_a_place_is_met_where_it_is(load: Affine, meets):
    found = solve((axis("h"), constant(3)), (axis("k"), load), INNER, OUTER | {"one": 1})
    assert found == {"h": axis("k")} if meets else isinstance(found, Mismatch)


@pytest.mark.parametrize(
    "load", [axis("k") * 64 + axis("e") + 1, axis("k") * 48 + axis("q"), axis("m") * 33 + axis("q")]
)
def test_overflowing_digits_do_not_factor(load: Affine):
    assert isinstance(solve((FLAT,), (load,), INNER, OUTER), Mismatch)


@pytest.mark.parametrize(
    ("image", "axes"),
    [
        (axis("k") * 64 + axis("e"), {"k", "e"}),
        (axis("n"), {"n"}),
        (axis("k") * 64, None),
        (axis("n") + 1, None),
        (axis("e") * 12 + axis("k"), {"k", "e"}),
        (axis("k"), None),
    ],
)
def test_covered_axes_are_a_bijection(image: Affine, axes):
    assert covered({"n": image}, INNER, OUTER) == (None if axes is None else frozenset(axes))

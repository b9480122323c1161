"""ir/access.py: offsets, merged axes, their order."""

import pytest

from torchweld.core import dtypes
from torchweld.core.errors import InvalidIR
from torchweld.ir import affine, size
from torchweld.ir.access import addressed
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Index, Ref, Store

F = dtypes.f32


def contiguous(shape):
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step = step * extent
    return tuple(strides)


def buffer(name, shape, strides=None, dtype=F):
    return Buffer(name, tuple(shape), dtype, tuple(strides or contiguous(shape)))


def axes(*names):
    return tuple(affine.axis(n) for n in names)


def unary(extents, x, y, x_index=None, y_index=None):
    """y[...] = exp(x[...]) over the named extents."""
    b = BodyBuilder()
    value = b.op("exp", b.load("x", x_index or axes(*extents), F))
    comp = Comp(
        "unary",
        tuple(Axis(n, e) for n, e in extents.items()),
        b.body,
        (Store("y", y_index or axes(*extents), value),),
    )
    return addressed(comp, {"x": x, "y": y})


def names(accesses):
    return [(a.name, a.extent) for a in accesses.comp.axes]


def test_contiguous_pointwise_is_one_flat_loop():
    found = unary({"i": 2, "j": 3, "k": 5}, buffer("x", (2, 3, 5)), buffer("y", (2, 3, 5)))
    assert names(found) == [("k", 30)]
    assert found.loads[0].offset == affine.axis("k")
    assert found.stores[0].offset == affine.axis("k")


def test_equally_permuted_tensors_merge_and_run_along_memory():
    strides = (1, 10, 2)  # j outermost, k, i innermost: contiguous in another order
    found = unary(
        {"i": 2, "j": 3, "k": 5}, buffer("x", (2, 3, 5), strides), buffer("y", (2, 3, 5), strides)
    )
    assert names(found) == [("i", 30)]


def test_transpose_does_not_merge_and_stores_win_ties():
    found = unary({"i": 7, "j": 3}, buffer("x", (7, 3), (1, 7)), buffer("y", (7, 3)))
    assert len(names(found)) == 2


def test_a_broadcast_operand_keeps_its_axis_apart():
    found = unary(
        {"i": 4, "j": 3, "k": 5}, buffer("x", (5,)), buffer("y", (4, 3, 5)), x_index=axes("k")
    )
    assert names(found) == [("j", 12), ("k", 5)]
    assert found.loads[0].offset == affine.axis("k")


def test_unit_axes_vanish_but_a_scalar_kernel_keeps_none_it_needs():
    found = unary({"i": 1, "j": 3, "k": 1}, buffer("x", (1, 3, 1)), buffer("y", (1, 3, 1)))
    assert names(found) == [("j", 3)]
    single = unary({"i": 1}, buffer("x", (1,)), buffer("y", (1,)))
    assert names(single) == [("i", 1)]


def test_symbolic_sizes_merge_syntactically():
    s, t = size.symbol("s"), size.symbol("t")
    found = unary({"i": s, "j": t}, buffer("x", (s, t)), buffer("y", (s, t)))
    assert names(found) == [("j", s * t)]


def test_a_gap_between_rows_blocks_merging():
    found = unary({"i": 4, "j": 5}, buffer("x", (4, 5), (8, 1)), buffer("y", (4, 5)))
    assert names(found) == [("i", 4), ("j", 5)]
    assert found.loads[0].offset == affine.of({"i": 8, "j": 1})


@pytest.mark.parametrize(("coefficients", "merged"), [({"i": 5, "j": 1}, True), ({"j": 1}, False)])
def test_an_index_that_uses_one_axis_blocks_merging(coefficients, merged):
    b = BodyBuilder()
    value = b.index(affine.of(coefficients))
    comp = Comp("iota", (Axis("i", 4), Axis("j", 5)), b.body, (Store("y", axes("i", "j"), value),))
    found = addressed(comp, {"y": buffer("y", (4, 5), dtype=dtypes.i64)})
    assert (len(found.comp.axes) == 1) == merged
    if merged:
        assert found.comp.body[value] == Index(affine.axis("j"), dtypes.i64)


def reduction(x_shape, reduced):
    b = BodyBuilder()
    all_axes = ("i", "j", "k")
    kept = tuple(n for n in all_axes if n not in reduced)
    value = b.reduce("sum", (b.load("x", axes(*all_axes), F),), tuple(reduced))
    comp = Comp(
        "sum",
        tuple(Axis(n, e) for n, e in zip(all_axes, x_shape)),
        b.body,
        (Store("y", axes(*kept), value),),
    )
    y = buffer("y", [e for n, e in zip(all_axes, x_shape) if n in kept])
    return addressed(comp, {"x": buffer("x", x_shape), "y": y})


def test_rows_and_columns_merge_apart():
    inner = reduction((2, 3, 5), ("k",))
    assert (inner.frame.rows, inner.frame.columns) == (("j",), ("k",))
    assert names(inner) == [("j", 6), ("k", 5)]
    two = reduction((2, 3, 5), ("j", "k"))
    assert names(two) == [("i", 2), ("k", 15)]
    assert two.comp.body[1].axes == ("k",)
    everything = reduction((2, 3, 5), ("i", "j", "k"))
    assert everything.frame.rows == () and names(everything) == [("k", 30)]


def test_rows_that_are_contiguous_along_none_are_nearest_along_the_innermost():
    """Groups of 8 channels in 32 rows, and their number for each: no row axis has stride one."""
    b = BodyBuilder()
    total = b.reduce("sum", (b.load("x", axes("g", "n", "c"), F),), ("c",))
    comp = Comp("groups", (Axis("g", 16), Axis("n", 32), Axis("c", 8)), b.body,
                (Store("y", axes("g", "n"), total),))  # fmt: skip
    found = addressed(comp, {"x": buffer("x", (16, 32, 8), (8, 128, 1)),
                             "y": buffer("y", (16, 32), (64, 2048))})  # fmt: skip
    assert found.frame.rows == ("n", "g")


def test_reduced_unit_axes_keep_one_column():
    found = reduction((3, 1, 1), ("j", "k"))
    assert len(found.frame.columns) == 1 and found.comp.body[1].axes == found.frame.columns


def test_refs_keep_their_stride():
    b = BodyBuilder()
    at = b.load("at", axes("i"), dtypes.i64)
    value = b.load("table", (Ref(at), affine.axis("j")), F)
    comp = Comp(
        "embedding", (Axis("i", 4), Axis("j", 6)), b.body, (Store("y", axes("i", "j"), value),)
    )
    buffers = {
        "at": buffer("at", (4,), dtype=dtypes.i64),
        "table": buffer("table", (9, 6)),
        "y": buffer("y", (4, 6)),
    }
    found = addressed(comp, buffers)
    assert found.loads[value].refs == ((at, 6),)
    assert found.loads[value].offset == affine.axis("j")
    assert found.comp.body[value].index == (affine.axis("j"), Ref(at))


def test_reductions_that_fit_no_frame_are_refused():
    b = BodyBuilder()
    x = b.load("x", axes("i", "j", "k"), F)
    total = b.op("add", b.reduce("sum", (x,), ("i",)), b.reduce("sum", (x,), ("j",)))
    comp = Comp(
        "bad",
        (Axis("i", 4), Axis("j", 6), Axis("k", 2)),
        b.body,
        (Store("y", axes("i", "j", "k"), total),),
    )
    with pytest.raises(InvalidIR):
        addressed(comp, {"x": buffer("x", (4, 6, 2)), "y": buffer("y", (4, 6, 2))})

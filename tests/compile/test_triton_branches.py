"""Schedules of what divides, takes roots and sines: few points a thread."""

from __future__ import annotations

import pytest

from torchweld.ir.access import addressed
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.templates.pointwise_reduce.gpu.default import default, schedule
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule
from triton_cases import Case, case
from triton_run import H100, bundle_of


def chosen(one: Case) -> Schedule:
    return schedule(one.comp, one.buffers, H100)


def quotients(count: int, dtype: str = "f32") -> Case:
    """x / y, its quotient by y, and so on."""
    divided = "\n".join(f"%{k + 4} = div %{k + 3} %2 : f32" for k in range(count))
    body = (f"%0 = load x[i] : {dtype}\n%1 = load y[i] : {dtype}\n%2 = cast %1 : f32\n"
            f"%3 = cast %0 : f32\n{divided}\n%{count + 4} = cast %{count + 3} : {dtype}\n"
            f"store z[i] %{count + 4}")  # fmt: skip
    if dtype == "f32":
        body = body.replace("cast %0", "neg %0").replace("cast %1", "neg %1")
        body = body.replace(f"cast %{count + 3}", f"neg %{count + 3}")
    return case("quotients", "i:1600000", body, x=(dtype, 1600000), y=(dtype, 1600000),
                z=(dtype, 1600000))  # fmt: skip


@pytest.mark.parametrize(("count", "points"), [(1, 8), (2, 8), (3, 8), (6, 4), (9, 2)])
def test_the_more_quotients_the_fewer_points_a_thread(count: int, points: int):
    assert chosen(quotients(count)).points_per_thread == points


def test_quotients_of_a_kernel_that_stores_16_bits_have_no_branch():
    assert chosen(quotients(9, "bf16")).points_per_thread == 8


SPHERE = """%0 = load x[i, j] : f32
%1 = load a[i] : f32
%2 = load b[j] : f32
%3 = sub %1 %2 : f32
%4 = sin %3 : f32
%5 = cos %3 : f32
%6 = tan %3 : f32
%7 = sqrt %6 : f32
%8 = div %0 %7 : f32
%9 = mul %8 %4 : f32
%10 = reduce.sum[i] %9 : f32
%11 = mul %8 %5 : f32
%12 = reduce.sum[j] %11 : f32
store y[j] %10
store z[i] %12"""


def test_sines_beside_sums_over_rows_and_columns_leave_warps_to_a_multiprocessor():
    rows, columns = 2400, 1000
    one = case("sphere", f"i:{rows}, j:{columns}", SPHERE, x=("f32", rows, columns),
               a=("f32", rows), b=("f32", columns), y=("f32", columns),
               z=("f32", rows))  # fmt: skip
    found = chosen(one)
    assert (found.points_per_thread, found.num_warps) == (2, 16)
    needed = resources(compile_source(bundle_of(one, found).sources[0], 90))
    assert needed.registers <= 64


def test_rows_with_quotients_of_their_own_are_tiles_of_rows():
    """The quotients of a row are computed once, not at each of its points."""
    body = """%0 = load a[i] : f32
%1 = load b[i] : f32
%2 = div %0 %1 : f32
%3 = sqrt %2 : f32
%4 = div %3 %1 : f32
%5 = load x[i, j] : f32
%6 = mul %5 %4 : f32
store y[i, j] %6"""
    described = dict(a=("f32", 4800), b=("f32", 4800))
    for columns, own in ((700, True), (701, False), (520, False)):
        one = case("rows", f"i:4800, j:{columns}", body, x=("f32", 4800, columns),
                   y=("f32", 4800, columns), **described)  # fmt: skip
        assert bool(chosen(one).rows) == own
    plain = body.replace("div %0 %1", "mul %0 %1").replace("sqrt", "neg")
    one = case("rows", "i:4800, j:700", plain, x=("f32", 4800, 700), y=("f32", 4800, 700),
               **described)  # fmt: skip
    assert not chosen(one).rows


@pytest.mark.parametrize(("columns", "stages"), [(33, 1), (32, 4)])
def test_short_rows_that_begin_anywhere_are_loaded_as_they_are_needed(columns: int, stages: int):
    body = """%0 = load x[i, j] : f32
%1 = load w[j] : f32
%2 = mul %0 %1 : f32
%3 = reduce.sum[i] %0 : f32
%4 = reduce.sum[j] %2 : f32
store y[j] %3
store z[i] %4"""
    one = case("short", f"i:96000, j:{columns}", body, x=("f32", 96000, columns),
               w=("f32", columns), y=("f32", columns), z=("f32", 96000))  # fmt: skip
    found = chosen(one)
    assert found.stages == stages and (stages > 1 or found.points_per_thread == 8)
    needed = resources(compile_source(bundle_of(one, found).sources[0], 90))
    assert stages > 1 or needed.registers <= 64


def test_partial_sums_are_added_up_in_one_step_where_programs_are_few():
    one = case("parts", "i:1000, j:264", "%0 = load x[j, i] : f32\n"
               "%1 = reduce.sum[j] %0 : f32\nstore y[i] %1",
               x=("f32", 264, 1000), y=("f32", 1000))  # fmt: skip
    found = default(addressed(one.comp, one.buffers), {}, 132, split=False)
    assert (found.form, found.block_columns, found.num_warps) == ("persistent", 512, 16)


def _roots(dims: str, index: str, count: int, reduced: str, stored: str, x, y) -> Case:
    """The sum of the root of a root, and so on."""
    roots = "\n".join(f"%{k + 1} = sqrt %{k} : f32" for k in range(count))
    body = (f"%0 = load x[{index}] : f32\n{roots}\n"
            f"%{count + 1} = reduce.sum[{reduced}] %{count} : f32\nstore y[{stored}] %{count + 1}")
    return case("roots", dims, body, x=("f32", *x), y=("f32", *y))


def test_rows_along_memory_are_fewer_before_they_have_more_warps():
    found = chosen(_roots("i:160000, j:250", "i, j", 4, "j", "i", (160000, 250), (160000,)))
    assert (found.block_rows, found.block_columns, found.num_warps) == (1, 256, 2)


def _across(images: int, columns: int, count: int) -> Case:
    return _roots(f"i:{images}, k:{columns}, j:300", "i, k, j", count, "k", "i, j",
                  (images, columns, 300), (images, 300))  # fmt: skip


@pytest.mark.parametrize(
    ("one", "tile"),
    [(_across(128, 8, 4), (32, 8, 2)), (_across(20, 150, 2), (16, 256, 16)),
     (_across(20, 150, 10), (16, 256, 16))],
)  # fmt: skip
def test_rows_across_memory_are_a_warps_lanes_before_they_have_more(one: Case, tile):
    """Then more warps, which share each row where nothing else is left."""
    found = chosen(one)
    assert found.form == "persistent"
    assert (found.block_rows, found.block_columns, found.num_warps) == tile


def test_rows_across_memory_with_one_branch_keep_their_points():
    assert chosen(_across(20, 150, 1)).points_per_thread == 16

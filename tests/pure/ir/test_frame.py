"""Which Comps are one kernel: rows, columns, and sums over rows."""

from __future__ import annotations

import pytest

from torchweld.ir.frame import frame_of
from torchweld.ir.parser import parse_comp


def frame(body, axes="i:4, j:8"):
    return frame_of(parse_comp(f"comp c [{axes}] {{\n{body}\n}}"))


def test_pointwise_comps_have_rows_alone():
    found = frame("%0 = load x[i, j] : f32\n store y[i, j] %0")
    assert (found.rows, found.columns) == (("i", "j"), ())


def test_a_sum_over_rows_beside_a_norm():
    found = frame("""
      %0 = load x[i, j] : f32
      %1 = reduce.max[j] %0 : f32
      %2 = sub %0 %1 : f32
      %3 = reduce.sum[i] %2 : f32
      %4 = neg %3 : f32
      store y[i, j] %2
      store z[j] %4""")
    assert (found.rows, found.columns, found.column_reductions) == (("i",), ("j",), (3,))


def test_columns_are_what_lies_together_in_memory():
    """Sums of rows and of columns: the axes may come in either order."""
    body = """
      %%0 = load x[%s] : f32
      %%1 = reduce.sum[i] %%0 : f32
      %%2 = reduce.sum[j] %%0 : f32
      store y[j] %%1
      store z[i] %%2"""
    assert frame(body % "i, j").columns == ("j",)
    assert frame(body % "j, i").columns == ("i",)


REFUSED = {
    "reductions over three sets of axes": """
      %1 = reduce.sum[i] %0 : f32
      %2 = reduce.sum[j] %0 : f32
      %3 = reduce.sum[i, j] %0 : f32
      %4 = add %1 %3 : f32
      store y[j] %4
      store z[i] %2""",
    "a value along rows after a sum over rows": """
      %1 = reduce.sum[i] %0 : f32
      %2 = reduce.sum[j] %0 : f32
      %3 = sub %0 %1 : f32
      %4 = sub %3 %2 : f32
      store y[i, j] %4""",
    "a sum over rows that meets a sum over columns: there may be no row": """
      %1 = reduce.sum[i] %0 : f32
      %2 = load s[j] : f32
      %3 = reduce.sum[j] %2 : f32
      %4 = add %1 %3 : f32
      store y[j] %4""",
    "a sum over rows stored in every row": """
      %1 = index j : i64
      %2 = reduce.argmax[j] %0 %1 : f32
      %3 = pick.1 %2 : i64
      %4 = reduce.sum[i] %0 : f32
      store y[i, j] %4
      store z[i] %3""",
    "two reductions with several results": """
      %1 = index i : i64
      %2 = index j : i64
      %3 = reduce.argmax[i] %0 %1 : f32
      %4 = pick.1 %3 : i64
      %5 = reduce.argmax[j] %0 %2 : f32
      %6 = pick.1 %5 : i64
      store y[j] %4
      store z[i] %6""",
}


@pytest.mark.parametrize("why", REFUSED)
def test_not_one_kernel(why):
    assert frame("%0 = load x[i, j] : f32" + REFUSED[why]) is None

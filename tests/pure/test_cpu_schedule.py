"""pointwise_reduce/cpu/schedule.py, stages.py and ir/expand.py: which loops there are, and
what each computes."""

import re

import pytest
import torch

from torchweld.core import dtypes as d
from torchweld.ir.expand import TUPLES, expanded
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import Buffer, Reduce
from torchweld.ir.parser import parse_comp
from torchweld.templates.pointwise_reduce.cpu.generate import generate
from torchweld.templates.pointwise_reduce.cpu.schedule import TILE, schedule
from torchweld.templates.pointwise_reduce.cpu.stages import FINAL, stages

SOFTMAX = """
comp softmax [i:{i}, j:{j}] {{
  %0 = load x[i, j] : f32
  %1 = reduce.max[j] %0 : f32
  %2 = sub %0 %1 : f32
  %3 = exp %2 : f32
  %4 = reduce.sum[j] %3 : f32
  %5 = div %3 %4 : f32
  store y[i, j] %5
}}
"""
COPY = """
comp copy [i:{i}, j:{j}] {{
  %0 = load x[i, j] : f32
  store y[i, j] %0
}}
"""


def buffers(shapes):
    """{name: shape or (shape, strides)} as f32 buffers."""
    found = {}
    for name, (shape, *strides) in shapes.items():
        strides = strides[0] if strides else torch.empty(shape, device="meta").stride()
        found[name] = Buffer(name, tuple(shape), d.f32, tuple(strides))
    return found


def softmax(i, j, *strides):
    layout = ((i, j), *strides)
    return schedule(
        parse_comp(SOFTMAX.format(i=i, j=j)), buffers({"x": layout, "y": layout}), threads=4
    )


def test_rows_are_distributed_and_columns_are_the_lane():
    found = softmax(1000, 64)
    assert (found.lane, found.distribute) == ("column", "rows")
    assert found.outer == (("i", 1),) and found.nest == ("j",)


def test_few_long_rows_are_shared():
    assert softmax(2, 100_000).distribute == "columns"


def test_strided_columns_put_rows_abreast():
    found = softmax(5000, 64, (1, 5000))
    assert found.lane == "row" and found.nest == ("j", "i")
    assert dict(found.outer)["i"] > 1


def test_columns_two_apart_are_the_lane():
    """The maximum of pairs, added up: rows abreast would jump from line to line."""
    comp = parse_comp("""comp pooled [i:128, j:256] {
      %0 = load x[i, 2*j] : f32
      %1 = load x[i, 2*j+1] : f32
      %2 = maximum %0 %1 : f32
      %3 = reduce.sum[j] %2 : f32
      store y[i] %3
    }""")
    found = schedule(comp, buffers({"x": ((128, 512),), "y": ((128,),)}), threads=2)
    assert (found.lane, found.nest) == ("column", ("j",))


@pytest.mark.parametrize(
    "load, extent, lane",
    [("x[i, k, j]", 2, "j"), ("x[i, j, k]", 64, "k"), ("x[i, k, j]", 64, "j")],
    ids=["two points", "as stored", "turned"],
)
def test_rows_are_abreast_along_what_is_read_more_than_once(load, extent, lane):
    """Softmax over i: of tensors that are stacked, and of a transposed one."""
    comp = parse_comp(f"""comp softmax [i:64, j:128, k:{extent}] {{
      %0 = load {load} : f32
      %1 = reduce.max[i] %0 : f32
      %2 = sub %0 %1 : f32
      store y[i, j, k] %2
    }}""")
    shape = (64, 128, extent) if "j, k]" in load else (64, extent, 128)
    found = schedule(comp, buffers({"x": (shape,), "y": ((64, 128, extent),)}), threads=2)
    assert (found.lane, found.nest[-1]) == ("row", lane)


@pytest.mark.parametrize(
    ("load", "strides", "lane"),
    [("b[j, k]", (64, 1), "k"), ("b[j, k]", (1024, 1), "k"), ("b[k, j]", (256, 1), "j"),
     ("b[j, k]", (1, 256), "j")],
    ids=["rows of both", "rows far apart", "by columns", "turned"],
)  # fmt: skip
def test_distances_of_all_pairs(load, strides, lane):
    """What is loaded at every point weighs more than what is stored once a row: rows abreast that
    lie apart were 100 times slower."""
    comp = parse_comp(f"""comp distances [i:256, j:256, k:64] {{
      %0 = load a[i, k] : f32
      %1 = load {load} : f32
      %2 = sub %0 %1 : f32
      %3 = mul %2 %2 : f32
      %4 = reduce.sum[k] %3 : f32
      store y[i, j] %4
    }}""")
    shape = (64, 256) if load == "b[k, j]" else (256, 64)
    shapes = {"a": ((256, 64),), "b": (shape, strides), "y": ((256, 256),)}
    assert schedule(comp, buffers(shapes), threads=2).nest[-1] == lane


def test_short_columns_put_rows_abreast():
    assert softmax(5000, 4).lane == "row"


@pytest.mark.parametrize(("i", "j", "tiled"), [(64, 64, True), (64, 3, False)])
def test_transposes_are_tiled(i, j, tiled):
    shapes = {"x": ((i, j), (1, i)), "y": ((i, j),)}
    found = schedule(parse_comp(COPY.format(i=i, j=j)), buffers(shapes), threads=4)
    assert ([b for _, b in found.outer] == [TILE, TILE]) == tiled


@pytest.mark.parametrize("turned", ["x", "y"])
def test_a_transpose_stores_along_memory_whichever_side_is_turned(turned):
    shapes = {n: ((96, 160), *([(1, 96)] if n == turned else [])) for n in "xy"}
    found = schedule(parse_comp(COPY.format(i=96, j=160)), buffers(shapes), threads=4)
    lane = "j" if turned == "x" else "i"
    assert found.nest[-1] == lane and dict(found.outer) == {"i": TILE, "j": TILE}


def test_a_broadcast_vector_does_not_choose_the_lane():
    text = """
comp bias [n:16, c:64, s:784] {
  %0 = load x[n, c, s] : f32
  %1 = load b[c] : f32
  %2 = load w[c] : f32
  %3 = mul %0 %1 : f32
  %4 = add %3 %2 : f32
  store y[n, c, s] %4
}
"""
    shapes = {"x": ((16, 64, 784),), "y": ((16, 64, 784),), "b": ((64,),), "w": ((64,),)}
    assert schedule(parse_comp(text), buffers(shapes), threads=4).nest == ("s",)


SCATTER = """
comp scatter [i:40, j:{j}] {{
  %0 = load at[{at}] : i64
  %1 = load g[i, j] : f32
  store.add y[{to}] %1 init 0.0
}}
"""


@pytest.mark.parametrize(
    ("at", "to", "j", "distribute"),
    [("i", "%0, j", 32, "inner"), ("i", "%0, j", 31, "serial"), ("i, j", "i, %0", 32, "serial")],
)
def test_scatter_is_divided_where_no_two_threads_meet(at, to, j, distribute):
    """In whole vectors: a part of one takes as long."""
    shape = (40,) if at == "i" else (40, j)
    shapes = {"at": (shape,), "g": ((40, j),), "y": ((40, j),)}
    found = schedule(parse_comp(SCATTER.format(at=at, to=to, j=j)), buffers(shapes), threads=4)
    assert found.distribute == distribute


def test_messages_along_edges_are_walked_once_with_their_columns_innermost():
    """What is read and written by computed indices weighs as much as it has points. With the edges
    innermost, their indices and weights were worked out for every column, none of it in vectors. A
    thread that has all columns is told their number: 4 of a runtime's took 5 times as long."""
    comp = parse_comp("""comp messages [e:8192, h:4, c:32] {
      %0 = load from[e] : i64
      %1 = load to[e] : i64
      %2 = load x[%0, h, c] : f32
      %3 = load w[%0, h] : f32
      %4 = exp %3 : f32
      %5 = mul %2 %4 : f32
      store.add y[%1, h, c] %5 init 0.0
    }""")
    shapes = {n: ((64, 4, 32),) for n in "xy"} | {n: ((8192,),) for n in ("from", "to")}
    found = buffers(shapes | {"w": ((64, 4),)})
    planned = schedule(comp, found, threads=4)
    assert (planned.outer, planned.nest) == ((("e", 1), ("h", 1)), ("c",))
    assert "part(P, S, 0, 1, shared)" in generate(comp, found).sources[0].text


def test_rows_of_tables_are_read_along_their_columns():
    """Each is somewhere else; what it holds lies side by side."""
    comp = parse_comp("""comp score [i:60000, c:40] {
      %0 = load from[i] : i64
      %1 = load to[i] : i64
      %2 = load x[%0, c] : f32
      %3 = load y[%1, c] : f32
      %4 = mul %2 %3 : f32
      %5 = reduce.sum[c] %4 : f32
      store z[i] %5
    }""")
    shapes = {n: ((331, 40),) for n in "xy"} | {n: ((60000,),) for n in ("from", "to", "z")}
    found = schedule(comp, buffers(shapes), threads=4)
    assert (found.lane, found.nest) == ("column", ("c",))


def recurrence(steps: int) -> str:
    """States of 48 x 48, each made of a sum over the one before, abreast along the rows."""
    lines, state = ["%0 = load s[h, j, i] : f32"], 0
    for step in range(steps):
        n = len(lines)
        lines += [
            f"%{n} = load w[h, {step}, j] : f32",
            f"%{n + 1} = mul %{state} %{n} : f32",
            f"%{n + 2} = reduce.sum[j] %{n + 1} : f32",
            f"%{n + 3} = mul %{n + 2} %{n} : f32",
            f"%{n + 4} = sub %{state} %{n + 3} : f32",
        ]
        state = n + 4
    lines += [f"%{len(lines)} = reduce.sum[j] %{state} : f32"]
    body = "\n".join(lines)
    return f"comp steps [h:12, i:48, j:48] {{\n{body}\nstore y[h, i] %{len(lines) - 1}\n}}"


@pytest.mark.parametrize(("steps", "rows"), [(2, 0), (12, 2)])
def test_steps_of_a_recurrence_leave_their_state_to_the_next(steps: int, rows: int):
    """Where they are many: else each would do again what all before it did. Two states are there
    at a time."""
    comp = parse_comp(recurrence(steps))
    shapes = {"s": ((12, 48, 48),), "w": ((12, steps, 48),), "y": ((12, 48),)}
    found = buffers(shapes)
    made = schedule(comp, found, threads=4)
    assert made.lane == "row" and dict(made.outer)["i"] <= 64
    text = generate(comp, found).sources[0].text
    assert len(set(re.findall(r"alignas\(64\) float (k\d+)\[", text))) == rows


def test_stages_keep_what_is_dear_and_recompute_what_is_cheap():
    comp = parse_comp(SOFTMAX.format(i=8, j=8))
    found = stages(comp, frame_of(comp), frozenset("j"))
    assert found.count == 3
    assert found.loops == ((0,), (0, 2, 3), (3, 5))
    assert found.kept == {3}
    assert stages(comp, frame_of(comp), frozenset("j"), keep=False).kept == frozenset()


def test_a_load_that_jumps_along_the_row_is_kept():
    """Each of its elements is a cache line, which every pass would load again."""
    comp = parse_comp(SOFTMAX.format(i=1000, j=64))
    frame = frame_of(comp)
    inner = frozenset("j")
    assert 0 not in stages(comp, frame, inner).kept
    assert 0 in stages(comp, frame, inner, jumping=frozenset({0})).kept
    assert 0 not in stages(comp, frame, inner, keep=False, jumping=frozenset({0})).kept


def test_what_follows_a_column_reduction_is_final():
    comp = parse_comp("""
comp mean [i:8, j:8] {
  %0 = load x[i, j] : f32
  %1 = reduce.sum[j] %0 : f32
  %2 = sub %0 %1 : f32
  %3 = reduce.sum[i] %2 : f32
  %4 = const 8.0 : f32
  %5 = div %3 %4 : f32
  store y[j] %5
}
""")
    found = stages(comp, frame_of(comp), frozenset("j"))
    assert found.store_homes == (FINAL,) and found.final == (3, 4, 5)


@pytest.mark.parametrize("monoid", TUPLES)
def test_tuple_reductions_expand(monoid):
    args = "%0 %1" if monoid.startswith("arg") else "%0"
    second = "i64" if monoid.startswith("arg") else "f32"
    comp = parse_comp(f"""
comp one [i:8, j:8] {{
  %0 = load x[i, j] : f32
  %1 = index j : i64
  %2 = reduce.{monoid}[j] {args} : f32
  %3 = pick.0 %2 : f32
  %4 = pick.1 %2 : {second}
  store y[i] %3
  store z[i] %4
}}
""")
    found = expanded(comp)
    assert not any(isinstance(i, Reduce) and i.monoid in TUPLES for i in found.body)
    assert frame_of(found) == frame_of(comp)
    assert expanded(found) is found


@pytest.mark.parametrize(
    ("j", "extent", "step", "written"),
    [(2, 1000, 3, True), (3, 1000, 4, True), (8, 16, 16, True), (9, 1000, 16, False),
     (4, 15, 8, False), (8, 1000, 9, False), (6, 1000, 8, False)],
)  # fmt: skip
def test_a_lane_of_few_points_is_written_out(j, extent, step, written):
    """Where gcc makes vectors of what is so far apart."""
    found = schedule(
        parse_comp(COPY.format(i=extent, j=j)),
        buffers({"x": ((extent, j), (step, 1)), "y": ((extent, j),)}),
        threads=4,
    )
    assert (found.abreast is not None) == written
    assert (found.abreast, found.nest) in ((None, ("j",)), ("j", ("i",)))


@pytest.mark.parametrize(
    ("n", "i", "step", "nest"),
    [(5, 1000, 9, ("i", "j")), (99, 30, 9, ("i", "j")), (5, 30, 9, ("j",))],
)
def test_rows_of_several_axes_are_found_without_divisions(n, i, step, nest):
    """For a few points each, they would be much of the work."""
    comp = parse_comp(f"""comp copy [n:{n}, i:{i}, j:8] {{
      %0 = load x[n, i, j] : f32
      store y[n, i, j] %0
    }}""")
    shapes = {"x": ((n, i, 8), (9900, step, 1)), "y": ((n, i, 8), (9901, step, 1))}
    assert schedule(comp, buffers(shapes), threads=4).nest == nest


WITHIN_ROWS = """
comp scatter [i:1000, j:8] {{
  %0 = load at[i, j] : i64
  %1 = const 0 : i64
  %2 = maximum %0 %1 : i64
  %3 = const {last} : i64
  %4 = minimum %2 %3 : i64
  %5 = load x[i, j] : f32
  store.add y[{row}, %4] %5
}}
"""


@pytest.mark.parametrize(
    ("last", "row", "found"),
    [(15, "i", "rows"), (16, "i", "serial"), (15, "999-1*i", "serial"), (15, "0", "serial")],
)
def test_rows_that_scatter_within_themselves_are_distributed(last, row, found):
    comp = parse_comp(WITHIN_ROWS.format(last=last, row=row))
    shapes = {"at": ((1000, 8),), "x": ((1000, 8),), "y": ((1000, 16),)}
    assert schedule(comp, buffers(shapes), threads=4).distribute == found


SPLINES = """
comp splines [n:{n}, c:12, j:{j}] {{
  %0 = load x[n, c] : f32
  %1 = load knots[c, j] : f32
  %2 = sub %0 %1 : f32
  %3 = exp %2 : f32
  %4 = load some[{some}] : b1
  %5 = where %4 %3 %2 : f32
  store y[n, c, j] %5
}}
"""


@pytest.mark.parametrize(
    ("n", "j", "some", "nest"),
    [(4096, 10, "c, j", ("j", "n")), (4096, 33, "c, j", ("j",)), (40, 10, "c, j", ("j",)),
     (4096, 10, "n, j", ("j",))],
)  # fmt: skip
def test_lanes_of_fewer_points_than_a_vector_has_bytes_give_way_to_longer_ones(n, j, some, nest):
    """Unless bytes jump along those."""
    shapes = {"x": ((n, 12),), "knots": ((12, j),), "y": ((n, 12, j),)}
    found = buffers(shapes) | {"some": Buffer("some", (max(n, 12), j), d.b1, (j, 1))}
    one = schedule(parse_comp(SPLINES.format(n=n, j=j, some=some)), found, threads=4)
    assert one.nest == nest

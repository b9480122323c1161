"""What does not fuse, and the reason that is given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_programs import H100, kernels, planned, program

from torchweld.core.errors import InvalidIR
from torchweld.core.options import Options
from torchweld.ir.parser import parse_comp
from torchweld.plan import evaluate
from torchweld.plan.evaluate import Evaluator
from torchweld.plan.flow import Flow
from torchweld.plan.legality import kernel_refusal
from torchweld.plan.moves import Move, Mover
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.search import plan
from torchweld.targets.find import target_of

EXP = """
    comp first [i:64, j:128] {
      %0 = load x[i, j] : f32
      %1 = exp %0 : f32
      store t[i, j] %1
    }
"""


def _reasons(result) -> set[Reason]:
    return {r.reason for r in result.refusals}


def test_a_path_through_a_library_call_keeps_two_kernels():
    graph = program(
        "x f32 64 128; t f32 64 128; m f32 64 128; y f32 64 128", "x",
        EXP + """
        extern call m = "aten.relu.default"(view(t, [64, 128], [128, 1], 0)) {
        }
        comp second [i:64, j:128] {
          %0 = load t[i, j] : f32
          %1 = load m[i, j] : f32
          %2 = add %0 %1 : f32
          store y[i, j] %2
        }
        """, "y",
    )  # fmt: skip
    result = planned(graph)
    assert len(kernels(result)) == 2
    assert _reasons(result) == {Reason.REENTRY, Reason.EXTERN}
    (stuck,) = (r for r in result.refusals if r.reason is Reason.REENTRY)
    assert stuck.evidence == "call" and stuck.bytes_at_stake == 64 * 128 * 4


def test_what_is_read_again_meanwhile_is_not_taken_away():
    """A move into all readers waits for its turn; a kernel between is repeated inside another,
    which then reads what it read."""
    graph = program(
        "x f32 64 128; t f32 64 128; a f32 64 128; c f32 64 128; d f32 64 128", "x",
        EXP + """
        comp one [i:64, j:128] {
          %0 = load t[i, j] : f32
          %1 = sin %0 : f32
          store a[i, j] %1
        }
        comp between [i:64, j:128] {
          %0 = load t[i, j] : f32
          %1 = neg %0 : f32
          store c[i, j] %1
        }
        comp last [i:64, j:128] {
          %0 = load c[i, 127-j] : f32
          store d[i, j] %0
        }
        """, "a c d",
    )  # fmt: skip
    flow = Flow(graph)
    mover = Mover(flow, Evaluator(graph.buffers, graph.hints, H100, eager=False))
    first, one, between, last = flow.order()
    (waiting,) = (m for m in mover.moves_into(first) if m.kind == "dissolve")
    assert waiting.others == (one, between)
    mover.do(Move("repeat", between, (last,)))
    refused = mover.price(waiting)
    assert isinstance(refused, Refusal) and refused.reason is Reason.READERS


def test_a_cheap_producer_is_repeated_past_a_library_call():
    """A mask made of indices costs less to compute again than to read."""
    graph = program(
        "x f32 64 128; t f32 64 128; m f32 64 128; y f32 64 128", "x",
        """
        comp mask [i:64, j:128] {
          %0 = index j-i : i64
          %1 = const 0 : i64
          %2 = gt %0 %1 : b1
          %3 = const -inf : f32
          %4 = const 0.0 : f32
          %5 = where %2 %3 %4 : f32
          store t[i, j] %5
        }
        extern call m = "aten.relu.default"(view(t, [64, 128], [128, 1], 0)) {
        }
        comp second [i:64, j:128] {
          %0 = load t[i, j] : f32
          %1 = load m[i, j] : f32
          %2 = add %0 %1 : f32
          %3 = load x[i, j] : f32
          %4 = add %2 %3 : f32
          store y[i, j] %4
        }
        """, "y",
    )  # fmt: skip
    second = kernels(planned(graph))[1]
    assert "t" not in second.reads


def test_a_reduction_is_never_repeated_for_each_row():
    """A row's sum that every column of another row needs."""
    graph = program(
        "x f32 64 128; s f32 64; y f32 32 64", "x",
        """
        comp sums [i:64, j:128] {
          %0 = load x[i, j] : f32
          %1 = reduce.sum[j] %0 : f32
          store s[i] %1
        }
        comp spread [k:32, i:64] {
          %0 = load s[i] : f32
          %1 = exp %0 : f32
          store y[k, i] %1
        }
        """, "y",
    )  # fmt: skip
    result = planned(graph)
    assert len(kernels(result)) == 2
    assert _reasons(result) <= {Reason.COLUMNS, Reason.PARTIAL_STORE, Reason.NO_FRAME}


def test_a_sum_over_rows_ends_its_kernel():
    graph = program(
        "x f32 64 128; s f32 128; y f32 64 128", "x",
        """
        comp sums [i:64, j:128] {
          %0 = load x[i, j] : f32
          %1 = reduce.max[j] %0 : f32
          %2 = sub %0 %1 : f32
          %3 = reduce.sum[i] %2 : f32
          store s[j] %3
        }
        comp use [i:64, j:128] {
          %0 = load x[i, j] : f32
          %1 = load s[j] : f32
          %2 = mul %0 %1 : f32
          store y[i, j] %2
        }
        """, "y",
    )  # fmt: skip
    result = planned(graph)
    assert len(kernels(result)) == 2
    assert _reasons(result) == {Reason.AFTER_COLUMN_REDUCTION}


def test_a_scatter_ends_its_kernel():
    graph = program(
        "x f32 64; at i64 64; t f32 8; y f32 8", "x at",
        """
        comp scatter [i:64] {
          %0 = load at[i] : i64
          %1 = load x[i] : f32
          store.add t[%0] %1 init 0.0
        }
        comp use [k:8] {
          %0 = load t[k] : f32
          %1 = exp %0 : f32
          store y[k] %1
        }
        """, "y",
    )  # fmt: skip
    result = planned(graph)
    assert len(kernels(result)) == 2
    assert _reasons(result) == {Reason.PARTIAL_WRITE}


def test_a_scatter_takes_in_pointwise_work_but_no_other_result():
    body = """
        comp softmax [i:64, j:8] {
          %0 = load x[i, j] : f32
          %1 = reduce.sum[j] %0 : f32
          %2 = div %0 %1 : f32
          store t[i, j] %2
        }
        comp scale [i:64, j:8] {
          %0 = load t[i, j] : f32
          %1 = const 2.0 : f32
          %2 = mul %0 %1 : f32
          store u[i, j] %2
        }
        comp scatter [i:64, j:8] {
          %0 = load at[i] : i64
          %1 = load u[i, j] : f32
          store.add y[%0, j] %1 init 0.0
        }
    """
    buffers = "x f32 64 8; at i64 64; t f32 64 8; u f32 64 8; y f32 4 8"
    result = planned(program(buffers, "x at", body, "y"))
    *_, scatter = kernels(result)
    assert len(kernels(result)) == 2
    assert len(scatter.stores) == 1 and _reasons(result) == {Reason.SCATTER}


NORM_BACKWARD = """
    comp dx [i:64, j:{n}] {{
      %0 = load g[i, j] : f32
      %1 = reduce.sum[j] %0 : f32
      %2 = sub %0 %1 : f32
      store dx[i, j] %2
    }}
    comp db [i:64, j:{n}] {{
      %0 = load g[i, j] : f32
      %1 = reduce.sum[i] %0 : f32
      store db[j] %1
    }}
"""


@pytest.mark.parametrize(("columns", "count"), [(64, 1), (32768, 2)])
def test_sums_over_rows_need_rows_that_fit_into_registers(columns, count):
    buffers = f"g f32 64 {columns}; dx f32 64 {columns}; db f32 {columns}"
    graph = program(buffers, "g", NORM_BACKWARD.format(n=columns), "dx db")
    assert len(kernels(planned(graph))) == count


def test_a_buffer_written_in_place_is_read_before_it_changes():
    """`old` reads w, then w is overwritten; what needs `old` must not read w again."""
    graph = program(
        "w f32 64 128; t f32 64 128; y f32 64 128; z f32 64 128", "w",
        """
        comp old [i:64, j:128] {
          %0 = load w[i, j] : f32
          %1 = exp %0 : f32
          store t[i, j] %1
        }
        extern step z = "aten.relu_.default"(view(w, [64, 128], [128, 1], 0)) mutates w {
        }
        comp use [i:64, j:128] {
          %0 = load t[i, j] : f32
          %1 = load z[i, j] : f32
          %2 = add %0 %1 : f32
          store y[i, j] %2
        }
        """, "y",
    )  # fmt: skip
    result = planned(graph)
    assert len(kernels(result)) == 2 and Reason.REENTRY in _reasons(result)


@pytest.mark.parametrize("read", ["12*i+j", "12*i+11-j", "71-j"])
def test_a_scan_runs_along_one_axis(read):
    """Not along those that its reader has in place of it, nor backwards."""
    read = read.replace("12*i+11-j", "12*i+-1*j+11").replace("71-j", "-1*j+-12*i+71")
    graph = program(
        "x f32 72; t f32 72; y f32 6 12", "x",
        f"""
        comp first [n:72] {{
          %0 = load x[n] : f32
          %1 = scan.sum[n] %0 : f32
          store t[n] %1
        }}
        comp second [i:6, j:12] {{
          %0 = load t[{read}] : f32
          %1 = exp %0 : f32
          store y[i, j] %1
        }}
        """, "y",
    )  # fmt: skip
    for device in (H100, target_of("cpu")):
        result = planned(graph, device=device)
        assert len(kernels(result)) == 2


def test_two_devices_do_not_share_a_kernel():
    graph = program(
        "x f32 64 128; t f32 64 128; y f32 64 128", "x",
        EXP + """
        comp second [i:64, j:128] {
          %0 = load t[i, j] : f32
          store y[i, j] %0
        }
        """, "y",
    )  # fmt: skip
    moved = {**graph.buffers, "y": replace(graph.buffers["y"], device="cuda:0")}
    result = plan(replace(graph, buffers=moved), H100, Options())
    assert len(kernels(result)) == 2 and _reasons(result) == {Reason.DEVICES}


@pytest.mark.parametrize("limit", ["max_buffers", "max_live"])
def test_a_kernel_that_grows_too_large_is_refused(limit):
    adds = "\n".join(
        f"""
        comp add{k} [i:64] {{
          %0 = load {"x0" if k == 1 else f"t{k - 1}"}[i] : f32
          %1 = load x{k}[i] : f32
          %2 = add %0 %1 : f32
          %3 = exp %1 : f32
          %4 = exp %3 : f32
          %5 = add %4 %3 : f32
          %6 = add %5 %2 : f32
          store t{k}[i] %6
        }}"""
        for k in range(1, 9)
    )
    buffers = [f"x{k} f32 64" for k in range(9)] + [f"t{k} f32 64" for k in range(1, 9)]
    graph = program("; ".join(buffers), " ".join(f"x{k}" for k in range(9)), adds, "t8")
    assert len(kernels(planned(graph))) == 1
    small = replace(H100, **{limit: 4 if limit == "max_buffers" else 2})
    result = planned(graph, device=small)
    assert len(kernels(result)) > 1
    assert _reasons(result) & {Reason.TOO_MANY_BUFFERS, Reason.SPILL}


def test_a_sum_of_too_many_results_is_refused_before_it_is_made(monkeypatch):
    """A stack reads each step of a loop: all of them would be merged with it, and refused."""
    made, merge = [], evaluate.merge
    monkeypatch.setattr(evaluate, "merge", lambda *a: made.append(a[1].name) or merge(*a))
    loads = "".join(f"%{k} = load t{k}[i] : f32\n" for k in range(6))
    sums = "".join(f"%{k + 6} = add %{k + 5 if k else 0} %{k + 1} : f32\n" for k in range(5))
    steps = "\n".join(
        f"""
        comp step{k} [i:64] {{
          %0 = load x[i] : f32
          %1 = scan.sum[i] %0 : f32
          store t{k}[i] %1
        }}"""
        for k in range(6)
    )
    last = f"comp last [i:64] {{\n{loads}{sums}store y[i] %10\n}}"
    kept = [f"t{k}" for k in range(6)]
    buffers = "; ".join(f"{name} f32 64" for name in ("x", "y", *kept))
    graph = program(buffers, "x", f"{steps}\n{last}", " ".join(("y", *kept)))
    result = planned(graph, device=replace(H100, max_buffers=6))
    assert Reason.TOO_MANY_BUFFERS in _reasons(result) and "last" not in made


def test_no_frame_and_no_cut_is_an_error():
    graph = program(
        "x f32 4 4; y f32", "x",
        """
        comp odd [i:4, j:4] {
          %0 = load x[i, j] : f32
          %1 = scan.sum[j] %0 : f32
          %2 = scan.sum[i] %1 : f32
          %3 = reduce.sum[i, j] %2 : f32
          store y[] %3
        }
        """, "y",
    )  # fmt: skip
    with pytest.raises(InvalidIR, match="cannot be cut"):
        plan(graph, H100, Options())


def test_reductions_without_a_common_frame_are_cut():
    graph = program(
        "x f32 6 12; y f32 6 12", "x",
        """
        comp twice [i:6, j:12] {
          %0 = load x[i, j] : f32
          %1 = reduce.max[j] %0 : f32
          %2 = sub %0 %1 : f32
          %3 = reduce.sum[i] %2 : f32
          %4 = mul %2 %3 : f32
          store y[i, j] %4
        }
        """, "y",
    )  # fmt: skip
    result = planned(graph, fuse=False)
    assert len(kernels(result)) == 2
    assert len(kernels(planned(graph))) == 2


@pytest.mark.parametrize("columns, live, why", [
    (4096, 12, None), (16001, 7, Reason.ROW_SUMS), (16001, 4, None), (20000, 1, Reason.ROW_SUMS),
], ids=str)  # fmt: skip
def test_rows_are_summed_apart_where_registers_do_not_hold_one(columns, live, why):
    comp = parse_comp(f"""comp softmax_backward [i:512, j:{columns}] {{
      %0 = load g[i, j] : f32
      %1 = reduce.sum[j] %0 : f32
      %2 = sub %0 %1 : f32
      %3 = reduce.sum[i] %2 : f32
      store dx[i, j] %2
      store db[j] %3
    }}""")
    found = kernel_refusal(comp, live, H100)
    assert (found and found.reason) == why

"""The problems of bench/problems.py build, none is timed while another compiles, a worker that dies
costs its problem alone, and the table puts first what is to be looked at."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCH = Path(__file__).parents[2] / "bench"
OWN = ("problem_", "problems", "common", "tables")


@pytest.fixture(scope="module")
def bench():
    """The modules of bench/ that are tested here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCH))
        import problem_board
        import problem_check
        import problem_set.catalogue
        import problem_set.core
        import problem_table
        import problem_worker
        import problems

        yield SimpleNamespace(
            board=problem_board, core=problem_set.core, catalogue=problem_set.catalogue,
            table=problem_table, check=problem_check, worker=problem_worker, run=problems,
        )  # fmt: skip
        for name in [n for n in sys.modules if n.startswith(OWN)]:
            del sys.modules[name]


# -- the set --


def test_every_problem_without_a_package_builds_and_gives_tensors(bench):
    import torch

    for problem in bench.catalogue.chosen([], train=False):
        if problem.needs == "torch":
            built = bench.core.build(problem, "cpu", torch.bfloat16, train=True)
            floating = [t for t in (*built.module.parameters(), *built.inputs)
                        if t.is_floating_point()]  # fmt: skip
            assert built.inputs, problem.name
            assert {t.dtype for t in floating} <= {torch.bfloat16}, problem.name


def test_every_problem_without_a_package_fits_at_the_scale_of_a_gpu(bench):
    """On the meta device: nothing is computed. No operation may make a tensor of the CPU's."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from torchweld.exact.trees import tensors

    class OnMeta(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            found = operator(*args, **(kwargs or {}))
            assert all(t.is_meta for t in tensors(found).values()), (problem.name, operator)
            return found

    for problem in bench.catalogue.chosen([], train=False):
        if problem.needs == "torch":
            with torch.device("meta"):
                module, inputs = problem.make(problem.scale)
            with torch.no_grad(), OnMeta():
                module(*inputs)
            elements = sum(t.numel() for t in inputs)
            assert elements < 2**27, (problem.name, elements)


def test_a_problem_has_the_same_numbers_at_each_build(bench):
    import torch

    problem = bench.core.PROBLEMS["gemm_swish_scale"]
    first, again = (bench.core.build(problem, "cpu", None, train=False) for _ in range(2))
    assert torch.equal(first.inputs[0], again.inputs[0])
    assert torch.equal(first.module.linear.weight, again.module.linear.weight)


def test_dropout_is_off_in_training(bench):
    built = bench.core.build(bench.core.PROBLEMS["alexnet_small"], "cpu", None, train=True)
    assert built.module.training
    assert [m.p for m in built.module.modules() if "Dropout" in type(m).__name__] == [0.0]


def test_problems_are_chosen_by_name_and_group(bench):
    chosen = bench.catalogue.chosen
    assert [p.name for p in chosen(["lstm", "hinge_loss"], False)] == ["lstm", "hinge_loss"]
    assert {p.group for p in chosen(["recurrences"], False)} == {"recurrences"}
    assert chosen(["argmax_middle"], train=False) and not chosen(["argmax_middle"], train=True)
    with pytest.raises(ValueError, match="no problem nonsense; groups: architectures, "):
        chosen(["nonsense"], False)


def test_two_problems_cannot_have_one_name(bench):
    with pytest.raises(ValueError, match="two problems are called lstm"):
        bench.core.add(bench.core.PROBLEMS["lstm"])


def test_chances_are_taken_from_a_configuration(bench):
    from problem_set.pretrained import without_chance

    config = SimpleNamespace(attention_dropout=0.1, layerdrop=0.2, rms_norm_eps=1e-6, dropout=None)
    assert vars(without_chance(config)) == dict(
        attention_dropout=0.0, layerdrop=0.0, rms_norm_eps=1e-6, dropout=None)


# -- the board --


def check(bench, name):
    return bench.board.Task("check", name)


def timing(bench, name):
    return bench.board.Task("time", name)


def test_a_timing_waits_for_every_check_and_runs_alone(bench):
    board = bench.board.Board(deque("abc"))
    assert board.assign([0, 1]) == (0, check(bench, "a"))
    assert board.assign([0, 1]) == (1, check(bench, "b"))
    board.answered(0, well=True)
    assert board.assign([0, 1]) == (0, check(bench, "c"))
    board.answered(1, well=True)
    assert board.assign([0, 1]) is None  # c compiles
    board.answered(0, well=True)
    assert board.assign([0, 1]) == (0, timing(bench, "a"))
    assert board.assign([0, 1]) is None  # a is timed
    board.answered(0, well=True)
    assert board.assign([0, 1]) == (1, timing(bench, "b"))
    board.answered(1, well=True)
    assert board.assign([0, 1]) == (0, timing(bench, "c"))
    assert not board.over
    board.answered(0, well=False)
    assert board.over


def test_what_failed_or_needs_no_timing_is_not_timed(bench):
    board = bench.board.Board(deque("a"))
    board.assign([0])
    board.answered(0, well=False)
    assert board.over
    board = bench.board.Board(deque("a"), timed=False)
    board.assign([0])
    board.answered(0, well=True)
    assert board.over


def test_a_crowded_device_is_emptied_before_more_is_checked(bench):
    board = bench.board.Board(deque("ab"))
    board.assign([0])
    board.answered(0, well=True, crowded=True)
    assert board.assign([0, 1]) == (0, timing(bench, "a"))
    assert board.assign([0, 1]) is None
    board.answered(0, well=True, crowded=True)
    assert board.assign([0, 1]) == (0, check(bench, "b"))  # nothing more can be freed


def test_a_check_that_found_no_memory_is_made_again_once(bench):
    board = bench.board.Board(deque("a"))
    for _ in range(2):
        assert board.assign([0]) == (0, check(bench, "a"))
        board.answered(0, well=False, crowded=True)
    assert board.over


def test_what_a_dead_worker_held_is_checked_again_once(bench):
    board = bench.board.Board(deque("ab"))
    board.assign([0])
    board.answered(0, well=True)
    board.assign([0])
    assert board.died(0) == check(bench, "b")
    assert board.assign([1]) == (1, check(bench, "a"))
    board.answered(1, well=True)
    assert board.died(1) is None
    assert board.lost == ["a"] and board.over


# -- processes --

FAKE = """
import os, time
from problem_worker import Answer

def serve(connection, asked, log):
    connection.send(None)
    while (task := connection.recv()) is not None:
        if task.what == "time":
            times = {"eager": 2.0, "torchweld": 1.0}
            connection.send(Answer({"ms": times, "ratio": 2.0, "by": os.getpid()}))
        elif task.problem == "dies":
            log.write_text("an illegal memory access\\n")
            os._exit(3)
        elif task.problem == "hangs":
            time.sleep(60)
        elif task.problem == "leaves a child" and os.fork() == 0:
            time.sleep(3)  # it holds the pipe open
            os._exit(0)
        elif task.problem == "leaves a child":
            os._exit(5)
        elif task.problem == "breaks the device":
            connection.send(Answer({"problem": "check: AcceleratorError"}, False, last=True))
            os._exit(1)
        else:
            row = {"graphs": 1, "kernels": 2, "first_call_s": 0.1, "outside": [], "warnings": []}
            connection.send(Answer(row))

def stillborn(connection, asked, log):
    os._exit(4)
"""


@pytest.fixture
def sweep(bench, tmp_path, monkeypatch):
    """names -> rows, of workers that only pretend."""
    (tmp_path / "pretended.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path))
    import pretended

    def run(names, work=pretended.serve, workers=1, each=30.0, total=90.0):
        asked = bench.check.Asked("cpu", None, False, ("eager",), 0.0)
        crew = bench.run.Crew(asked, tmp_path, each, work)
        board = bench.board.Board(deque(names))
        made = bench.run.Sweep(board, crew, "rows", time.monotonic() + total)
        made.run(workers)
        return made.rows

    yield lambda *args, **kwargs: run(*args, **kwargs)
    del sys.modules["pretended"]


def test_a_worker_that_dies_takes_no_other_problem_with_it(sweep):
    rows = sweep(["a", "dies", "leaves a child", "breaks the device", "b"])
    assert rows["dies"]["problem"] == (
        "check: the process died (status 3): an illegal memory access")
    assert rows["breaks the device"]["problem"] == "check: AcceleratorError"
    assert all(rows[name]["ms"]["torchweld"] == 1.0 for name in "ab")
    assert "status 5" in rows["leaves a child"]["problem"]
    assert rows["a"]["by"] == rows["b"]["by"]  # the last process held both


def test_a_problem_that_takes_too_long_is_a_row(sweep):
    rows = sweep(["hangs", "a"], each=0.5)
    assert "not finished within 0 s" in rows["hangs"]["problem"] and "ms" in rows["a"]


def test_without_time_nothing_runs(sweep, bench, monkeypatch):
    assert sweep(["a"], total=0.0)["a"]["problem"] == "not run: no time"


def test_a_worker_that_cannot_start_ends_the_run(sweep):
    import pretended

    with pytest.raises(RuntimeError, match=r"a worker does not start: .*status 4"):
        sweep(["a"], work=pretended.stillborn)


# -- the table --


def row(ratio=None, **more):
    found = {"graphs": 1, "kernels": 3, "first_call_s": 1.25, "error": 0.5} | more
    if ratio is None:
        return found
    return found | {"ms": {"eager": 9.0, "torchweld": 2.0, "inductor": 2.0 * ratio}, "ratio": ratio}


def test_the_table_begins_with_failures_and_the_slowest(bench):
    rows = {
        "fast": row(2.0), "slow": row(0.5, error=3.5), "failed": {"problem": "check: KeyError"},
        "cut": row(1.0, graphs=2, in_eager=1, cut=True, events=["cut at item()"]),
        "wrong": row(1.5, outside=["output: NaN"], warnings=["torchweld: hm"]),
    }  # fmt: skip
    lines = bench.table.rendered(rows).splitlines()
    head, *body = [[c.strip() for c in line.strip("| ").split(" | ")] for line in lines[:7]]
    assert head[5:8] == ["eager, ms", "inductor, ms", "torchweld, ms"]
    assert [cells[0] for cells in body[1:]] == ["failed", "slow", "cut", "wrong", "fast"]
    assert body[1][-1] == "FAILED" and body[2][-1] == "SLOWER, ERROR"
    assert body[2][:8] == ["slow", "1", "3", "1.2", "3.50", "9", "1", "2"]
    assert body[3][1] == "2 (+1 in eager)"
    said = "\n".join(lines[7:])
    assert "5 problems: 1 FAILED, 1 SLOWER, 1 ERROR, 1 cut, 1 WRONG, 1 warned, " in said
    assert "geometric mean of 4 ratios 1.11" in said
    for line in ("failed: check: KeyError", "wrong: output: NaN", "cut: cut at item()"):
        assert f"- {line}" in said


def test_a_problem_that_eager_cannot_run_is_no_failure_of_torchweld(bench, monkeypatch):
    import torch

    def raises(x):
        raise NotImplementedError("not for this dtype")

    built = bench.core.Built(bench.core.function(raises), (torch.zeros(2),))
    monkeypatch.setattr(bench.check, "_built", lambda name, asked: built)
    asked = bench.check.Asked("cpu", None, False, (), 0.0)
    answer = bench.worker._done(check(bench, "any"), asked, {})
    assert answer.row == {"problem": "check: EagerFails: not for this dtype"} and not answer.well
    assert bench.table.marks(answer.row) == ["eager fails"]


def test_an_error_is_told_beside_eagers(bench):
    from torchweld.exact.budget import TensorError

    eager = dict(dtype="float32", shape=(4,), count=4, norm=2.0, eager_l2=1e-5, eager_max=1e-5,
                 scale=1.0)  # fmt: skip
    near = TensorError("near", **eager, fused_l2=1e-5, fused_max=1e-5)
    far = TensorError("far", **eager, fused_l2=2e-5, fused_max=4e-5, reason="above")
    noise = TensorError("noise", **eager | {"eager_l2": 0.9}, fused_l2=9.0, fused_max=9.0)
    report = SimpleNamespace(errors=(near, far, noise), oracle="float64")
    found = bench.check.errors_of(report)
    assert found["worst"] == "far" and 3.8 < found["error"] < 4.0
    assert found["outside"] == ["far: above"] and found["compared"] == 3


def test_without_an_oracle_only_a_large_difference_from_eager_is_wrong(bench):
    from torchweld.exact.budget import TensorError

    eager = dict(dtype="float32", shape=(4,), count=4, norm=2.0, scale=1.0, reason="above")
    near = TensorError("near", **eager, fused_l2=7e-7, fused_max=9e-7)
    far = TensorError("far", **eager, fused_l2=1e-4, fused_max=1e-4)
    shape = TensorError("shape", "float32", (4,), reason="shape (3,) instead of (4,)")
    found = bench.check.errors_of(SimpleNamespace(errors=(near, far, shape), oracle="float32"))
    assert found["outside"] == ["far: above", "shape: shape (3,) instead of (4,)"]
    assert found["difference"] == 1e-4 and "error" not in found
    assert bench.table.error_text(found) == "1e-04 from eager"


def test_a_step_of_training_gives_all_gradients_and_keeps_the_inputs(bench):
    import torch

    problem = bench.core.PROBLEMS["rnn_step"]
    built = bench.core.build(problem, "cpu", None, train=True)
    found = bench.check.step_of("eager", built.module, built, True)()
    assert len(found) == 4 + 2 and all(g is not None for g in found)
    assert not any(t.requires_grad for t in built.inputs)
    assert not torch.is_grad_enabled() or built.module.out.weight.grad is None


def test_large_problems_are_timed_before_more_are_checked(bench):
    board, task = bench.board.Board(deque("abc"), most_held=2), bench.board.Task
    assert [board.assign([0, 1, 2]) for _ in range(3)] == [
        (0, task("check", "a")), (1, task("check", "b")), None
    ]  # fmt: skip
    board.answered(0, well=True)
    assert board.assign([0, 1, 2]) is None
    board.answered(1, well=True)
    assert board.assign([0, 1, 2]) == (0, task("time", "a"))
    board.answered(0, well=True)
    assert board.assign([0, 1, 2])[1] == task("check", "c")

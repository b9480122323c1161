"""The device's limits: what a busy machine makes of them is not kept for good. And the totals of a
step: they are all of one step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from report_example import ROOF
from torchweld.core.options import Options
from torchweld.observe.measure.trace import Step, Trace
from torchweld.observe.predict import calibrate
from torchweld.observe.predict.calibrate import better_of, roofline
from torchweld.observe.profile.rows import Run, Task
from torchweld.observe.profile.run import Seen, _totals

BUSY = replace(ROOF, processor_share=0.4, memory_bytes_per_s=1e10, launch_us=9.0,
               matmul_flops_per_s={"float32": 1e11}, operator_us={"aten::neg": 9.0})
QUIET = replace(ROOF, processor_share=0.99, operator_us={"aten::neg": 4.0, "aten::add": 5.0})


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Measures what the list holds, in turn; each call is like one of a new process."""
    given: list = []
    shares = iter(lambda: given[0].processor_share, None)
    monkeypatch.setattr(calibrate, "_measure", lambda *_: given[0])
    monkeypatch.setattr(calibrate, "share_since", lambda _: next(shares))

    def one(line):
        given[:] = [line]
        calibrate._tried.clear()
        return roofline("cpu", "A processor", Options(cache_dir=tmp_path))

    yield one
    calibrate._tried.clear()


def test_limits_of_a_quiet_machine_are_measured_once(measured):
    assert measured(QUIET) == QUIET and measured(BUSY) == QUIET


def test_limits_of_a_busy_machine_are_measured_again(measured):
    assert not measured(BUSY).trusted
    found = measured(QUIET)
    assert found.trusted and found.measured_times == 2
    assert found.memory_bytes_per_s == QUIET.memory_bytes_per_s and found.launch_us == 4.0
    assert found.operator_us == QUIET.operator_us


def test_not_for_ever_and_not_twice_in_a_process(measured):
    counts = [measured(BUSY).measured_times for _ in range(5)]
    assert counts == [1, 2, 3, 3, 3]
    calibrate._tried.clear()


def test_of_two_measurements_the_better_figures_stay():
    for found in (better_of(BUSY, QUIET), better_of(QUIET, BUSY)):
        assert found.memory_bytes_per_s == QUIET.memory_bytes_per_s
        assert found.matmul_flops_per_s == {"float32": 4e11}
        assert found.operator_us == {"aten::neg": 4.0, "aten::add": 5.0}
        assert found.processor_share == 0.99


def test_totals_are_of_one_step():
    """The step of median busy time is not the one of median length."""
    task = Task("aten::neg", "operator", ())
    lengths, busy = (100.0, 110.0, 300.0), (90.0, 105.0, 100.0)
    steps = [[Run(task, 0.0, us)] for us in busy]
    trace = Trace({}, [Step(0.0, us, (), ()) for us in lengths])
    key = (task.name, task.places, task.backward, None)
    found = _totals(Seen(steps, trace, 1.0, None), [95.0, 96.0, 97.0], {key: 0})
    assert (found.busy_us, found.profiled_us) == (100.0, 300.0)
    assert found.gaps[0].duration_us == 200.0

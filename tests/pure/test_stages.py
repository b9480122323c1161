"""Where the seconds of compiling go: stages, and the parts of them that are printed."""

from __future__ import annotations

import pytest

from torchweld.core import stages
from torchweld.core.stages import Clock, CompileSeconds, untimed


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time, which tests move on."""
    time = [0.0]
    monkeypatch.setattr(stages.time, "perf_counter", lambda: time[0])
    return time


def test_a_stage_within_another_counts_once(now):
    clock = Clock()

    def spend(seconds: float) -> float:
        now[0] += seconds
        return seconds

    def load() -> float:
        spend(1.0)
        return clock("compile", spend, 4.0) + clock("compile", spend, 2.0)

    assert clock("load", load) == 6.0
    assert clock("load", spend, 0.5) == 0.5
    assert clock.seconds == {"compile": 6.0, "load": 1.5}


def test_a_stage_that_fails_is_counted(now):
    clock = Clock()

    def fail() -> None:
        now[0] += 3.0
        raise ValueError

    with pytest.raises(ValueError):
        clock("plan", fail)
    assert clock.seconds == {"plan": 3.0}


def test_stages_of_all_graphs_are_six_parts():
    forward = {"capture": 8.0, "lower": 1.0, "rewrite": 2.0, "plan": 3.0, "load": 0.5}
    backward = {"compile": 4.0, "find plan": 0.25, "generate": 0.125}
    found = CompileSeconds.of([forward, backward])
    assert found == CompileSeconds(8.0, 1.0, 5.0, 0.125, 4.0, 0.75)
    assert found.total == sum((*forward.values(), *backward.values()))
    assert str(found).startswith("capture 8.00, lower 1.00, plan 5.00, generate 0.1")


def test_untimed_gives_what_the_stage_gives():
    assert untimed("plan", divmod, 7, 2) == (3, 1)

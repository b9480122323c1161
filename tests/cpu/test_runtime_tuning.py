"""Measured choices: made once, remembered, and never against the evidence."""

from __future__ import annotations

import pytest

from torchweld.core.options import Options
from torchweld.ir.parser import parse_graph
from torchweld.profile.timers import paired_medians
from torchweld.runtime.tuning import Tuner

TEXT = """
graph alone {
  buffer x7 : f32[16, 8] strides [8, 1] on cpu
  buffer w7 : f32[8, 4] strides [4, 1] on cpu frozen
  buffer y7 : f32[16, 4] strides [4, 1] on cpu
  input x7, w7
  extern call7 y7 = "aten.mm.default"(view(x7, [16, 8], [8, 1], 0), view(w7, [8, 4], [4, 1], 0)) {
  }
  output view(y7, [16, 4], [4, 1], 0)
}"""
NOW = parse_graph(TEXT)
OTHER = parse_graph(TEXT.replace("aten.mm.default", "aten.matmul.default"))
RENAMED = parse_graph(TEXT.replace("7", "8"))


class Clock:
    """A timer that runs each call once and says what it is told."""

    def __init__(self, *times: float) -> None:
        self.times, self.asked = times, 0

    def __call__(self, calls, device):
        self.asked += 1
        assert device == "cpu"
        assert all(len(call()) == 1 for call in calls)
        return self.times


@pytest.fixture
def options(tmp_path) -> Options:
    return Options(cache_dir=tmp_path)


@pytest.mark.parametrize("times, wins", [((10, 5), True), ((10, 9.9), False), ((5, 10), False)])
def test_only_a_clear_win_counts(options, times, wins):
    assert Tuner(options, Clock(*times)).faster(NOW, OTHER) is wins


def test_what_is_known_is_not_measured_again(options):
    clock = Clock(10, 5)
    assert Tuner(options, clock).faster(NOW, OTHER)
    later = Clock(5, 10)
    assert Tuner(options, later).faster(NOW, OTHER)
    assert (clock.asked, later.asked) == (1, 0)


def test_layers_that_differ_in_names_are_measured_once(options):
    clock = Clock(10)
    tuner = Tuner(options, clock)
    assert tuner.times_us([NOW]) == tuner.times_us([RENAMED])
    assert clock.asked == 1


def test_without_a_budget_nothing_is_measured(options):
    clock = Clock(10, 5)
    for refused in (options.with_(tune=False), options.with_(tune_seconds=0.0)):
        assert not Tuner(refused, clock).faster(NOW, OTHER)
    assert clock.asked == 0


def test_the_real_timer_gives_positive_times(options):
    times = Tuner(options, lambda calls, device: paired_medians(calls, device, 0.01)).times_us(
        [NOW, OTHER]
    )
    assert all(t > 0 for t in times)

"""What a profile may cost."""

from __future__ import annotations

import pytest

from torchweld.observe.profile.budget import budget_of, capture_s

OPERATIONS = 1200  # of the training of twelve layers


@pytest.mark.parametrize("captures", [False, True])
@pytest.mark.parametrize("step_s", [1e-5, 0.01, 0.3, 0.99, 1.0, 1.5])
def test_a_profile_takes_less_than_three_runs_and_ten_seconds(step_s, captures):
    budget = budget_of(step_s, captures)
    looks = 2  # the first step, and one that looks at memory
    taken = (looks + budget.timed + budget.warms + budget.profiled) * step_s
    taken += captures * capture_s(step_s, OPERATIONS)
    assert budget.timed >= 1 and budget.profiled >= 1
    assert taken <= budget.allowed_s == 3 * step_s + 10


@pytest.mark.parametrize("step_s", [5.0, 9.9, 60.0])
def test_of_long_steps_four_are_run(step_s):
    budget = budget_of(step_s, captures=True)
    assert (budget.timed, budget.profiled, budget.warms) == (1, 1, False)


def test_short_steps_are_measured_often():
    budget = budget_of(1e-4, captures=True)
    assert (budget.timed, budget.profiled, budget.warms) == (20, 5, True)

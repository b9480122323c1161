"""What a profile may cost: three times the run and ten seconds, one step being the run."""

from __future__ import annotations

from dataclasses import dataclass

ALLOWED_RUNS, ALLOWED_S = 3, 10.0
_MOST_TIMED, _MOST_PROFILED = 20, 5
_RESERVED_S = 4.0  # for a capture, of whose size nothing is known yet
_CAPTURE_S = 3e-3  # of an operation: Dynamo, AOTAutograd, lowering and planning
_LONG_S = 1.0  # a step beside which what the profiler does at first is nothing


@dataclass(frozen=True)
class Budget:
    """`timed`, `profiled`: how many steps. `warms`: whether another step under the profiler goes
    before. `allowed_s`: of the whole profile."""

    timed: int
    profiled: int
    warms: bool
    allowed_s: float


def budget_of(step_s: float, captures: bool) -> Budget:
    """For steps of so many seconds. A first step has been run, another looks at memory, and with
    `captures` a third one runs what was captured."""
    step_s = max(step_s, 1e-6)
    allowed_s = ALLOWED_RUNS * step_s + ALLOWED_S
    warms = step_s < _LONG_S
    left_s = allowed_s - (2 + warms) * step_s - captures * (_RESERVED_S + step_s)
    steps = max(0.0, left_s / step_s)
    profiled = int(min(_MOST_PROFILED, max(1.0, steps / 3)))
    return Budget(int(min(_MOST_TIMED, max(1.0, steps - profiled))), profiled, warms, allowed_s)


def capture_s(step_s: float, operations: int) -> float:
    """What it takes to capture and plan a step of so many operations, and to run it once."""
    return step_s + _CAPTURE_S * operations

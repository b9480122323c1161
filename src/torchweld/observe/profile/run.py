"""A profile of a subject, from its first step to the record that tells all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torchweld.core.errors import one_line
from torchweld.core.files import write_whole
from torchweld.core.logs import logger
from torchweld.core.machine import device_name, versions
from torchweld.core.options import Options
from torchweld.observe.measure.energy import energy_of
from torchweld.observe.measure.memory import added_bytes
from torchweld.observe.measure.recorder import record
from torchweld.observe.measure.subject import Subject, first_step
from torchweld.observe.measure.trace import Trace
from torchweld.observe.measure.tracing import trace_steps
from torchweld.observe.predict.calibrate import calibrated, roofline
from torchweld.observe.profile import compiled, eager, rows
from torchweld.observe.profile.budget import Budget, budget_of, capture_s
from torchweld.observe.profile.held import planned_memory, recorded_memory
from torchweld.observe.profile.opportunities import Planned, PlanOf, opportunities, planned_graphs
from torchweld.observe.profile.rows import Runs
from torchweld.observe.profile.track import trace_text
from torchweld.observe.record.profile import (
    SCHEMA_VERSION,
    Memory,
    Profile,
    Roofline,
    Totals,
)
from torchweld.runtime.regions import named_regions

_WARM_GRAPHS = 3  # steps until CUDA graphs are recorded
_COMPILATIONS = 1 << 20  # Dynamo counts targets of one class as one function, and gives up at 8
_UNDISTURBED = 0.85
_DISTURBED = ("this process had its processor for {:.0%} of the time: something else is running, "
              "so measured times are too long")
_NOT_SOUGHT = ("fusion opportunities were skipped: finding them takes about {:.0f} s. "
               "--opportunities (opportunities=True) finds them anyway")
_NOTHING_COMPILED = "nothing was compiled for this target: it runs in eager"


@dataclass(frozen=True)
class Seen:
    """`steps`: the runs of each profiled step of `trace`."""

    steps: list[Runs]
    trace: Trace
    tied_share: float
    memory: Memory | None

    @property
    def lengths_us(self) -> list[float]:
        """Time of each profiled step."""
        return [step.duration_us for step in self.trace.steps]

    @property
    def typical(self) -> Runs:
        """The step whose busy time is the median one."""
        return self.steps[rows.median_step(self.steps)]


@torch.compiler.config.patch(
    recompile_limit=_COMPILATIONS, accumulated_recompile_limit=_COMPILATIONS)
def profile_subject(
    subject: Subject,
    way: str,
    *,
    records: Callable[[], Sequence] = list,
    plan_of: PlanOf | None = None,
    insists: bool = False,
    options: Options | None = None,
    trace: Path | None = None,
) -> Profile:
    """`records`: the pipeline's, of way "torchweld", once the subject has run. `plan_of`: plans a
    captured graph; without it, and for ways other than eager, nobody looks for opportunities.
    `insists`: they are looked for however long that takes. `trace`: where the trace is written too,
    with the kernels by operation. Errors: UsageError if the subject does not run."""
    plan_of = plan_of if way == "eager" else None
    line, clock = _ready(subject, way, options), _Clock(subject)
    budget = budget_of(clock.step_s, plan_of is not None)
    logger("profiling").info("%s, %s: %d steps timed, %d profiled", subject.name, way,
                             budget.timed, budget.profiled)
    step_us, share = clock.timed(budget.timed)
    seen = _SEE[way](subject, budget, records)
    doubts = _doubts(subject, way, records, share)
    graphs: list[Planned] = []
    if plan_of:
        wanted_s = capture_s(clock.step_s, len(seen.typical))
        if insists or clock.spent_s + wanted_s <= budget.allowed_s:
            graphs, problems = _plan(subject, plan_of, options or Options())
            doubts += problems
        else:
            doubts.append(_NOT_SOUGHT.format(wanted_s))
    return _profile(subject, way, line, step_us, seen, graphs, doubts, trace)


def _profile(
    subject: Subject,
    way: str,
    line: Roofline,
    step_us: list[float],
    seen: Seen,
    graphs: Sequence[Planned],
    warnings: list[str],
    trace: Path | None,
) -> Profile:
    table = calibrated(line)
    kernels, numbers = rows.kernels_of(seen.steps, line, table)
    if trace is not None:
        write_whole(trace_text(seen.trace, seen.steps, kernels, numbers), trace)
    return Profile(
        schema_version=SCHEMA_VERSION,
        target=subject.name,
        way=way,
        train=subject.train,
        inputs=subject.input_texts,
        versions=versions(),
        steps=len(seen.steps),
        roofline=line,
        totals=_totals(seen, step_us, numbers),
        kernels=kernels,
        launches=rows.timeline(seen.typical, numbers),
        modules=rows.module_sums(kernels),
        memory=seen.memory,
        opportunities=opportunities(graphs, kernels, line, table),
        accuracy=rows.accuracy_of(kernels),
        energy=energy_of(subject),
        warnings=warnings,
    )


def _ready(subject: Subject, way: str, options: Options | None) -> Roofline:
    """The device's limits; the subject has run, and what is recorded of it is."""
    first_step(subject)
    for _ in range(_WARM_GRAPHS if subject.device == "cuda" and way != "eager" else 0):
        subject.step()
    return roofline(subject.device, device_name(subject.device), options)


class _Clock:
    """Times steps, from the second on. `step_s`: of that one."""

    def __init__(self, subject: Subject) -> None:
        self._subject, self._start = subject, time.perf_counter()
        self._had_s, self.step_s = time.thread_time(), subject.timed_step()

    @property
    def spent_s(self) -> float:
        """So far, the first step too."""
        return time.perf_counter() - self._start + self.step_s

    def timed(self, count: int) -> tuple[list[float], float]:
        """Microseconds of each step, and the share of them in which this thread had a processor."""
        steps_s = [self.step_s, *(self._subject.timed_step() for _ in range(count - 1))]
        share = (time.thread_time() - self._had_s) / (time.perf_counter() - self._start)
        return [1e6 * s for s in steps_s], share


def _doubts(subject: Subject, way: str, records: Callable, share: float) -> list[str]:
    """`share`: of the time, in which the subject had a processor."""
    doubts = [_NOTHING_COMPILED] if way == "torchweld" and not records() else []
    disturbed = subject.device == "cpu" and share < _UNDISTURBED
    return doubts + ([_DISTURBED.format(share)] if disturbed else [])


def _plan(
    subject: Subject, plan_of: PlanOf, options: Options
) -> tuple[list[Planned], list[str]]:
    """The planned graphs of a step, and what went wrong."""
    try:
        return planned_graphs(subject, plan_of, options), []
    except Exception as error:  # whatever torch's tracing makes of a user's model
        return [], [f"no fusion opportunities: the target cannot be captured: {one_line(error)}"]


def _totals(seen: Seen, step_us: list[float], numbers: dict) -> Totals:
    typical = rows.median_step(seen.steps)
    median, busy = statistics.median(step_us), rows.busy_us(seen.typical)
    quartiles = statistics.quantiles(step_us, n=4, method="inclusive") if step_us[1:] else [0, 0, 0]
    return Totals(
        step_us=median,
        step_iqr_us=quartiles[2] - quartiles[0],
        profiled_us=max(busy, seen.lengths_us[typical]),
        busy_us=busy,
        host_bound_us=max(0.0, median - busy),
        gaps=rows.gaps(seen.typical, numbers, seen.lengths_us[typical]),
        tied_share=seen.tied_share,
    )


def _see_eager(subject: Subject, budget: Budget, records) -> Seen:
    recording = record(subject.step, subject.module_names)
    trace = _traced(subject, budget)
    if subject.device == "cuda":
        runs = eager.kernel_runs(recording.calls, trace.steps)
        tied = eager.tied_share(runs)
    else:
        runs = eager.operator_runs(recording.calls, trace.steps)
        tied = eager.found_share(recording.calls, runs)
    typical = runs[rows.median_step(runs)]
    return Seen(runs, trace, tied, recorded_memory(recording, typical, subject.resident_bytes))


def _see_torchweld(subject: Subject, budget: Budget, records) -> Seen:
    tasks = compiled.tasks_of(records())
    on_gpu = subject.device == "cuda"
    with named_regions():
        trace = _traced(subject, replace(budget, profiled=1) if on_gpu else budget)
    if on_gpu:  # as the user runs it: in CUDA graphs
        known = compiled.launched_in(tasks, trace.steps[0])
        trace = _traced(subject, budget)
        runs = compiled.replayed_runs(known, trace.steps)
    else:
        runs = compiled.region_runs(tasks, trace.steps)
    peak, typical = added_bytes(subject.step, subject.device), runs[rows.median_step(runs)]
    memory = planned_memory(records(), typical, peak, subject.resident_bytes)
    return Seen(runs, trace, eager.tied_share(runs), memory)


def _see_inductor(subject: Subject, budget: Budget, records) -> Seen:
    """Nothing is tied to a line: Inductor keeps that to itself."""
    trace = _traced(subject, budget)
    if subject.device == "cuda":
        runs = compiled.replayed_runs((), trace.steps)
    else:
        runs = compiled.region_runs({}, trace.steps)
    peak = added_bytes(subject.step, subject.device)
    memory = Memory(peak, subject.resident_bytes, None, [], [])
    return Seen(runs, trace, eager.tied_share(runs), memory)


def _traced(subject: Subject, budget: Budget) -> Trace:
    return trace_steps(subject.step, subject.device, budget.profiled, budget.warms)


_SEE = {"eager": _see_eager, "torchweld": _see_torchweld, "inductor": _see_inductor}

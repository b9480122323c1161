"""From runs of kernels to the rows, sums and totals of a profile."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchweld.observe.predict.limits import least_us, predict_us, regime_of
from torchweld.observe.predict.work import Work
from torchweld.observe.record.profile import (
    Accuracy,
    Gap,
    Kernel,
    Launch,
    ModuleSum,
    Place,
    Roofline,
)
from torchweld.targets.target import Target

_LONGEST_GAPS = 10
_WORST = 10
_MATTERS = 0.002  # share of the kernels' time; below, a miss is not named
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Task:
    """A kernel at one place of the program. `work`: of one call, None if it is not known.
    `region`: the name of the range of torchweld's node that it is in, if it is in one."""

    name: str
    kind: str
    places: tuple[Place, ...]
    backward: bool = False
    work: Work | None = None
    region: str = ""


@dataclass(frozen=True)
class Run:
    """One run of a task, from the start of its step."""

    task: Task
    start_us: float
    duration_us: float

    @property
    def end_us(self) -> float:
        """From the start of the step."""
        return self.start_us + self.duration_us


Runs = Sequence[Run]  # of one step, in order of time


def kernels_of(
    steps: Sequence[Runs], line: Roofline, table: Target
) -> tuple[list[Kernel], dict[tuple, int]]:
    """A row for each kernel at each place, in the order of first runs, and the row's number by
    `key_of` a task. Times are medians over the steps."""
    found: dict[tuple, list[Run]] = defaultdict(list)
    for runs in steps:
        for run in runs:
            found[key_of(run.task)].append(run)
    numbers = {key: number for number, key in enumerate(found)}
    of_step = [_time_by_key(runs) for runs in steps]
    rows = []
    for key, number in numbers.items():
        calls = max(1, round(len(found[key]) / len(steps)))
        measured = statistics.median(times.get(key, 0.0) for times in of_step)
        rows.append(_kernel(number, found[key][0].task, calls, measured, line, table))
    return rows, numbers


def key_of(task: Task) -> tuple:
    """Equal for runs of one kernel."""
    work = task.work
    return task.name, task.places, task.backward, work and (work.bytes, work.flops)


def _time_by_key(runs: Runs) -> dict[tuple, float]:
    times: dict[tuple, float] = defaultdict(float)
    for run in runs:
        times[key_of(run.task)] += run.duration_us
    return times


def _kernel(
    number: int, task: Task, calls: int, measured_us: float, line: Roofline, table: Target
) -> Kernel:
    work = task.work
    share = calls * least_us(work, line) / measured_us if work and measured_us > 0 else None
    return Kernel(
        id=number,
        name=task.name,
        kind=task.kind,
        places=list(task.places),
        phase="backward" if task.backward else "forward",
        dtype=work.dtype if work else "-",
        calls=calls,
        measured_us=measured_us,
        predicted_us=calls * predict_us(work, line, table) if work else None,
        bytes=calls * work.bytes if work else None,
        flops=calls * work.flops if work else None,
        product=bool(work and work.product),
        regime=regime_of(work, line) if work else UNKNOWN,
        limit_share=None if share is None else min(1.0, share),
    )


def timeline(runs: Runs, numbers: dict[tuple, int]) -> list[Launch]:
    """A launch for each run; `numbers`: kernel ids, by `key_of`."""
    return [Launch(numbers[key_of(r.task)], r.start_us, r.duration_us) for r in runs]


def median_step(steps: Sequence[Runs]) -> int:
    """The step whose busy time is the median one."""
    order = sorted(range(len(steps)), key=lambda k: busy_us(steps[k]))
    return order[len(order) // 2]


def busy_us(runs: Runs) -> float:
    """Time in which at least one kernel runs."""
    busy = end = 0.0
    for run in sorted(runs, key=lambda r: r.start_us):
        busy += max(0.0, run.end_us - max(end, run.start_us))
        end = max(end, run.end_us)
    return busy


def gaps(runs: Runs, numbers: dict[tuple, int], step_us: float) -> list[Gap]:
    """The longest times without a kernel, those before the first and after the last too."""
    found, end, last = [], 0.0, None
    for run in sorted(runs, key=lambda r: r.start_us):
        number = numbers[key_of(run.task)]
        if run.start_us > end:
            found.append(Gap(end, run.start_us - end, last, number))
        if run.end_us >= end:
            end, last = run.end_us, number
    if step_us > end:
        found.append(Gap(end, step_us - end, last, None))
    return sorted(found, key=lambda g: -g.duration_us)[:_LONGEST_GAPS]


def module_sums(kernels: Iterable[Kernel]) -> list[ModuleSum]:
    """Of every module on the way from the whole model to each kernel's own, parents first, in the
    order of the program."""
    sums: dict[str, ModuleSum] = {"": ModuleSum("", 0, 0.0, 0.0, 0, 0.0)}
    for kernel in kernels:
        for path, share in _shares(kernel.places).items():
            before = sums.get(path, ModuleSum(path, 0, 0.0, 0.0, 0, 0.0))
            sums[path] = replace(
                before,
                kernels=before.kernels + kernel.calls,
                measured_us=before.measured_us + share * kernel.measured_us,
                predicted_us=before.predicted_us + share * (kernel.predicted_us or 0.0),
                bytes=before.bytes + round(share * (kernel.bytes or 0)),
                flops=before.flops + share * (kernel.flops or 0.0),
            )
    return _parents_first(sums)


def _shares(places: Sequence[Place]) -> dict[str, float]:
    """Module path -> the share of the operations that are in it or below."""
    shares: dict[str, float] = defaultdict(float)
    for place in places or [Place("")]:
        parts = place.module.split(".") if place.module else []
        for depth in range(len(parts) + 1):
            shares[".".join(parts[:depth])] += 1 / max(1, len(places))
    return shares


def _parents_first(sums: dict[str, ModuleSum]) -> list[ModuleSum]:
    first = {path: number for number, path in enumerate(sums)}

    def order(path: str) -> list[int]:
        parts = path.split(".") if path else []
        return [first[".".join(parts[: d + 1])] for d in range(len(parts))]

    return [sums[path] for path in sorted(sums, key=order)]


def accuracy_of(kernels: Sequence[Kernel]) -> Accuracy:
    """Of the predictions, over the kernels that have one."""
    known = [k for k in kernels if k.miss is not None]
    if not known:
        return Accuracy(0, None, None, None, [])
    total = sum(k.measured_us for k in known)
    matter = [k for k in known if k.measured_us >= _MATTERS * total]
    longer = [k.miss for k in known if k.regime != "launch"]
    worst = sorted(matter, key=lambda k: -abs(k.measured_us - k.predicted_us))
    return Accuracy(
        kernels=len(known),
        median_abs_log=statistics.median(abs(k.miss) for k in known),
        weighted_abs_log=sum(abs(k.miss) * k.measured_us for k in known) / total,
        within_two=sum(abs(k.miss) <= 0.6931471805599453 for k in known) / len(known),
        worst=[k.id for k in worst[:_WORST]],
        bias=statistics.median(longer) if longer else None,
    )

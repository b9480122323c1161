"""Eager: each operator of a trace, and each kernel that it launched, tied to the call that was
recorded for it."""

from __future__ import annotations

from collections.abc import Sequence

from torchweld.observe.measure.match import match_operators
from torchweld.observe.measure.recorder import Call
from torchweld.observe.measure.trace import Device, Host, Step
from torchweld.observe.predict.work import Work, call_work
from torchweld.observe.profile.rows import Run, Runs, Task


def operator_runs(calls: Sequence[Call], steps: Sequence[Step]) -> list[Runs]:
    """On a CPU, where operators are the kernels: a Run for each call that is in the trace."""
    tasks = [
        Task(call.name, "operator", (call.place,), call.backward, call_work(call))
        for call in calls
    ]
    return [_operators(tasks, step) for step in steps]


def kernel_runs(calls: Sequence[Call], steps: Sequence[Step]) -> list[Runs]:
    """On a GPU: a Run for each device kernel, without places if no call launched it."""
    return [_kernels(calls, step) for step in steps]


def found_share(calls: Sequence[Call], steps: Sequence[Runs]) -> float:
    """The share of the calls that the traces show."""
    expected = len(calls) * len(steps)
    return sum(map(len, steps)) / expected if expected else 1.0


def tied_share(steps: Sequence[Runs]) -> float:
    """The share of the kernels' time whose operation is known."""
    runs = [run for step in steps for run in step]
    total = sum(run.duration_us for run in runs)
    tied = sum(run.duration_us for run in runs if run.task.places)
    return tied / total if total else 1.0


def spread(kernels: Sequence[Device], work: Work | None) -> list[Work | None]:
    """The work of a call that launched several kernels is the longest one's."""
    longest = max(kernels, key=lambda k: k.duration_us, default=None)
    return [work if kernel is longest else None for kernel in kernels]


def kind_of(kernel: Device, usual: str) -> str:
    """copy for a memory copy, else `usual`."""
    return "copy" if kernel.copy else usual


def _operators(tasks: Sequence[Task], step: Step) -> Runs:
    events = match_operators([t.name for t in tasks], step.operators)
    return [Run(task, event.start_us - step.start_us, event.duration_us)
            for task, event in zip(tasks, events) if event is not None]


def _kernels(calls: Sequence[Call], step: Step) -> Runs:
    events = match_operators([c.name for c in calls], step.operators)
    launched = {id(k): task for call, event in zip(calls, events) if event is not None
                for k, task in _launched(call, event)}
    untied = {id(k): Task(k.name, kind_of(k, "operator"), ()) for k in step.kernels}
    return [Run(launched.get(id(k), untied[id(k)]), k.start_us - step.start_us, k.duration_us)
            for k in step.kernels]


def _launched(call: Call, event: Host) -> list[tuple[Device, Task]]:
    kernels = event.all_kernels()
    works = spread(kernels, call_work(call))
    return [(k, Task(k.name, kind_of(k, "operator"), (call.place,), call.backward, work))
            for k, work in zip(kernels, works)]

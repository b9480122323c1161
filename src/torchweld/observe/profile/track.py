"""The profiler's trace with torchweld's own track in it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from torchweld.observe.measure.trace import Trace
from torchweld.observe.profile.rows import Runs, key_of
from torchweld.observe.record.profile import Kernel

_TRACK = "torchweld"


def trace_text(
    trace: Trace, steps: Sequence[Runs], kernels: Sequence[Kernel], numbers: dict[tuple, int]
) -> str:
    """The trace as Chrome's and Perfetto's JSON, with a track more: each kernel by its operations
    and module, with its line, its prediction and what limits it. `steps`: the runs of each step of
    `trace`; `numbers`: the kernel of a task's key."""
    events = [{"ph": "M", "name": "process_name", "pid": _TRACK, "tid": 0,
               "args": {"name": "torchweld: kernels by operation"}}]
    for step, runs in zip(trace.steps, steps):
        for run in runs:
            kernel = kernels[numbers[key_of(run.task)]]
            events.append({
                "ph": "X", "cat": _TRACK, "pid": _TRACK, "tid": 0, "name": title(kernel),
                "ts": step.start_us + run.start_us, "dur": run.duration_us,
                "args": _details(kernel),
            })  # fmt: skip
    return json.dumps(trace.content | {"traceEvents": trace.content["traceEvents"] + events})


def title(kernel: Kernel) -> str:
    """add, layer_norm @ encoder.layer.0.output"""
    names = [p.short_op for p in kernel.places] or [kernel.name]
    modules = list(dict.fromkeys(p.module for p in kernel.places if p.module))
    where = f" @ {modules[0]}" + (" ..." if modules[1:] else "") if modules else ""
    return ", ".join(dict.fromkeys(names)) + where


def _details(kernel: Kernel) -> dict:
    share = kernel.limit_share
    return {
        "kernel": kernel.name,
        "lines": list(dict.fromkeys(p.source for p in kernel.places if p.source)),
        "phase": kernel.phase,
        "limited by": kernel.regime,
        "share of the limit": None if share is None else round(share, 3),
        "predicted us": kernel.predicted_us and round(kernel.predicted_us / kernel.calls, 3),
        "bytes": kernel.bytes and kernel.bytes // kernel.calls,
        "flops": kernel.flops and kernel.flops / kernel.calls,
    }

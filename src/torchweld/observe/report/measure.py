"""Measure a target in several ways, paired, in one process: the figures of a report."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torchweld.api import records
from torchweld.core.errors import UsageError, one_line
from torchweld.observe.measure.memory import added_bytes, live_bytes
from torchweld.observe.measure.paired import Paired, time_paired
from torchweld.observe.measure.recorder import record
from torchweld.observe.measure.tracing import trace_steps
from torchweld.observe.predict.work import call_work
from torchweld.observe.record.report import Timing, Way
from torchweld.observe.report.ways import WAYS, fresh_inductor_cache, inductor_cpu_calls
from torchweld.observe.report.work import bytes_moved, kernel_count


@dataclass(frozen=True)
class Workload:
    """What is run: `model(*args, **kwargs)`, and when training the backward pass of the scalar
    that it returns, then `after()`, such as an optimiser's step. `device`: "cpu" or "cuda"."""

    model: torch.nn.Module
    args: tuple
    kwargs: dict
    train: bool
    device: str
    after: Callable[[], object] | None = None

    @property
    def inputs(self) -> tuple[tuple, dict]:
        """As `fuse` and `verify` take them."""
        return self.args, self.kwargs

    def call(self, run: Callable) -> object:
        """One step by `run`, which stands in for the model."""
        if not self.train:
            with torch.no_grad():
                return run(*self.args, **self.kwargs)
        self.model.zero_grad(set_to_none=True)
        loss = run(*self.args, **self.kwargs)
        loss.backward()
        if self.after:
            self.after()
        return loss.detach()


@dataclass
class Prepared:
    """A way made ready: what stands in for the model, and what its first call showed."""

    name: str
    run: Callable
    first_call_s: float
    kept_bytes: int
    inductor_was_cold: bool
    inductor_calls: int = 0

    def step(self, workload: Workload) -> Callable[[], object]:
        """One call of the way, as it is timed."""
        if not WAYS[self.name].replays:
            return lambda: workload.call(self.run)

        def replayed() -> object:
            torch.compiler.cudagraph_mark_step_begin()
            return workload.call(self.run)

        return replayed


Heard = Callable[[str, float], None]  # (what is being done, fraction done)
WARM_CALLS = 3  # reduce-overhead records its graph in the second call and replays from the third


def measure(
    names: list[str], workload: Workload, seconds: float, heard: Heard
) -> tuple[list[Way], dict[str, Prepared]]:
    """Ways in the order of `names`, timed for about `seconds`. A way that does not run is reported
    with its problem; torchweld's own failure is raised.

    Inductor's modes share a cache that is empty at first, so the first of them starts cold.
    """
    ways, ready = [], {}
    _import_dynamo()
    with fresh_inductor_cache() as cache:
        for count, name in enumerate(names):
            heard(f"compile and call: {name}", 0.5 * count / len(names))
            try:
                ready[name] = prepare(name, workload, cache)
                ways.append(_way(ready[name], workload))
            except Exception as error:
                if name == "torchweld":
                    raise
                ready.pop(name, None)
                ways.append(Way(name, problem=one_line(error)))
        timed = _time(ready, workload, seconds, lambda d: heard("time, paired", 0.5 + 0.5 * d))
    workload.model.zero_grad(set_to_none=True)
    return [replace(way, timing=timed.get(way.name)) for way in ways], ready


def check_trains(target: str, workload: Workload) -> None:
    """Makes one step in eager. Errors: UsageError if it fails: no gradient, a backward that
    raises."""
    try:
        workload.call(workload.model)
    except Exception as error:
        raise UsageError(
            f"a training step of {target} fails in eager: {one_line(error)}",
            do="give a model with parameters, whose loss has a gradient",
        ) from error
    finally:
        workload.model.zero_grad(set_to_none=True)


def prepare(name: str, workload: Workload, inductor_cache: Path) -> Prepared:
    """Builds the named way and makes its first call, then warms it. Raises what the way raises."""
    before, started_cold = live_bytes(workload.device), not any(inductor_cache.iterdir())
    calls_before = inductor_cpu_calls(inductor_cache)
    start = time.perf_counter()
    run = WAYS[name].prepare(workload.model, workload.inputs, workload.train)
    ready = Prepared(name, run, 0.0, 0, started_cold)
    ready.step(workload)()
    _wait(workload.device)
    ready.first_call_s = time.perf_counter() - start
    for _ in range(WARM_CALLS):
        ready.step(workload)()
    ready.inductor_calls = inductor_cpu_calls(inductor_cache) - calls_before
    workload.model.zero_grad(set_to_none=True)
    ready.kept_bytes = max(0, live_bytes(workload.device) - before)
    return ready


def _import_dynamo() -> None:
    """Every compiler here starts from Dynamo: none is charged for importing it."""
    torch.compile(torch.neg, backend="eager")(torch.ones(()))


def _way(ready: Prepared, workload: Workload) -> Way:
    return Way(ready.name, first_call_s=ready.first_call_s, **_figures(ready, workload))


def _figures(ready: Prepared, workload: Workload) -> dict:
    """Fields of Way, other than times and errors."""
    step = ready.step(workload)
    found = _FIGURES.get(ready.name, _inductor_figures)(ready, step)
    if workload.device == "cuda":
        (traced,) = trace_steps(step, "cuda", 1, warms=False).steps
        found["kernels"] = sum(not kernel.copy for kernel in traced.kernels)
    workload.model.zero_grad(set_to_none=True)
    return found | {"peak_bytes": ready.kept_bytes + added_bytes(step, workload.device)}


def _eager_figures(ready: Prepared, step: Callable) -> dict:
    calls = record(step, {}).calls
    return {"kernels": len(calls), "bytes_moved": sum(call_work(call).bytes for call in calls)}


def _inductor_figures(ready: Prepared, step: Callable) -> dict:
    found = "cold" if ready.inductor_was_cold else "warm"
    return {"kernels": ready.inductor_calls or None, "first_call_cache": found}


def _torchweld_figures(ready: Prepared, step: Callable) -> dict:
    made = records(ready.run)
    if not made:  # it runs in eager
        return {}
    return {
        "kernels": kernel_count(made),
        "bytes_moved": bytes_moved(made),
        "first_call_cache": "warm" if all(record.cached for record in made) else "cold",
    }


_FIGURES = {"eager": _eager_figures, "torchweld": _torchweld_figures}


def _time(
    ready: dict[str, Prepared], workload: Workload, seconds: float, on_round
) -> dict[str, Timing]:
    steps = {name: way.step(workload) for name, way in ready.items()}
    paired = time_paired(steps, workload.device, seconds, on_round)
    return {name: _timing(paired, name) for name in steps}


def _timing(paired: Paired, name: str) -> Timing:
    pairs = zip(paired.times_ms[name], paired.times_ms["torchweld"])
    low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4, method="inclusive")
    return Timing(
        paired.rounds, paired.median_ms(name), paired.iqr_ms(name), middle, low, high,
        paired.processor_share,
    )  # fmt: skip


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """CPU threads of torch inside; None leaves them."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

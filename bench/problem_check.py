"""One problem: its errors and graphs, and its times beside other ways."""

from __future__ import annotations

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

WARM_CALLS = 3  # CUDA graphs are recorded in the second call and replayed from the third
OURS = "torchweld"
ROUNDINGS = 30  # by which two ways to compute a network of some layers may differ
TRACED = 3  # steps
LONGEST = 12  # kernels of a way that are named


@dataclass(frozen=True)
class Asked:
    """`dtype`: None for each problem's usual one. `ways`: names of report.ways to compare with,
    without torchweld; empty: nothing is timed. `seconds`: of timing a problem. `processor`: on a
    CPU, times are the process's time on it, which is fair beside other work with one thread."""

    device: str
    dtype: str | None
    train: bool
    ways: tuple[str, ...]
    seconds: float
    processor: bool = False


def wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def lives(device: str) -> bool:
    """Whether the device can be used after an error: not if it was the device's own."""
    import torch

    try:
        wait(device)
        torch.zeros(1, device=device).sum().item()
    except RuntimeError:
        return False
    return True


# What ways raised. Where torch.compile cannot trace a `jvp`, guards of the dispatcher stay in the
# frames of its error. When those are collected, later, the thread's dispatch keys become what they
# were inside: complex conjugates, among others, are wrong from then on (torch 2.13.0).
_RAISED: list[BaseException] = []

# -- check --


def checked(name: str, asked: Asked) -> tuple[dict, dict[str, Callable]]:
    """The figures of torchweld's results beside eager's, and the calls to time: one for each way
    that runs, warm. None if nothing is to be timed. Errors: what torchweld raises; EagerFails if
    eager does, too."""
    import torch

    built = _built(name, asked)
    try:
        step, row = _first_calls(built, asked)
    except Exception as error:
        if lives(asked.device) and not isinstance(error, torch.OutOfMemoryError):
            run_eager(built, asked.train, error)
        raise
    if not asked.ways:
        return row, {}
    steps, problems = _others(built, asked)
    _warm(step)
    return row | {"problems": problems}, {**steps, OURS: step}


def _first_calls(built, asked: Asked) -> tuple[Callable, dict]:
    """torchweld's call, and its figures."""
    from torchweld.core.events import TorchweldWarning, clear, events
    from torchweld.exact.verify import verify

    clock = time.perf_counter
    clear()  # or a warning that an earlier problem had would be silent
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        start = clock()
        run = _made(OURS, built, asked)
        step = step_of(OURS, run, built, asked.train)
        step(), wait(asked.device)
        first = clock() - start
        report = verify(built.module, run, built.inputs, train=asked.train, seeds=(0,))
    told = [str(w.message) for w in heard if issubclass(w.category, TorchweldWarning)]
    notes = [event.message for event in events() if not any(event.message in t for t in told)]
    row = {"first_call_s": first, "warnings": told, "events": notes}
    return step, row | graphs_of(run, asked.train) | errors_of(report)


class EagerFails(Exception):
    """The problem does not run in this dtype, or not on this device."""


def run_eager(built, train: bool, error: Exception | None = None) -> None:
    """Errors: EagerFails, because of `error`."""
    try:
        step_of("eager", built.module, built, train)()
    except Exception as eagers:
        raise EagerFails(f"{eagers}") from error


def _built(name: str, asked: Asked):
    import torch

    from problem_set.catalogue import PROBLEMS
    from problem_set.core import build

    dtype = getattr(torch, asked.dtype) if asked.dtype else None
    return build(PROBLEMS[name], asked.device, dtype, asked.train)


def _made(way: str, built, asked: Asked) -> Callable:
    from torchweld.observe.report.ways import WAYS

    return WAYS[way].prepare(built.module, (built.inputs, {}), asked.train)


def graphs_of(run: Callable, train: bool) -> dict:
    """`graphs`: compiled by torchweld; `in_eager`: captured, and run as they are; `cut`: there are
    more than a forward and, to train, a backward; `kernels`: and library calls, in all graphs."""
    from torchweld.api import captured_graphs, records
    from torchweld.observe.report.work import kernel_count

    made = records(run)
    count = len(captured_graphs(run))
    found = {"graphs": len(made), "in_eager": count - len(made), "cut": count > 1 + train}
    return found | {"kernels": kernel_count(made)}


def errors_of(report) -> dict:
    """`error`: the largest ratio of torchweld's error to eager's, over all results; where eager's
    is nothing, to one rounding. `ours`, `eagers`: the relative L2 errors of that result.
    `outside`: what is outside the contract. A result of which eager has no correct digit says
    nothing. Without an oracle in float64, `difference` is the largest relative one from eager."""
    from torchweld.observe.report.build import MEANINGLESS

    row = {"oracle": report.oracle, "compared": len(report.errors)}
    told = [e for e in report.errors if e.count and e.eager_l2 < MEANINGLESS]
    if report.oracle != "float64":
        outside = [e for e in report.errors if not e.ok and (e not in told or not _near(e))]
        row["difference"] = max((e.fused_l2 for e in told), default=0.0)
        return row | {"outside": _reasons(outside)}
    row["outside"] = _reasons(e for e in report.errors if not e.ok)
    if not told:
        return row
    worst = max(told, key=error_ratio)
    found = {"error": error_ratio(worst), "ours": worst.fused_l2, "eagers": worst.eager_l2}
    return row | found | {"worst": worst.name}


def _reasons(errors: Iterable) -> list[str]:
    return [f"{error.name}: {error.reason}" for error in errors]


def _near(error) -> bool:
    """As near to eager as two orders of summation are."""
    import torch

    from torchweld.exact.budget import resolution

    return error.fused_l2 < ROUNDINGS * resolution(getattr(torch, error.dtype))


def error_ratio(error) -> float:
    """Of one result: the larger of the ratios of L2 and of largest errors."""
    import torch

    from torchweld.exact.budget import resolution

    floor = resolution(getattr(torch, error.dtype))
    l2 = error.fused_l2 / (error.eager_l2 + floor)
    smallest = torch.finfo(torch.float64).tiny
    return max(l2, error.fused_max / (error.eager_max + floor * error.scale + smallest))


def _others(built, asked: Asked) -> tuple[dict[str, Callable], dict[str, str]]:
    """The warm calls of the ways that run, and what is wrong with those that do not."""
    import torch

    from torchweld.core.errors import one_line

    steps, problems = {}, {}
    for way in asked.ways:
        try:
            step = step_of(way, _made(way, built, asked), built, asked.train)
            _warm(step), wait(asked.device)
            steps[way] = step
        except Exception as error:
            problems[way] = one_line(error)[:300]
            if not isinstance(error, torch.OutOfMemoryError):  # which would keep what is too much
                _RAISED.append(error)
    return steps, problems


def _warm(step: Callable) -> None:
    for _ in range(WARM_CALLS):
        step()


# -- time --


def step_of(way: str, run: Callable, built, train: bool) -> Callable[[], object]:
    """One call, as it is timed: forward without gradients, or forward and backward to all
    parameters and floating inputs."""
    import torch

    from torchweld.observe.report.ways import WAYS

    call = _training(run, built) if train else _inference(run, built)
    if not WAYS[way].replays:
        return call

    def replayed():
        torch.compiler.cudagraph_mark_step_begin()
        return call()

    return replayed


def _inference(run: Callable, built) -> Callable[[], object]:
    import torch

    def call():
        with torch.no_grad():
            return run(*built.inputs)

    return call


def _training(run: Callable, built) -> Callable[[], object]:
    """The gradient of the results is random, and the same in each call."""
    import torch

    from torchweld.zoo.targets import tensors

    floating = [t.is_floating_point() for t in built.inputs]
    inputs = [t.clone().requires_grad_(f) for t, f in zip(built.inputs, floating)]
    wanted = [t for t in [*built.module.parameters(), *inputs] if t.requires_grad]
    gradients: list = []

    def call():
        found = [t for t in tensors(run(*inputs)) if t.requires_grad]
        if not gradients:
            gradients.extend(map(torch.randn_like, found))
        return torch.autograd.grad(found, wanted, gradients, allow_unused=True)

    return call


def timed(steps: dict[str, Callable], asked: Asked) -> dict:
    """Median milliseconds of each way, in interleaved rounds; `ratio`: of the best other way's time
    to torchweld's, the median over rounds. On a GPU also what `on_device` finds, by way."""
    from torchweld.observe.measure.paired import time_paired

    clock = time.process_time if asked.processor else time.perf_counter
    paired = time_paired(steps, asked.device, asked.seconds, seconds_now=clock)
    row: dict = {"ms": {way: paired.median_ms(way) for way in steps}, "rounds": paired.rounds}
    if asked.device == "cuda":
        row["kernels_of"] = {way: on_device(step) for way, step in steps.items()}
        row["device_us"] = {way: found["us"] for way, found in row["kernels_of"].items()}
    others = [way for way in steps if way != OURS]
    if not others:
        return row
    best = min(others, key=paired.median_ms)
    pairs = zip(paired.times_ms[best], paired.times_ms[OURS])
    return row | {"best": best, "ratio": statistics.median(a / b for a, b in pairs)}


def on_device(step: Callable) -> dict:
    """Of a step in a trace: `us` of all kernels and copies, `count`, and the `longest` by name."""
    from torchweld.observe.measure.tracing import trace_steps

    kernels = [k for s in trace_steps(step, "cuda", TRACED).steps for k in s.kernels]
    longest: Counter[str] = Counter()
    for kernel in kernels:
        longest[kernel.name[:100]] += kernel.duration_us / TRACED
    count = len(kernels) / TRACED
    return {"us": longest.total(), "count": count, "longest": longest.most_common(LONGEST)}

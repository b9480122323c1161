"""A search for slow kernels: operators, reductions of views, pairs of rows, small networks.

    python bench/compositions.py [--device cuda] [--seconds 60] [--seed 0] [--only pairs:]
                                 [--dtypes float32,bfloat16] [--train] [--inductor]
                                 [--processes 14] [--slower-than 0.9]

Cases are drawn from the tables of composition_cases.py. Each is compiled, compared with eager, and
timed in turns with it (and with torch.compile): medians. Those slower than asked are told, and at
the end the geometric mean of all. Large differences between two cases that move the same bytes are
as telling as those from eager.

Several processes compile beside each other and time one after the other. A process that dies costs
the case that it was at. On a GPU a time is the device's: the calls are queued behind a kernel that
waits. Every case is a line of $OUT/compositions.jsonl (default: out).
"""
from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from filelock import FileLock

import torchweld
from composition_cases import GROUPS, Case, made
from tables import ROOT

Call = Callable[[], object]
WAITED = 20_000_000  # cycles: some milliseconds, in which the host queues what is timed
QUEUED = 10  # calls
TIMES = ("eager", "inductor", "torchweld")  # as they are told
Work = list[tuple[Case, torch.dtype]]


def timed(calls: Sequence[Call], device: str) -> list[float]:
    """Medians of seconds, in turns."""
    found: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + 0.25
    seconds = _device_seconds if device == "cuda" else _seconds
    while len(found[0]) < 5 or (time.perf_counter() < end and len(found[0]) < 51):
        for times, call in zip(found, calls):
            times.append(seconds(call))
    return [statistics.median(times) for times in found]


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _device_seconds(call: Call) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(WAITED)
    start.record()
    for _ in range(QUEUED):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / QUEUED


def wrong(expected: object, result: object) -> bool:
    """Far from eager's: rounding alone is another test's."""
    pairs = zip(*([t] if isinstance(t, torch.Tensor) else list(t) for t in (expected, result)))
    return any(_far(a, b) for a, b in pairs if a is not None)


def _far(expected: torch.Tensor, result: torch.Tensor) -> bool:
    if not expected.is_floating_point():
        return (expected != result).float().mean().item() > 1e-3
    known = expected.isfinite() & result.isfinite()
    scale = expected[known].abs().max() if known.any() else 1.0
    far = (expected - result)[known].abs().max() > 0.02 * scale if known.any() else False
    return bool(far) or not torch.equal(expected.isnan(), result.isnan())


def compared(case: Case, dtype: torch.dtype, asked: argparse.Namespace) -> dict:
    """Seconds of each way, and whether the result was wrong."""
    torch.compiler.reset()
    model = case.make(asked.device, dtype)
    inputs = made(case, asked.device, dtype)
    ways = [model, torchweld.fuse(model)]
    if asked.inductor:
        ways.append(torch.compile(model))
    calls = [_stepped(way, model, inputs) if asked.train else partial(way, *inputs) for way in ways]
    with nullcontext() if asked.train else torch.no_grad():
        expected, *results = [call() for call in calls]
        found = {"case": case.name, "dtype": str(dtype), "wrong": wrong(expected, results[0])}
        del expected, results
        for call in calls[1:]:
            call()
        with FileLock(asked.out / "timing.lock"):
            times = timed(calls, asked.device)
    return found | dict(zip(("eager", "torchweld", "inductor"), times))


def _stepped(way: Callable, model: Callable, inputs: list[torch.Tensor]) -> Call:
    """The gradients of all that is differentiable, for the same random ones of the results."""
    leaves = [t.requires_grad_() for t in inputs]
    if isinstance(model, torch.nn.Module):
        leaves += model.parameters()
    torch.manual_seed(0)
    given = [torch.randn_like(p) for p in _differentiable(model(*inputs))]

    def call() -> Sequence[torch.Tensor]:
        parts = _differentiable(way(*inputs))
        return torch.autograd.grad(parts, leaves, given, allow_unused=True) if parts else ()

    return call


def _differentiable(result: object) -> list[torch.Tensor]:
    parts = [result] if isinstance(result, torch.Tensor) else list(result)
    return [p for p in parts if p.requires_grad]


def work(asked: argparse.Namespace) -> Work:
    draw = random.Random(asked.seed)
    cases = [c for group in GROUPS for c in group(asked.device) if asked.only in c.name]
    draw.shuffle(cases)
    return list(itertools.product(cases, (getattr(torch, d) for d in asked.dtypes.split(","))))


def process(asked: argparse.Namespace, end: float, number, begun: Path) -> None:
    """Takes cases until there are none, or the time is over."""
    warnings.simplefilter("ignore")  # of deviations of one element
    torch.manual_seed(asked.seed)
    if asked.processes > 1:
        torch._inductor.config.compile_threads = 1
    every = work(asked)
    while time.time() < end:
        with number.get_lock():
            at, number.value = number.value, number.value + 1
        if at >= len(every):
            return
        case, dtype = every[at]
        begun.write_text(f"{case.name}, {dtype}")
        try:
            found = compared(case, dtype, asked)
        except Exception as error:  # the search goes on: a case that fails is a finding
            found = {"case": case.name, "dtype": str(dtype), "failed": repr(error)[:300]}
        _told(found, asked)
        if "CUDA error" in found.get("failed", ""):
            os._exit(1)  # the device is lost to this process
    begun.write_text("")


def _told(found: dict, asked: argparse.Namespace) -> None:
    with FileLock(asked.out / "rows.lock"), (asked.out / "compositions.jsonl").open("a") as rows:
        rows.write(json.dumps(found) + "\n")
    name = f"{found['case']}, {found['dtype']}"
    if "failed" in found:
        print(f"FAILED {name}: {found['failed']}", flush=True)
        return
    if found["wrong"]:
        print(f"WRONG {name}", flush=True)
    best = min(found["eager"], found.get("inductor", math.inf))
    if best / found["torchweld"] < asked.slower_than:
        times = ", ".join(f"{k} {found[k] * 1e6:.0f} us" for k in TIMES if k in found)
        print(f"{best / found['torchweld']:.2f} {name}: {times}", flush=True)


def search(asked: argparse.Namespace) -> None:
    end, context = time.time() + asked.seconds, multiprocessing.get_context("spawn")
    number = context.Value("i", 0)
    running: dict[Path, multiprocessing.process.BaseProcess] = {}

    def start(begun: Path) -> None:
        begun.write_text("")
        running[begun] = context.Process(target=process, args=(asked, end, number, begun))
        running[begun].start()

    for each in range(asked.processes):
        start(asked.out / f"begun{each}")
    while running and time.time() < end + 60:
        time.sleep(0.2)
        for begun, one in list(running.items()):
            if one.is_alive():
                continue
            if one.exitcode:
                print(f"DIED at {begun.read_text()}", flush=True)
                start(begun)
                continue
            del running[begun]
            begun.unlink()
    for one in running.values():
        one.kill()


def means(rows: list[dict]) -> Iterator[str]:
    """One line for each group and all, of each way."""
    rows = [r for r in rows if "failed" not in r]
    groups = {r["case"].partition(":")[0] for r in rows}
    for group in (*sorted(groups), ""):
        of = [r for r in rows if r["case"].startswith(group)]
        line = f"{len(of)} cases {group or 'in all'}: geometric mean"
        for way in ("eager", "inductor"):
            ratios = [r[way] / r["torchweld"] for r in of if way in r]
            if ratios:
                line += f" {math.exp(statistics.fmean(map(math.log, ratios))):.2f} of {way}"
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=60.0, help="Time budget.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Part of a case's name.")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--train", action="store_true", help="Forward and backward.")
    parser.add_argument("--inductor", action="store_true", help="torch.compile, too.")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--slower-than", type=float, default=0.9,
                        help="The better of the others' times over ours.")  # fmt: skip
    asked = parser.parse_args()
    asked.out = Path(os.environ.get("OUT", ROOT / "out"))
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = asked.out / "compositions.jsonl"
    rows.write_text("")
    search(asked)
    for line in means([json.loads(r) for r in rows.read_text().splitlines()]):
        print(line)
    print(f"torch {torch.__version__}")


if __name__ == "__main__":
    main()

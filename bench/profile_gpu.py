"""Where the time of one model goes on a GPU: kernels by total time, host and device time a step.

    python bench/profile_gpu.py gpt2 --train --way torchweld [--batch 8 --length 1024 --rows 40]

Steps of training end with AdamW(fused=True). Times are of one step, in microseconds.
"""
from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from torchweld.api import records
from torchweld.observe.report.measure import Workload
from torchweld.observe.report.ways import WAYS
from torchweld.zoo.models import load

WARM, TIMED, PROFILED = 5, 10, 3


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--way", default="torchweld", choices=tuple(WAYS))
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--rows", type=int, default=40)
    asked = parser.parse_args()
    workload = _workload(asked)
    run = WAYS[asked.way].prepare(workload.model, workload.inputs, workload.train)
    _print_times(lambda: workload.call(run))
    _print_kernels(lambda: workload.call(run), asked.rows)
    if asked.way == "torchweld":
        _print_records(run)


def _workload(asked) -> Workload:
    target = load(asked.model, "cuda", dtype=torch.bfloat16, device="cuda", train=asked.train,
                  batch=asked.batch, length=asked.length)
    parameters = target.model.parameters()
    after = torch.optim.AdamW(parameters, lr=0.0, fused=True).step if asked.train else None
    return Workload(target.model, target.args, target.kwargs or {}, asked.train, "cuda", after)


def _print_times(step: Callable) -> None:
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(TIMED):
        step()
    torch.cuda.synchronize()
    whole_ms = (time.perf_counter() - start) / TIMED * 1e3
    host_ms = statistics.median(_host_ms(step) for _ in range(TIMED))
    peak = torch.cuda.max_memory_allocated() / 2**20
    print(f"step {whole_ms:.2f} ms, host {host_ms:.2f} ms, peak {peak:.0f} MiB")


def _host_ms(step: Callable) -> float:
    """Until a step is queued, on a GPU that is idle at first: one that is behind makes the host
    wait."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def _print_kernels(step: Callable, rows: int) -> None:
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    events = seen.key_averages()
    found = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    found.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in found)
    print(f"kernels {total / PROFILED:.0f} us, {sum(e.count for e in found) / PROFILED:.0f} calls")
    for event in found[:rows]:
        us, calls = event.self_device_time_total, event.count
        print(f"{us / PROFILED:9.0f} us {calls / PROFILED:6.0f} x {us / calls:8.1f}  {event.key}")


def _print_records(run: Callable) -> None:
    for record in records(run):
        times = ", ".join(f"{stage} {s:.2f}" for stage, s in record.timings_s.items())
        print(f"{record.name}: {len(record.bundles)} kernels; seconds: {times}")
        for note in record.events:
            print(f"    {note.kind} {note.subject} {note.text[:120]}")


if __name__ == "__main__":
    main()

"""The roofline of this device, measured once and kept on disk: what memory moves, what products of
matrices and plain arithmetic reach, and what a kernel costs at least. Takes a few seconds."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from torchweld.core.device import DeviceTable, device_table
from torchweld.core.options import Options
from torchweld.ir.scalar import TABLE
from torchweld.profiling.data import Roofline
from torchweld.profiling.quiet import quiet_stderr
from torchweld.profiling.trace import STEP, Step, read_trace
from torchweld.runtime.cache import digest, open_cache

_VERSION = "1"  # of what is measured here
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGE = {"cpu": 64 << 20, "cuda": 1 << 30}  # bytes: no cache holds it
_PRODUCT = {"cpu": 768, "cuda": 4096}  # rows, columns and terms
_EXP_BYTES = {"cpu": 256 << 10, "cuda": 16 << 20}
_SMALL_CALLS = 60
_LONG_S = 0.2


def roofline(device: str, name: str, options: Options | None = None) -> Roofline:
    """Of `device` ("cpu" or "cuda"), called `name`, with torch's present number of threads."""
    files = open_cache(options or Options())
    settings = (str(torch.get_num_threads()), torch.get_float32_matmul_precision())
    key = digest("roofline", _VERSION, device, name, torch.__version__, *settings)
    kept = files.get(key, ".json")
    if kept is not None:
        return Roofline(**json.loads(kept))
    found = _measure(device, name)
    files.put(key, ".json", json.dumps(asdict(found)).encode())
    return found


def calibrated(line: Roofline) -> DeviceTable:
    """The planner's row for this device with the rates that were measured."""
    row = device_table(line.device)
    return replace(
        row,
        dram_bytes_per_s=line.memory_bytes_per_s,
        llc_bytes_per_s=line.cache_bytes_per_s,
        llc_bytes=line.cache_bytes,
        fma_per_s=line.vector_flops_per_s / 2,
        launch_s=line.launch_us * 1e-6,
    )


@torch.no_grad()
def _measure(device: str, name: str) -> Roofline:
    row = device_table(device)
    cached = min(max(row.llc_bytes // 16, 1 << 20), 8 << 20)
    return Roofline(
        device=device,
        name=name,
        threads=torch.get_num_threads(),
        launch_us=_least_us(device, torch.neg, "aten::neg"),
        memory_bytes_per_s=_copy_rate(device, _LARGE[device]),
        cache_bytes_per_s=_copy_rate(device, cached),
        cache_bytes=row.llc_bytes,
        matmul_flops_per_s={str(t).removeprefix("torch."): _product_rate(device, t)
                            for t in _DTYPES},
        vector_flops_per_s=_vector_rate(device) if device == "cpu" else 2 * row.fma_per_s,
        product_launch_us=_least_us(device, lambda x: torch.mm(x, x), "aten::mm"),
    )


def _copy_rate(device: str, size: int) -> float:
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best_s(device, lambda: target.copy_(source))


def _product_rate(device: str, dtype: torch.dtype) -> float:
    """Of a smaller product where the large one would take long: no fast code for the dtype."""
    small = _rate_of_product(_PRODUCT[device] // 3, device, dtype)
    if 2 * _PRODUCT[device] ** 3 / small > _LONG_S:
        return small
    return _rate_of_product(_PRODUCT[device], device, dtype)


def _rate_of_product(n: int, device: str, dtype: torch.dtype) -> float:
    left = torch.randn(n, n, device=device).to(dtype)
    return 2 * n**3 / _best_s(device, lambda: torch.mm(left, left))


def _vector_rate(device: str) -> float:
    """By the exponential, which the cost model takes for so many multiply-adds."""
    x = torch.rand(_EXP_BYTES[device] // 4, device=device)
    y = torch.empty_like(x)
    return 2 * TABLE["exp"].cost * x.numel() / _best_s(device, lambda: torch.exp(x, out=y))


def _best_s(device: str, call: Callable[[], object], budget_s: float = 0.25) -> float:
    """The least time of a call. Slow ones are made twice only."""
    clock = _cuda_s if device == "cuda" else _cpu_s
    best, start = clock(call), time.perf_counter()
    while True:
        best = min(best, clock(call))
        if time.perf_counter() - start > budget_s:
            return best


def _cpu_s(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _cuda_s(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def _least_us(device: str, call: Callable[[torch.Tensor], object], operator: str) -> float:
    """What the profiler says of a call on hardly any data: the operator's time, or its
    kernel's."""
    x = torch.ones(1, 1, device=device)
    (step,) = trace_steps(lambda: [call(x) for _ in range(_SMALL_CALLS)], device, 1)
    if device == "cuda":
        return statistics.median(k.duration_us for k in step.kernels)
    return statistics.median(o.duration_us for o in step.operators if o.name == operator)


def trace_steps(
    call: Callable[[], object], device: str, steps: int, keep: Path | None = None
) -> list[Step]:
    """`steps` calls under the profiler, after one that warms it up. `keep`: where the trace is
    written too."""
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with tempfile.TemporaryDirectory() as folder:
        path = keep or Path(folder, "trace.json")
        with quiet_stderr(), profile(activities=activities) as trace:
            for _ in range(steps + 1):
                with torch.profiler.record_function(STEP):
                    call()
                    if device == "cuda":
                        torch.cuda.synchronize()
        trace.export_chrome_trace(str(path))
        return read_trace(path)[1:]

"""The roofline of this device, measured once and kept on disk: what memory moves, what products of
matrices and plain arithmetic reach, and what a kernel costs at least. Takes a few seconds."""

from __future__ import annotations

import json
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import torch

from torchweld.core.errors import EnvironmentProblem
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.observe.measure.tracing import trace_steps
from torchweld.observe.measure.waiting import processor_times, share_since
from torchweld.observe.predict import large, smallest
from torchweld.observe.predict.generated import generated_rates
from torchweld.observe.record.profile import Roofline
from torchweld.runtime.build import compile_cpp, load_function
from torchweld.runtime.cache import Artifacts, digest, open_cache
from torchweld.runtime.dispatch import NativeCall, Pointer, helpers, table
from torchweld.runtime.regions import region, region_name
from torchweld.runtime.steps import walk_table
from torchweld.targets.find import target_of
from torchweld.targets.target import Target

_VERSION = "19"  # of what is measured here
_LARGE = {"cpu": 128 << 20, "cuda": 1 << 30}  # bytes: no cache holds it
_SMALLEST_IN_CACHE = {"cpu": 1 << 20, "cuda": 4 << 20}  # bytes, doubled five times
_MOST_OF = 0.6  # of the best rate: what a size still in the cache reaches
_BUFFER_SHARE = 2  # the cost model takes a quarter of its cache for one buffer; half is meant here
_FRESH_BYTES = 48 << 20
_SMALL_STEPS = 10
_MOST_TIMES = 3  # measured on a busy machine; then the best of them is kept
_IN_GRAPH = 8
_SMALLEST = "aten::neg"
_tried: set[str] = set()  # in this process: once is enough
_EMPTY = """
#include <cstdint>
extern "C" void torchweld_empty(void* const* pointers, const int64_t* sizes) {
  float* out = (float*)pointers[0];
#pragma omp parallel for
  for (int64_t i = 0; i < sizes[0]; ++i) out[i] = 0;
}
"""


def roofline(device: str, name: str, options: Options | None = None) -> Roofline:
    """Of `device` ("cpu" or "cuda"), called `name`, with torch's present number of threads."""
    options = options or Options()
    files = open_cache(options)
    settings = (str(torch.get_num_threads()), torch.get_float32_matmul_precision())
    key = digest("roofline", _VERSION, device, name, torch.__version__, *settings)
    kept = files.get(key, ".json")
    before = Roofline(**json.loads(kept)) if kept is not None else None
    if before and (before.trusted or key in _tried or before.measured_times >= _MOST_TIMES):
        return before
    logger("profiling").info("measuring what %s can do", name)
    _tried.add(key)
    given = processor_times()
    found = _measure(device, name, files, options)
    share = share_since(given) if device == "cpu" else None
    found = replace(found, processor_share=share)
    found = better_of(before, found) if before else found
    files.put(key, ".json", json.dumps(asdict(found)).encode())
    return found


def better_of(before: Roofline, after: Roofline) -> Roofline:
    """Two measurements of one device, of which other work slowed one or both: the higher rates and
    the shorter times are nearer to what it can do."""
    most, least = partial(_each, max), partial(_each, min)
    shares = [s for s in (before.processor_share, after.processor_share) if s is not None]
    quieter = after if after.processor_share == max(shares, default=None) else before
    return replace(
        quieter,
        launch_us=min(before.launch_us, after.launch_us),
        memory_bytes_per_s=max(before.memory_bytes_per_s, after.memory_bytes_per_s),
        cache_bytes_per_s=max(before.cache_bytes_per_s, after.cache_bytes_per_s),
        matmul_flops_per_s=most(before.matmul_flops_per_s, after.matmul_flops_per_s),
        vector_flops_per_s=max(before.vector_flops_per_s, after.vector_flops_per_s),
        generated_launch_us=min(before.generated_launch_us, after.generated_launch_us),
        fresh_us_per_mb=min(before.fresh_us_per_mb, after.fresh_us_per_mb),
        operator_flops_per_s=most(before.operator_flops_per_s, after.operator_flops_per_s),
        operator_us=least(before.operator_us, after.operator_us),
        processor_share=max(shares, default=None),
        measured_times=before.measured_times + after.measured_times,
    )


def _each(
    better: Callable[..., float], one: dict[str, float], other: dict[str, float]
) -> dict[str, float]:
    return {k: better(d[k] for d in (one, other) if k in d) for k in one | other}


def calibrated(line: Roofline) -> Target:
    """The planner's row for this device with the rates that were measured."""
    row = target_of(line.device)
    return replace(
        row,
        dram_bytes_per_s=line.memory_bytes_per_s,
        llc_bytes_per_s=line.cache_bytes_per_s,
        llc_bytes=_BUFFER_SHARE * line.cache_bytes,
        fma_per_s=line.vector_flops_per_s / 2,
        launch_s=line.launch_us * 1e-6,
    )


def _measure(device: str, name: str, files: Artifacts, options: Options) -> Roofline:
    small = _small_calls(device)
    with torch.no_grad():
        memory, (cached, cache_bytes) = _copy_rate(device, _LARGE[device]), _cache(device)
        rates = large.operator_rates(device, partial(best_s, device))
        if device == "cpu":
            rates |= generated_rates(options, partial(best_s, device))
        plain = {k.removeprefix("aten::mm "): v for k, v in rates.items() if "::mm " in k}
        plain["float32"] = max(plain["float32"], rates.get("mkldnn::_linear_pointwise float32", 0))
        return Roofline(
            device=device,
            name=name,
            threads=torch.get_num_threads(),
            launch_us=small[_SMALLEST],
            memory_bytes_per_s=memory,
            cache_bytes_per_s=cached,
            cache_bytes=cache_bytes,
            matmul_flops_per_s=plain,
            vector_flops_per_s=rates.get("generated float32") or 2 * target_of(device).fma_per_s,
            generated_launch_us=_empty_kernel(files) if device == "cpu" else small[_SMALLEST],
            fresh_us_per_mb=_fresh_us_per_mb() if device == "cpu" else 0.0,
            operator_flops_per_s=rates,
            operator_us=small,
        )


def _small_calls(device: str) -> dict[str, float]:
    """Forward operators as in inference; those of the backward alone as in training."""
    functions = smallest.functions(device)
    between = smallest.large_neighbour(device)
    found: dict[str, float] = {}
    for run in (smallest.run_backward, smallest.run_forward):
        with torch.enable_grad():
            traced = trace_steps(lambda run=run: run(functions, between), device, _SMALL_STEPS)
        found |= smallest.operator_us(traced.steps, device)
    if _SMALLEST not in found:
        raise EnvironmentProblem("torch's profiler sees no kernels on this device",
                                 do="see that CUPTI can be used: torch.profiler needs it")
    return found


def _empty_kernel(files: Artifacts) -> float:
    """What a generated kernel costs at least: a step of a program that makes four zeros on all
    threads, cold and warm."""
    library, _ = compile_cpp(_EMPTY, files)
    name, x = region_name("calibration", "empty"), torch.ones(4)
    call = NativeCall(load_function(library, "torchweld_empty"), (Pointer(0),), (4,))
    rows, bases = table([call]), array("q", [x.data_ptr()])
    step, address = region(name, (walk_table(helpers(files), rows, 1),)), bases.buffer_info()

    def run() -> None:
        smallest.run_forward([lambda: step([], bases, address[0])] * _SMALL_STEPS,
                             smallest.large_neighbour("cpu"))

    steps = trace_steps(run, "cpu", 1).steps
    times = [o.duration_us for s in steps for o in s.operators if o.name == name]
    return statistics.geometric_mean(max(t, 1e-3) for t in times)


def _copy_rate(device: str, size: int, among: int = 0) -> float:
    """Bytes read and written a second, of a kernel that touches `size` bytes, and comes back to
    them after `among` bytes. (A GPU's driver copies more slowly than kernels do: 2.4 and 3.0 TB/s
    on an H100.)"""
    count = max(1, among // size)
    pairs = [(torch.ones(size // 8, device=device), torch.empty(size // 8, device=device))
             for _ in range(count)]

    def call() -> None:
        for source, target in pairs:
            torch.neg(source, out=target)

    return count * size / best_s(device, call)


def _cache(device: str) -> tuple[float, int]:
    """(the best rate of a copy that fits in the last cache, the largest size that keeps most of
    it). A core's own cache is passed over: in a model others have been there since."""
    half, first = target_of(device).llc_bytes // 2, _SMALLEST_IN_CACHE[device]
    among = half if device == "cpu" else 0
    rates = {first << step: _copy_rate(device, first << step, among) for step in range(6)}
    best = max(rates.values())
    largest = max(size for size, rate in rates.items() if rate >= _MOST_OF * best)
    return best, min(largest, half)  # the rest is others'


def _fresh_us_per_mb() -> float:
    """What memory costs that the system gives, page by page, at the first touch."""
    source = torch.ones(_FRESH_BYTES // 4)
    target = torch.empty_like(source)
    more_s = best_s("cpu", source.clone) - best_s("cpu", lambda: target.copy_(source))
    return max(0.0, more_s) * 1e6 / (_FRESH_BYTES / 1e6)


def best_s(device: str, call: Callable[[], object], budget_s: float = 0.1) -> float:
    """The least time of a call. Slow ones are made twice only."""
    clock = _cuda_clock(call) if device == "cuda" else lambda: _cpu_s(call)
    best, start = clock(), time.perf_counter()
    while True:
        best = min(best, clock())
        if time.perf_counter() - start > budget_s:
            return best


def _cpu_s(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _cuda_clock(call: Callable[[], object]) -> Callable[[], float]:
    """Seconds of a call, by a CUDA graph of several: launching from the host may take longer."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_IN_GRAPH):
            call()

    def clock() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / _IN_GRAPH

    return clock

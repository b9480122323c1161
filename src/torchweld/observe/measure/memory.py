"""Peak memory of a call: what its way of running keeps between calls, and what one call adds at
most.

CUDA: the caching allocator's own figures. CPU: tensors alive in Python for what is kept, and the
allocations and frees that torch's profiler records for what a call adds.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import profile

from torchweld.observe.measure.quiet import quiet_profiler


def live_bytes(device: str) -> int:
    """Bytes of tensors alive now on `device` ("cpu" or "cuda"). Compared before and after a way of
    running is prepared, it gives what that way keeps: packed weights, arenas, graph inputs."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    storages = {}
    for candidate in gc.get_objects():
        if issubclass(type(candidate), torch.Tensor) and candidate.device.type == "cpu":
            storages.update([_storage(candidate)])
    return sum(storages.values())


def added_bytes(call: Callable[[], object], device: str) -> int:
    """The most bytes that one call has allocated at a time, above those alive before it."""
    if device == "cuda":
        before = live_bytes(device)
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with quiet_profiler("cpu", memory=True) as trace:
        call()
    return _peak(_memory_events(trace))


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.layout == torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter):
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    return id(tensor), 0 if _is_fake(tensor) else tensor.numel() * tensor.element_size()


def _is_fake(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ in ("FakeTensor", "FunctionalTensor") or tensor.is_meta


def _memory_events(trace: profile) -> list[int]:
    """Bytes of each allocation (positive) and free (negative), in order of time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    memory = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0]
    return [e["args"]["Bytes"] for e in sorted(memory, key=lambda e: e["ts"])]


def _peak(changes: list[int]) -> int:
    level = peak = 0
    for change in changes:
        level += change
        peak = max(peak, level)
    return peak

"""How many kernels a call launches: on a GPU from a profiler trace, elsewhere from generated
code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd import DeviceType

from torchweld.observe.measure.quiet import quiet_profiler

NOT_KERNELS = ("Memcpy", "Memset")
# In the wrapper that Inductor writes: a generated kernel, a library call, an ATen fallback.
INDUCTOR_CALL = re.compile(r"^\s+(?:\w+ = )?(?:cpp_fused\w*\(|extern_kernels\.|torch\.ops\.)", re.M)


def gpu_kernels(call: Callable[[], object]) -> list[tuple[str, float]]:
    """(name, microseconds) of each kernel that one call runs, in order of time; copies and fills
    by the driver are left out. Needs a CUDA device."""
    torch.cuda.synchronize()
    with quiet_profiler("cuda") as trace:
        call()
        torch.cuda.synchronize()
    events = [e for e in trace.events() if e.device_type == DeviceType.CUDA]
    events.sort(key=lambda e: e.time_range.start)
    return [(e.name, e.time_range.elapsed_us()) for e in events if _is_kernel(e)]


def _is_kernel(event) -> bool:
    return not event.name.startswith(NOT_KERNELS) and not event.is_user_annotation


def inductor_cpu_calls(cache: Path) -> int:
    """Kernels and library calls in the code that Inductor wrote for the CPU under `cache`; 0 if
    there is none that this can read."""
    texts = (path.read_text() for path in cache.rglob("*.py"))
    return sum(len(INDUCTOR_CALL.findall(text)) for text in texts if "def call(" in text)

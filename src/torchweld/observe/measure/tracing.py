"""Steps under torch's profiler."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from torchweld.observe.measure.quiet import quiet_profiler
from torchweld.observe.measure.trace import STEP, Trace, read_trace


def trace_steps(
    call: Callable[[], object], device: str, steps: int, warms: bool = True
) -> Trace:
    """`steps` calls under the profiler; `warms`: after one that warms it up and is left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        with quiet_profiler(*dict.fromkeys(("cpu", device))) as profiler:
            for _ in range(steps + warms):
                with torch.profiler.record_function(STEP):
                    call()
                    if device == "cuda":
                        torch.cuda.synchronize()
        profiler.export_chrome_trace(str(path))
        found = read_trace(path)
        return Trace(found.content, found.steps[warms:])

"""torch's profiler, keeping what it prints out of a report."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile

_OF_DEVICE = {"cuda": ProfilerActivity.CUDA, "cpu": ProfilerActivity.CPU}


@contextmanager
def quiet_profiler(*devices: str, memory: bool = False) -> Iterator[profile]:
    """Watches "cpu", "cuda" or both; with `memory`, each allocation too."""
    activities = [_OF_DEVICE[device] for device in devices]
    with warnings.catch_warnings(), _quiet_stderr():
        # of one release, which takes the only cycle for a second one
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        with profile(activities=activities, profile_memory=memory) as profiler:
            yield profiler


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Discards file descriptor 2 inside: the profiler's native log goes there whatever its
    level."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)

"""torch's profiler, keeping what it prints out of a report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile

_OF_DEVICE = {"cuda": ProfilerActivity.CUDA, "cpu": ProfilerActivity.CPU}


@contextmanager
def quiet_profiler(*devices: str, memory: bool = False) -> Iterator[profile]:
    """Watches "cpu", "cuda" or both; with `memory`, each allocation too."""
    activities = [_OF_DEVICE[device] for device in devices]
    # without acc_events one release warns that other cycles are forgotten; there is one only
    with _quiet_stderr(), profile(
        activities=activities, profile_memory=memory, acc_events=True
    ) as profiler:
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

"""How much of the processor time that this process asked for it got, as Linux counts it."""

from __future__ import annotations

from pathlib import Path

_TASKS = Path("/proc/self/task")


def processor_times() -> tuple[int, int] | None:
    """(nanoseconds run, nanoseconds waited for a processor) of all threads alive; None where the
    kernel does not count them."""
    ran = waited = 0
    try:
        for task in _TASKS.iterdir():
            fields = (task / "schedstat").read_text().split()
            ran, waited = ran + int(fields[0]), waited + int(fields[1])
    except (OSError, ValueError, IndexError):
        return None
    return (ran, waited) if ran else None


def share_since(before: tuple[int, int] | None) -> float | None:
    """Since `before`, of processor_times: time run / (time run + time waited)."""
    now = processor_times()
    if before is None or now is None:
        return None
    ran, waited = (max(0, b - a) for a, b in zip(before, now))
    return ran / (ran + waited) if ran else None

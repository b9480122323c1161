"""Whether others take the processors while this process measures.

Linux counts for each thread how long it was ready to run and had to wait for a processor
(`/proc/self/task/*/schedstat`, the second number, in nanoseconds). On an idle machine that is
next to nothing. A spread of times does not show a neighbour that is always there: every run is then
equally slow, and by how much differs from way to way.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time, and what each thread had waited until then, all in seconds."""

    at_s: float
    waited_s: dict[str, float]

    @classmethod
    def now(cls) -> Moment:
        return cls(time.perf_counter(), _waited_s())


def waiting_share(since: Moment) -> float:
    """The largest part of the time since then that a thread of this process waited for a
    processor; 0 where the system does not say, and where it holds threads back by a quota."""
    now = Moment.now()
    wall_s = now.at_s - since.at_s
    waits = (s - since.waited_s.get(thread, 0.0) for thread, s in now.waited_s.items())
    return max(waits, default=0.0) / wall_s if wall_s > 0 else 0.0


def _waited_s() -> dict[str, float]:
    try:
        tasks = [] if _has_quota() else os.listdir(_TASKS)
    except OSError:
        return {}
    found = {thread: _thread_waited_s(thread) for thread in tasks}
    return {thread: s for thread, s in found.items() if s is not None}


def _thread_waited_s(thread: str) -> float | None:
    try:
        _, waited_ns, *_ = (_TASKS / thread / "schedstat").read_text().split()
        return int(waited_ns) / 1e9
    except (OSError, ValueError):  # the thread has ended, or the system does not count
        return None


def _has_quota() -> bool:
    """A group with a quota (containers) is held back at all times: that is what there is to
    measure."""
    try:
        return not _QUOTA.read_text().startswith("max")
    except OSError:
        return False

"""Processes that compile Triton's kernels beside this one.

Triton holds Python's lock for a third of a compilation, so that threads of one process compile
hardly four kernels at a time. A builder imports Triton alone, which takes a quarter of a second; it
leaves binaries in Triton's cache on disk, where the thread that asked finds them.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextlib import suppress
from queue import Empty, SimpleQueue

from torchweld.runtime.triton_build import Job

_MOST = 16  # of some 200 MB each
_PIPE, _NOWHERE = subprocess.PIPE, subprocess.DEVNULL
_SERVE = "import sys; sys.path[:] = {}; from torchweld.runtime.triton_build import serve; serve()"


class Builders:
    """A context manager: they end with it."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen] = []
        self._idle: SimpleQueue[subprocess.Popen] = SimpleQueue()

    def start(self, count: int) -> None:
        """So many at most, unless there are some; they need not be ready when jobs come."""
        if self._all or not sys.executable:
            return
        command = [sys.executable, "-c", _SERVE.format(sys.path)]
        with suppress(OSError):  # no more processes: threads compile
            for _ in range(min(count, _MOST)):
                builder = subprocess.Popen(command, stdin=_PIPE, stdout=_PIPE, stderr=_NOWHERE)
                self._all.append(builder)
                self._idle.put(builder)

    def build(self, job: Job) -> None:
        """Returns when a builder has tried; at once if none is idle."""
        try:
            builder = self._idle.get_nowait()
        except Empty:
            return
        with suppress(OSError):  # one that has ended is not asked again
            pickle.dump(job, builder.stdin)
            builder.stdin.flush()
            if builder.stdout.read(1):
                self._idle.put(builder)

    def __enter__(self) -> Builders:
        return self

    def __exit__(self, *_) -> None:
        for builder in self._all:
            builder.kill()
        for builder in self._all:
            with suppress(OSError), builder:  # closes its pipes and waits for it
                pass

"""Processes that compile Triton's kernels (triton_worker.py): as many as are asked at a time.

One that dies takes nothing with it: its kernel is not compiled. They end with this process, and
when they have had nothing to do for a while.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore, Lock

from torchweld.core.errors import BuildError
from torchweld.runtime import triton_worker
from torchweld.runtime.triton_worker import Request

_MOST = 16  # of about 150 MB each
START_S = 60.0  # in which one is ready
_SCRIPT = Path(triton_worker.__file__)
# Not run as a script: the folder of one comes before all others on its path.
_START = """
import importlib.util, json, sys
path, script, key = json.loads(sys.argv[1])
sys.path[:] = path
spec = importlib.util.spec_from_file_location("torchweld_triton_worker", script)
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.serve(key)
"""


class CannotStart(Exception):
    """There are no such processes here."""


class _Died(Exception):
    """`status`: with which the process ended; `said`: its last line."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status, self.said = status, said


class _Worker:
    """One process. Raises CannotStart, also when it is asked first."""

    def __init__(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise CannotStart("this process is no Python that others can be")
        given = json.dumps([sys.path, str(_SCRIPT), triton_worker.own_key()])
        command = [sys.executable, "-c", _START, given]
        try:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - stop() closes it
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
                text=True, start_new_session=True,  # an interrupt is for this process
            )  # fmt: skip
        except OSError as error:
            raise CannotStart(f"{sys.executable}: {error.strerror}") from error
        self._is_ready = False

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, request: Request) -> str | None:
        """What went wrong, if anything did. Raises _Died."""
        if not self._is_ready:
            self._await()
        with suppress(BrokenPipeError):  # then there is no answer
            self._process.stdin.write(request.line() + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _await(self) -> None:
        """What `sys.executable` names may be another program, which says other things or waits."""
        if not select.select([self._process.stdout], [], [], START_S)[0]:
            raise CannotStart(f"{sys.executable} says nothing")
        try:
            said = self._answer()
        except _Died as died:
            raise CannotStart(died.said) from died
        except ValueError as error:
            raise CannotStart(f"{sys.executable} is no Python: {error}") from error
        if said is not None:
            raise CannotStart(f"{sys.executable} is no Python: it says {said!r}")
        self._is_ready = True

    def _answer(self) -> str | None:
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise _Died(status, self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        """LLVM's assertion, behind which there may be a trace of its stack; else the last line."""
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 10_000))
        lines = self._said.read().decode(errors="replace").strip().splitlines() or [""]
        return next((line for line in lines if "Assertion" in line), lines[-1])

    def stop(self) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._said.close()


class Workers:
    """At most `most` at a time; a thread that asks while all are at work waits."""

    def __init__(self, most: int, start: Callable[[], _Worker] = _Worker) -> None:
        self._free, self._start = BoundedSemaphore(most), start
        self._idle: list[_Worker] = []
        self._lock = Lock()
        self._refusal: CannotStart | None = None  # there will be none later, either

    def compile(self, request: Request) -> None:
        """Has it compiled into Triton's cache. Raises BuildError, also where the compiler's process
        died of it, and CannotStart."""
        with self._free:
            if self._refusal is not None:
                raise self._refusal
            try:
                failure = self._ask(request)
            except CannotStart as refusal:
                self._refusal = refusal
                raise
            except _Died as died:
                died_of = f"signal {-died.status}" if died.status < 0 else f"status {died.status}"
                failure = f"Triton's compiler died ({died_of}): {died.said}"
        if failure is not None:
            raise BuildError(f"{request.name} does not compile for sm_{request.arch}: {failure}")

    def _ask(self, request: Request) -> str | None:
        """By one that is there, or a new one. One that was idle may have ended meanwhile, and one
        that ends by itself as it is asked has not died of that."""
        while worker := self._taken():
            if worker.has_ended():
                worker.stop()
                continue
            try:
                return self._asked(worker, request)
            except _Died as died:
                if died.status:
                    raise
        return self._asked(self._start(), request)

    def _taken(self) -> _Worker | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _asked(self, worker: _Worker, request: Request) -> str | None:
        """A worker that has not answered, also because of an interrupt, is stopped."""
        try:
            answer = worker.ask(request)
        except BaseException:
            worker.stop()
            raise
        with self._lock:
            self._idle.append(worker)
        return answer

    def begin(self, count: int) -> None:
        """Starts as many as lack of `count` that wait for work, and does not wait for them. Raises
        CannotStart."""
        for _ in range(count - len(self._idle)):
            worker = self._start()
            with self._lock:
                self._idle.append(worker)

    def stop(self) -> None:
        while worker := self._taken():
            worker.stop()


def most_workers() -> int:
    """A share of the processors: torchrun says how many processes like this one there are."""
    beside = os.environ.get("LOCAL_WORLD_SIZE", "")
    shared = int(beside) if beside.isdigit() and beside != "0" else 1
    return max(1, min(_MOST, (os.cpu_count() or 1) // shared))


class _OfProcess:
    """Those of this process, not of one that it was forked from."""

    def __init__(self) -> None:
        self.workers = Workers(most_workers())
        os.register_at_fork(after_in_child=self._begin_anew)
        atexit.register(lambda: self.workers.stop())

    def _begin_anew(self) -> None:
        """What the other process talks to is not stopped: it is kept, and never asked."""
        self._others = self.workers
        self.workers = Workers(most_workers())


_HERE = _OfProcess()


def compile_aside(request: Request) -> None:
    """As Workers.compile, by those of this process."""
    _HERE.workers.compile(request)


def begin(count: int) -> None:
    """As Workers.begin, for this process."""
    _HERE.workers.begin(count)

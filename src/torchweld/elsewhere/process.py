"""Plans for devices that are not here, made in a process of its own: guard.cpp pretends to torch
that there is a GPU, for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from torchweld.core.errors import TorchweldError, UsageError
from torchweld.core.options import Options
from torchweld.elsewhere.data import Asked, Plans, as_json, plans_of
from torchweld.elsewhere.guard import guard_library
from torchweld.observe.record.guess import Guess
from torchweld.observe.record.profile import Roofline

_SAID = 2000  # characters of a failed process that are shown


def plans(asked: Sequence[Asked], options: Options | None = None) -> list[Plans]:
    """The plans of each, all made in one process. `options` say where the cache is.

    Errors: UsageError for a target that is none or does not run, EnvironmentProblem without a C++
    compiler, TorchweldError with what the process said if it fails.
    """
    found = _answer("main", [as_json(a) for a in asked], options)
    return [plans_of(p) for p in found["plans"]]


def guess(
    asked: Asked, way: str, line: Roofline | None, options: Options | None = None
) -> Guess:
    """The expected trace of `asked` on its one device; `line`: the limits of this machine's, None
    for a named GPU. Errors: as `plans`."""
    read = {"asked": as_json(asked), "way": way, "line": asdict(line) if line else None}
    return Guess.from_json(_answer("guess", read, options)["guess"])


def _answer(task: str, asked, options: Options | None) -> dict:
    """What the function `task` of child.py finds."""
    guard = guard_library(options or Options())
    with tempfile.TemporaryDirectory(prefix="torchweld-plan-") as folder:
        answer = Path(folder, "answer.json")
        _run(task, json.dumps(asked), guard, answer)
        found = json.loads(answer.read_text())
    if "wrong" in found:
        raise UsageError(found["wrong"], do=found["do"])
    return found


def _run(task: str, asked: str, guard: Path | None, answer: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _program(task, guard, answer)], input=asked, capture_output=True,
        text=True, check=False, env=_environment(),
    )  # fmt: skip
    if done.returncode or not answer.is_file():
        raise TorchweldError(f"planning failed: {done.stderr[-_SAID:].strip()}")


def _program(task: str, guard: Path | None, answer: Path) -> str:
    """The guard comes before everything that imports torch. The end is at once: with the guard,
    threads of torch's that still run when the process is taken down end it with an error, at
    times."""
    loaded = f"import ctypes; ctypes.CDLL({str(guard)!r})\n" if guard else ""
    work = f"from torchweld.elsewhere.child import {task}; {task}({str(answer)!r})"
    return f"{loaded}import os, sys; {work}; sys.stderr.flush(); os._exit(0)"


def _environment() -> dict[str, str]:
    """With the modules that this process finds."""
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    return {**os.environ, "PYTHONPATH": path}

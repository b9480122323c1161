"""Processes of their own for tests, forked from one that has imported torch, torchweld and Triton:
each would take three seconds for that. In Triton's interpreter, if its kernels are run at all."""

from __future__ import annotations

import io
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

import pytest

PRELOADED = ["torch._dynamo", "triton", "torchweld.api", "torchweld.pipeline"]
_SECONDS = 300


@cache
def _context():
    """Its server has the environment and the number of threads with which it began."""
    found = get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    with patch.dict(os.environ, TRITON_INTERPRET="1", OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return found


class Forked:
    """`work(tell, *args)` in a process. What it tells is received here, until it has ended or was
    killed. Its error fails the test."""

    def __init__(self, work: Callable, *args, **environment: str) -> None:
        around = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self._ours, theirs = _context().Pipe(duplex=False)
        self.process: BaseProcess = _context().Process(
            target=_work, args=(theirs, around, work, args), daemon=True
        )
        self.process.start()
        theirs.close()

    def told(self) -> object:
        """The next of what it tells; None at the end."""
        if not self._ours.poll(_SECONDS):
            self.process.kill()
            pytest.fail(f"a process has told nothing for {_SECONDS} s", pytrace=False)
        try:
            found = self._ours.recv()
        except (EOFError, ConnectionResetError):
            return None
        if isinstance(found, _Failed):
            pytest.fail(found.text[-4000:], pytrace=False)
        return found

    def rest(self) -> list:
        """All that it still tells; it has ended then."""
        found = list(iter(self.told, None))
        self.process.join()
        return found


@dataclass(frozen=True)
class _Failed:
    text: str


def _work(there: Connection, around: Mapping[str, str], work: Callable, args: tuple) -> None:
    os.environ.clear()
    os.environ.update(around)
    try:
        work(there.send, *args)
    except BaseException:
        there.send(_Failed(traceback.format_exc()))


def lines_of(script: str) -> list[str]:
    """What a script of this folder prints, in Triton's interpreter."""
    (lines,) = Forked(_run, Path(__file__).parent / script, TRITON_INTERPRET="1").rest()
    return lines


def _run(tell: Callable, script: Path) -> None:
    warnings.simplefilter("ignore")
    sys.argv[1:] = []
    with redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(script), run_name="__main__")
    tell(said.getvalue().splitlines())

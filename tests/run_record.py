"""A pytest plugin for tests/gpu_run.py, under xdist: what happens is written down as it happens, so
that a run that is cut off is known as far as it went; after a time no test begins; a worker whose
CUDA context is lost ends, and xdist starts another: all further tests of it would fail.

Lines of JSON: {"all": [test, ...]} once; {"began": test}; {"test", "phase", "outcome", "seconds",
"why"} for the set-up, the call and the tear-down of each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

LATE = "not begun: the time was up"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", default="", help="file of what happens, in lines of JSON")
    parser.addoption("--until", type=float, default=float("inf"), help="time.time() of the last")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(config.getoption("record"))))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > item.config.getoption("until"):
        pytest.skip(LATE)
    if hasattr(item.config, "workerinput") and _context_is_lost():
        os._exit(1)  # xdist tells that this test, whose turn it was, crashed


def _context_is_lost() -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


class Recorder:
    """In the process that hands out the tests."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", buffering=1)
        self.known = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Every worker collects; all find the same."""
        if not self.known:
            self._write(all=list(ids))
        self.known = True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(began=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        why = "" if report.passed else _why(report.longreprtext)
        self._write(
            test=report.nodeid, phase=report.when, outcome=report.outcome,
            seconds=report.duration, why=why,
        )  # fmt: skip

    def _write(self, **line) -> None:
        self.file.write(json.dumps(line) + "\n")


def _why(text: str) -> str:
    """The first line of the error itself, as pytest marks it, or the last line of all."""
    lines = text.strip().splitlines() or [""]
    return next((line[1:].strip() for line in lines if line.startswith("E ")), lines[-1])

"""The command that runs the GPU tests, on tests that need no GPU: what it counts as done, as failed
and as not run, and that nothing is compiled before a test asks for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpu_run
import run_record
import triton_run
from gpu_run import Outcome, read, table

TESTS = """
import os

import pytest


@pytest.fixture
def missing():
    raise ValueError("nothing to give")


def test_good():
    pass


def test_bad():
    assert 1 + 1 == 3, "sums"


def test_without_its_fixture(missing):
    pass


@pytest.mark.skip(reason="another device")
def test_elsewhere():
    pass


def test_that_ends_its_worker():
    os._exit(7)
"""


def phase(test: str, phase: str = "call", outcome: str = "passed", why: str = "") -> dict:
    return {"test": test, "phase": phase, "outcome": outcome, "seconds": 0.5, "why": why}


def outcomes(lines: list[dict]) -> dict[str, str]:
    return {t.name: t.outcome for t in read(lines)}


def test_a_run_that_was_cut_off():
    names = ["a.py::one", "a.py::two", "b.py::three", "b.py::four"]
    lines = [{"all": names}, {"began": names[0]}, phase(names[0], "setup"), phase(names[0]),
             {"began": names[1]}, phase(names[1], "setup"),
             phase(names[2], "setup", "skipped", f"Skipped: {run_record.LATE}")]  # fmt: skip
    assert list(outcomes(lines).values()) == ["passed", "unfinished", "not run", "not run"]
    outcome = Outcome(read(lines), None, 9.0)
    said = "\n".join(table(outcome))
    assert not outcome.good and "not finished: a.py, b.py\n  had begun: a.py::two" in said


def test_a_failure_after_the_call_is_one():
    lines = [phase("a.py::one"), phase("a.py::one", "teardown", "failed", "leak"),
             phase("a.py::one", "teardown")]  # fmt: skip
    (found,) = read(lines)
    assert (found.outcome, found.why, found.seconds) == ("failed", "leak", 1.5)
    assert not Outcome([found], 0).good


def test_skipped_tests_alone_are_no_success():
    skipped = read([phase("a.py::one", "setup", "skipped", "needs an NVIDIA GPU")])
    assert skipped[0].outcome == "skipped" and not Outcome(skipped, 0).good
    assert Outcome(skipped + read([phase("a.py::two")]), 0).good


def test_the_command(tmp_path: Path, monkeypatch):
    (tmp_path / "test_these.py").write_text(TESTS)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    command = [sys.executable, gpu_run.__file__, "--workers", "1", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    lines = (tmp_path / "out" / "gpu_tests.jsonl").read_text().splitlines()
    found = outcomes(map(json.loads, lines))
    assert list(found.values()) == ["passed", "failed", "failed", "skipped", "failed"]
    assert done.returncode == 1 and "test_bad: AssertionError: sums" in done.stdout
    assert (tmp_path / "out" / "gpu_tests.xml").exists()


def test_kernels_are_compiled_when_a_worker_asks(monkeypatch):
    compiled = []
    monkeypatch.setattr("torchweld.runtime.triton_compile.compile_triton", compiled.append)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    launchers = triton_run.compile_in_processes(["one", "two"])
    assert compiled == []
    assert launchers["two"] is None and launchers["two"] is None and compiled == ["two"]

"""All GPU tests in one command, on all cores and within a time; a short table comes last.

    python tests/gpu_run.py [--limit SECONDS] [--workers N] [what pytest takes: paths, -k, ...]

Each test is run by one worker, which compiles its kernels into Triton's cache: nothing is compiled
twice, and nothing that no test of the worker starts. WIND_DOWN before the limit no test begins any
more; at the limit all is killed. Into $OUT (default: build/): gpu_tests.log, all that pytest says;
gpu_tests.xml, JUnit's, unless it was killed; gpu_tests.jsonl, what happened when (run_record.py).

Exits with 0 if every test passed, or was skipped for the device's sake, and at least one passed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from run_record import LATE

TESTS = Path(__file__).resolve().parent
WIND_DOWN = 30.0  # seconds, for the tests that have begun
MOST_WORKERS = 16  # of up to 5 GB of GPU memory, most less than 1: an H100 holds them
SHOWN = 10
OUTCOMES = ("passed", "failed", "skipped", "not run", "unfinished")


@dataclass
class Test:
    name: str
    outcome: str = "not run"
    seconds: float = 0.0
    why: str = ""

    @property
    def file(self) -> str:
        return self.name.partition("::")[0].rpartition("/")[2]


@dataclass
class Outcome:
    """Of a run. `code`: pytest's, None if it was killed."""

    tests: list[Test] = field(default_factory=list)
    code: int | None = None
    seconds: float = 0.0

    @property
    def counts(self) -> Counter:
        return Counter(t.outcome for t in self.tests)

    @property
    def good(self) -> bool:
        counts = self.counts
        finished = counts["passed"] + counts["skipped"] == len(self.tests)
        return self.code == 0 and finished and counts["passed"] > 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--limit", type=float, default=560.0, help="seconds in all")
    parser.add_argument("--workers", type=int, default=min(MOST_WORKERS, os.cpu_count() or 1))
    asked, more = parser.parse_known_args(arguments)
    folder = Path(os.environ.get("OUT") or TESTS.parent / "build")
    folder.mkdir(parents=True, exist_ok=True)
    outcome = run(asked, more or [str(TESTS / "gpu")], folder)
    if outcome.code not in (0, 1):
        print((folder / "gpu_tests.log").read_text()[-3000:])
    print("\n".join(table(outcome)), flush=True)
    return 0 if outcome.good else 1


def run(asked: argparse.Namespace, more: list[str], folder: Path) -> Outcome:
    """Runs pytest with the arguments `more`, and reads what it recorded."""
    start, record = time.time(), folder / "gpu_tests.jsonl"
    record.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", "-p", "xdist", "-p", "run_record", "--record", str(record),
        "--until", str(start + asked.limit - WIND_DOWN), "-n", str(asked.workers), "--dist",
        "worksteal", "--junitxml", str(folder / "gpu_tests.xml"), "--durations=25", *more,
    ]  # fmt: skip
    with (folder / "gpu_tests.log").open("wb") as log:
        code = _finished(command, asked.limit, log)
    lines = record.read_text().splitlines() if record.exists() else []
    return Outcome(read(map(json.loads, lines)), code, time.time() - start)


def _finished(command: list[str], limit: float, log) -> int | None:
    """The exit status; None if it was killed with all its workers."""
    places = [str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    process = subprocess.Popen(command, env=environment, start_new_session=True,
                               stdout=log, stderr=subprocess.STDOUT)  # fmt: skip
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read(lines: Iterable[dict]) -> list[Test]:
    """All tests, as far as they went."""
    tests: dict[str, Test] = {}
    for line in lines:
        for name in line.get("all", ()):
            tests[name] = Test(name)
        if began := line.get("began"):
            tests.setdefault(began, Test(began)).outcome = "unfinished"
        elif name := line.get("test"):
            _happened(tests.setdefault(name, Test(name)), line)
    return list(tests.values())


def _happened(test: Test, line: dict) -> None:
    """A failure stays one; a test has passed when its call has."""
    test.seconds += line["seconds"]
    if test.outcome == "failed":
        return
    if line["outcome"] == "failed":
        test.outcome, test.why = "failed", line["why"]
    elif line["outcome"] == "skipped":
        test.outcome = "not run" if LATE in line["why"] else "skipped"
    elif line["phase"] == "call":
        test.outcome = "passed"


def table(outcome: Outcome) -> list[str]:
    """What failed, the slowest tests, a line for each file, what was not finished, the verdict."""
    tests = outcome.tests
    failed = [t for t in tests if t.outcome == "failed"]
    slowest = sorted(tests, key=lambda t: -t.seconds)[:SHOWN]
    lines = [f"FAILED {_short(t)}: {t.why[:160]}" for t in failed[: 2 * SHOWN]]
    lines += [f"{t.seconds:7.1f} s  {_short(t)}" for t in slowest]
    lines += ["", _row("file", OUTCOMES, "seconds")]
    files = {t.file: [u for u in tests if u.file == t.file] for t in tests}
    lines += [_counted(file, found) for file, found in files.items()]
    lines += [_counted("all", tests), *_unfinished(tests)]
    verdict = "passed" if outcome.good else "FAILED"
    killed = " (killed at the limit)" if outcome.code is None else f", pytest exits {outcome.code}"
    return [*lines, f"{verdict} in {outcome.seconds:.0f} s{killed}"]


def _counted(label: str, tests: list[Test]) -> str:
    counts = Counter(t.outcome for t in tests)
    return _row(label, [counts[o] for o in OUTCOMES], f"{sum(t.seconds for t in tests):.1f}")


def _row(label: str, cells: Iterable, last: str) -> str:
    return f"{label:32}" + "".join(f"{cell!s:>11}" for cell in cells) + f"{last:>10}"


def _unfinished(tests: list[Test]) -> list[str]:
    """The files that lack results, and the tests that had begun."""
    left = dict.fromkeys(t.file for t in tests if t.outcome in ("not run", "unfinished"))
    begun = [f"  had begun: {_short(t)}" for t in tests if t.outcome == "unfinished"]
    return [f"not finished: {', '.join(left)}", *begun[:SHOWN]] if left else []


def _short(test: Test) -> str:
    return f"{test.file}::{test.name.partition('::')[2]}"[:120]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Problems that nothing was tuned for: torchweld's errors and times beside eager's and inductor's.

    python bench/problems.py [NAMES] [--train] [--device cuda] [--dtype bfloat16] [--check]

NAMES are problems or groups (bench/problem_set), all if there are none. First, processes compile
and check problems beside each other: graphs, kernels, seconds of the first call, and the errors of
torchweld and of eager against float64. Then, when nothing compiles, each problem is timed alone, in
interleaved rounds. On a GPU the batches are larger. A process that dies costs its problem alone.
Rows go to $OUT/problems-*.json (default: out), what processes print to .log files beside it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from common import write_results
from problem_board import Board, Task
from problem_check import Asked
from problem_set import FOLDERS
from problem_table import error_text, rendered
from problem_worker import Answer, serve
from tables import ROOT

AFTER_TIMING_S = 0.5  # each timing takes so much more than its rounds
LAST_CHECK_S = 60.0  # may have to be waited for before anything is timed


@dataclass
class Member:
    """A worker process. `ready`: it has begun to take tasks; `leaving`: it takes no more. `late`:
    when its task is."""

    process: multiprocessing.Process
    connection: multiprocessing.connection.Connection
    log: Path
    ready: bool = False
    leaving: bool = False
    late: float = float("inf")

    def listen(self) -> Answer | None:
        """An answer, if there is one. Errors: EOFError, ConnectionError if the process has died."""
        if not self.connection.poll():
            if not self.process.is_alive():  # and a child of it holds the pipe open
                raise EOFError
            return None
        answer = self.connection.recv()
        if answer is None:
            self.ready = True
        else:
            self.late, self.leaving = float("inf"), answer.last
        return answer

    def last_words(self) -> str:
        self.process.join(5)
        lines = self.log.read_text(errors="replace").strip().splitlines() or [""]
        return f"the process died (status {self.process.exitcode}): {lines[-1][:200]}"


@dataclass
class Crew:
    """The workers, by number. A worker that dies is replaced by one with another number."""

    asked: Asked
    folder: Path
    each_s: float
    work: Callable = serve
    members: dict[int, Member] = field(default_factory=dict)
    _started: int = 0

    def start(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        for _ in range(count):
            number, self._started = self._started, self._started + 1
            here, there = context.Pipe()
            log = self.folder / f"problems-{number}.log"
            log.write_text("")
            process = context.Process(target=self.work, args=(there, self.asked, log))
            process.start()
            there.close()  # so that the end of the process is the end of the pipe
            self.members[number] = Member(process, here, log)

    @property
    def ready(self) -> list[int]:
        return [n for n, member in self.members.items() if member.ready and not member.leaving]

    def give(self, number: int, task: Task) -> None:
        member = self.members[number]
        member.late = time.monotonic() + self.each_s
        with suppress(BrokenPipeError):  # its end is heard next
            member.connection.send(task)

    def hear(self, seconds: float) -> Iterator[tuple[int, Answer | None]]:
        """Answers that come within so many seconds; None of a worker that has died."""
        wait([member.connection for member in self.members.values()], seconds)
        for number, member in list(self.members.items()):
            try:
                if (answer := member.listen()) is not None:
                    yield number, answer
            except (EOFError, ConnectionError):
                yield number, None

    def kill_late(self) -> None:
        for member in self.members.values():
            if time.monotonic() > member.late:
                with open(member.log, "a") as file:
                    file.write(f"not finished within {self.each_s:.0f} s\n")
                member.late = float("inf")
                member.process.kill()

    def stop(self) -> None:
        """Those that are busy are killed, the others end by themselves."""
        for member in self.members.values():
            with suppress(BrokenPipeError):
                member.connection.send(None)
        for member in self.members.values():
            member.process.join(5 if member.ready and member.late == float("inf") else 0)
            member.process.kill()


@dataclass
class Sweep:
    """Rows of results, kept up to date on disk under `name`. `end`: of time.monotonic()."""

    board: Board
    crew: Crew
    name: str
    end: float
    rows: dict[str, dict] = field(default_factory=dict)

    def run(self, workers: int) -> None:
        self.crew.start(workers)
        try:
            while not self.board.over and time.monotonic() < self.end:
                self._mind_the_time()
                while (begun := self.board.assign(self.crew.ready)) is not None:
                    self.crew.give(*begun)
                for number, answer in self.crew.hear(seconds=1.0):
                    self._heard(number, answer)
                self.crew.kill_late()
        finally:
            self.crew.stop()
            self._note({name: {"problem": "not timed"} for name in self.board.ready})
            busy = {t.problem: {"problem": f"{t.what}: no time"} for t in self.board.busy.values()}
            self._note(busy | {name: {"problem": "not run: no time"} for name in self.board.todo})

    def _mind_the_time(self) -> None:
        """Checks stop while there is time to time what is ready."""
        each = self.crew.asked.seconds + AFTER_TIMING_S
        needed = LAST_CHECK_S + each * len(self.board.ready) if self.board.timed else 0.0
        if self.board.todo and time.monotonic() + needed > self.end:
            left = self.board.stop_checking()
            self._note({name: {"problem": "not run: no time"} for name in left})

    def _heard(self, number: int, answer: Answer | None) -> None:
        if answer is None:
            return self._died(number)
        task = self.board.answered(number, answer.well, answer.crowded)
        if task.what == "check":
            self.rows.pop(task.problem, None)  # of an earlier try
        return self._note({task.problem: answer.row})

    def _died(self, number: int) -> None:
        """Errors: RuntimeError if it has never come so far as to take a task."""
        member, task = self.crew.members.pop(number), self.board.died(number)
        words = member.last_words()
        if not member.ready:
            raise RuntimeError(f"a worker does not start: {words}")
        self._note({name: {"problem": words} for name in self.board.lost})
        if task is not None:
            self._note({task.problem: {"problem": f"{task.what}: {words}"}})
        self.crew.start(1)

    def _note(self, found: dict[str, dict]) -> None:
        for name, row in found.items():
            self.rows[name] = self.rows.get(name, {}) | row
            print(f"{name}: {_progress(row)}", flush=True)
        if found:
            write_results([{"name": n} | row for n, row in self.rows.items()], self.name)


def _progress(row: dict) -> str:
    if "problem" in row:
        return f"FAILED {row['problem']}"
    if "ms" in row:
        return ", ".join(f"{way} {ms:.4g} ms" for way, ms in row["ms"].items())
    wrong = f" WRONG {row['outside']}" if row["outside"] else ""
    warned = f" warned {row['warnings']}" if row["warnings"] else ""
    return (f"{row['graphs']} graphs, {row['kernels']} kernels, {row['first_call_s']:.1f} s, error "
            f"{error_text(row)}{wrong}{warned}")  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="problems or groups")
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", help="default: float32; whole models on a GPU bfloat16")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile")
    parser.add_argument("--held", type=int, default=1 << 30,
                        help="problems in memory at a time, if they are large")
    parser.add_argument("--total", type=float, default=1500.0, help="seconds in all")
    parser.add_argument("--each", type=float, default=300.0, help="seconds, at most, of a problem")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing a problem")
    parser.add_argument("--processor", action="store_true",
                        help="one thread, and its processor time in place of the clock's")
    parser.add_argument("--against", default="eager,inductor", help="of report.ways")
    parser.add_argument("--files", nargs="*", default=(), metavar="FOLDER",
                        help="of problems in KernelBench's form, which are then run")
    parser.add_argument("--check", action="store_true", help="time nothing")
    parser.add_argument("--list", action="store_true", help="run nothing, print the names")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    os.environ[FOLDERS] = os.pathsep.join(map(os.path.abspath, given.files))
    from problem_set.catalogue import chosen

    problems = chosen(given.names or [Path(f).name for f in given.files], given.train)
    if given.list:
        return print("\n".join(f"{p.group:14} {p.name}" for p in problems))
    ways = () if given.check else tuple(w for w in given.against.split(",") if w)
    asked = Asked(given.device, given.dtype, given.train, ways, given.seconds, given.processor)
    if given.processor:
        os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    folder = Path(os.environ.get("OUT", ROOT / "out"))
    folder.mkdir(parents=True, exist_ok=True)
    name = f"problems-{given.device}-{'training' if given.train else 'inference'}"
    board = Board(deque(p.name for p in problems), timed=bool(ways), most_held=given.held)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        os.environ.setdefault("TORCHWELD_CACHE_DIR", cache)  # empty: first calls are cold
        crew = Crew(asked, folder, given.each)
        sweep = Sweep(board, crew, name, time.monotonic() + given.total)
        sweep.run(min(given.workers, len(problems)))
    print(f"\n{rendered(sweep.rows)}")
    return None


if __name__ == "__main__":
    main()

"""Which process checks or times which problem next. No processes here, so that it can be tested.

All checks, which compile, run beside each other. A timing runs alone: it begins when no process is
busy. A device that is crowded gets no more checks until what was checked is timed and freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

MOST_TRIES = 2  # of a problem whose process died while it held it, or for which memory was short


@dataclass(frozen=True)
class Task:
    what: Literal["check", "time"]
    problem: str


@dataclass
class Board:
    """`todo`: problems to check. `ready`: those that were checked, and the worker that holds each.
    `busy`: what each worker does. `lost`: problems that no process could hold. `timed`: whether
    anything is timed at all. `most_held`: problems that are in memory at a time."""

    todo: deque[str]
    timed: bool = True
    most_held: int = 1 << 30
    ready: dict[str, int] = field(default_factory=dict)
    busy: dict[int, Task] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    crowded: bool = False
    _tries: dict[str, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return not (self.todo or self.ready or self.busy)

    def assign(self, workers: Iterable[int]) -> tuple[int, Task] | None:
        """The next worker that has nothing to do, and its task, which is noted as begun; None if
        nothing can begin now."""
        idle = [worker for worker in workers if worker not in self.busy]
        self.crowded &= bool(self.ready)
        if self._may_check() and idle:
            return self._begin(idle[0], Task("check", self.todo.popleft()))
        if self.ready and not self.busy:
            problem = next(iter(self.ready))
            return self._begin(self.ready.pop(problem), Task("time", problem))
        return None

    def _may_check(self) -> bool:
        alone = any(task.what == "time" for task in self.busy.values())
        full = len(self.ready) + len(self.busy) >= self.most_held
        return bool(self.todo) and not (alone or full or self.crowded)

    def _begin(self, worker: int, task: Task) -> tuple[int, Task]:
        self.busy[worker] = task
        if task.what == "check":
            self._tries[task.problem] = self._tries.get(task.problem, 0) + 1
        return worker, task

    def answered(self, worker: int, well: bool, crowded: bool = False) -> Task:
        """The task that the worker has finished, `well` or not. A check is made again if the device
        was too crowded for it."""
        task = self.busy.pop(worker)
        if well and task.what == "check" and self.timed:
            self.ready[task.problem] = worker
        if not well and task.what == "check" and crowded and self._may_try(task.problem):
            self.todo.append(task.problem)
        self.crowded |= crowded
        return task

    def _may_try(self, problem: str) -> bool:
        return self._tries[problem] < MOST_TRIES

    def died(self, worker: int) -> Task | None:
        """The task that died with the worker. What it held is checked again by another, unless it
        has been twice."""
        task = self.busy.pop(worker, None)
        for problem in [p for p, holder in self.ready.items() if holder == worker]:
            del self.ready[problem]
            (self.todo if self._may_try(problem) else self.lost).append(problem)
        return task

    def stop_checking(self) -> list[str]:
        """The problems that are not checked any more: time is short."""
        left = list(self.todo)
        self.todo.clear()
        return left

"""Seeds handed to processes, each of which has one at a time, so that the program that killed it is
known."""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

import torch

from torchweld.core.errors import one_line
from torchweld.exact.campaign.cases import KINDS, USUAL, kind_of
from torchweld.exact.campaign.checks import CHECKS, Case, is_broken, is_fit, place_of, shrunk
from torchweld.exact.campaign.listed import limits_of
from torchweld.exact.campaign.record import Finished, Log, write_case

_RENEW = 400  # seeds after which a process is replaced: torch keeps what it has traced
_LONGEST_S = 600.0  # for one seed, after which its process is killed
_FAREWELL_S = 5.0


@dataclass(frozen=True, slots=True)
class Campaign:
    """`folder`: of the log and of the files of failures. `check`: a name of CHECKS. `device`: whose
    plans the interpreter checks; "cuda": the GPU on which kernels run. `shrink_s`: seconds for
    making a failure small."""

    folder: Path
    check: str = "interpreted"
    device: str = "cpu"
    kinds: tuple[str, ...] = USUAL
    shrink_s: float = math.inf

    @property
    def log(self) -> Path:
        return self.folder / f"{self.check}-{self.device}.jsonl"


def run_seed(campaign: Campaign, seed: int) -> Finished:
    """One seed in this process: its program checked, and made small if it fails."""
    start, kind = time.perf_counter(), kind_of(seed, campaign.kinds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            finished = _checked(campaign, kind, seed)
        except Exception as error:
            text = f"not checked: {type(error).__name__}: {one_line(error)}"
            finished = Finished(seed, kind, (text,))
    return replace(finished, seconds=time.perf_counter() - start) if finished.kind else finished


def _checked(campaign: Campaign, kind: str, seed: int) -> Finished:
    case, device = KINDS[kind](seed), campaign.device
    place = place_of(device)
    if case is None or not is_fit(case, place):
        return Finished(seed, "")

    def check(case: Case) -> list[str]:
        return CHECKS[campaign.check](case, device)

    def wrong(case: Case) -> list[str]:
        """None of what is at a limit, so that nothing wrong is made small to that."""
        found = check(case) if is_fit(case, place) else []
        return [] if found and limits_of(case, found, device) else found

    found = check(case)
    limits = limits_of(case, found, device) if found else ()
    if limits or not found:
        return Finished(seed, kind, tuple(found), limits=limits)
    case, found = shrunk(case, found, wrong, campaign.shrink_s)
    file = write_case(case, found, campaign.folder / "failures", campaign.check, device)
    return Finished(seed, kind, tuple(found), str(file))


def run(
    campaign: Campaign,
    seeds: Sequence[int],
    processes: int,
    seconds: float = math.inf,
    tell: Callable[[Finished], None] = lambda finished: None,
) -> Log:
    """Every seed that the log does not have, until `seconds` are over. `processes`: 0 for this
    one."""
    log, end = Log(campaign.log), time.monotonic() + seconds
    left = (s for s in seeds if s not in log.seeds) if log.finished else iter(seeds)
    left = _until(end, left)
    results = _shared(campaign, left, processes) if processes else (
        run_seed(campaign, seed) for seed in left
    )  # fmt: skip
    for finished in results:
        log.add(finished)
        tell(finished)
    return log


def _until(end: float, seeds: Iterator[int]) -> Iterator[int]:
    for seed in seeds:
        if time.monotonic() > end:
            return
        yield seed


# -- processes --


def _shared(campaign: Campaign, seeds: Iterator[int], processes: int) -> Iterator[Finished]:
    """Results as they come, from `processes` that share `seeds`."""
    answers: SimpleQueue[Finished | None] = SimpleQueue()
    lock = threading.Lock()

    def next_seed() -> int | None:
        with lock:
            return next(seeds, None)

    def work() -> None:
        try:
            for finished in _one_by_one(campaign, iter(next_seed, None)):
                answers.put(finished)
        finally:
            answers.put(None)

    for _ in range(processes):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(processes):
        yield from iter(answers.get, None)


def _one_by_one(campaign: Campaign, seeds: Iterator[int]) -> Iterator[Finished]:
    """In a process at a time. A seed whose process dies has a second one, which is new."""
    worker = _Worker(campaign)
    try:
        for seed in seeds:
            finished = worker.finished(seed)
            if finished is None:
                worker = worker.replaced()
                finished = worker.finished(seed) or _died(campaign, seed)
            yield finished
            if worker.is_spent or is_broken(finished.found):
                worker = worker.replaced()
    finally:
        worker.end()


def _died(campaign: Campaign, seed: int) -> Finished:
    return Finished(seed, kind_of(seed, campaign.kinds), ("the process died",))


class _Worker:
    """A process that runs one seed after another."""

    def __init__(self, campaign: Campaign) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._campaign = campaign
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(campaign, theirs), daemon=True)
        self._process.start()
        theirs.close()  # so that a process that dies closes its end
        self._done = 0

    @property
    def is_spent(self) -> bool:
        return self._done >= _RENEW or not self._process.is_alive()

    def finished(self, seed: int) -> Finished | None:
        """None if the process died."""
        self._done += 1
        try:
            self._connection.send(seed)
            if self._connection.poll(_LONGEST_S):
                return self._connection.recv()
        except (EOFError, OSError):
            return None
        self.end()
        late = f"not finished after {_LONGEST_S:.0f} s"
        return Finished(seed, kind_of(seed, self._campaign.kinds), (late,))

    def replaced(self) -> _Worker:
        self.end()
        return _Worker(self._campaign)

    def end(self) -> None:
        """Politely first: a process that is killed leaves semaphores."""
        with suppress(OSError):
            self._connection.send(None)
        self._process.join(_FAREWELL_S)
        self._process.kill()
        self._process.join()


def _serve(campaign: Campaign, connection) -> None:
    torch.set_num_threads(1)
    for seed in iter(connection.recv, None):
        connection.send(run_seed(campaign, seed))

"""Seeds handed to processes. One that dies has its seeds run again, each alone, so that the program
that killed it is known."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import torch

from torchweld.core.errors import one_line
from torchweld.exact.campaign.cases import KINDS, kind_of
from torchweld.exact.campaign.checks import CHECKS, is_fit, shrunk
from torchweld.exact.campaign.record import Finished, Log, write_case

_AHEAD = 4  # seeds waiting for each process
_RENEW = 400  # seeds after which a process is replaced: torch keeps what it has traced


@dataclass(frozen=True, slots=True)
class Campaign:
    """`folder`: of the log and of the files of failures. `check`: a name of CHECKS. `device`: whose
    plans the interpreter checks."""

    folder: Path
    check: str = "interpreted"
    device: str = "cpu"
    kinds: tuple[str, ...] = tuple(KINDS)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.check}-{self.device}.jsonl"


def run_seed(campaign: Campaign, seed: int) -> Finished:
    """One seed in this process: its program checked, and made small if it fails."""
    start, kind = time.perf_counter(), kind_of(seed, campaign.kinds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found, file = _checked(campaign, kind, seed)
        except Exception as error:
            found, file = [f"not checked: {type(error).__name__}: {one_line(error)}"], ""
    if found is None:
        return Finished(seed, "")
    return Finished(seed, kind, tuple(found), file, time.perf_counter() - start)


def _checked(campaign: Campaign, kind: str, seed: int) -> tuple[list[str] | None, str]:
    case = KINDS[kind](seed)
    if case is None or not is_fit(case):
        return None, ""
    check = CHECKS[campaign.check]
    if not check(case, campaign.device):
        return [], ""
    case, found = shrunk(case, lambda c: check(c, campaign.device))
    return found, str(write_case(case, found, campaign.folder / "failures")) if found else ""


def run(
    campaign: Campaign,
    seeds: Sequence[int],
    processes: int,
    seconds: float = float("inf"),
    tell: Callable[[Finished], None] = lambda finished: None,
) -> Log:
    """Every seed that the log does not have, until `seconds` are over."""
    log, end = Log(campaign.log), time.monotonic() + seconds
    left = (s for s in seeds if s not in log.seeds) if log.finished else iter(seeds)
    for finished in _results(campaign, left, processes, end):
        log.add(finished)
        tell(finished)
    return log


def _results(campaign: Campaign, seeds: Iterator[int], processes: int, end: float):
    if processes == 0:
        for seed in seeds:
            if time.monotonic() > end:
                return
            yield run_seed(campaign, seed)
        return
    lost: list[int] = []
    while time.monotonic() < end:
        before = len(lost)
        yield from _until_one_dies(campaign, seeds, processes, end, lost)
        if len(lost) == before:
            return
        while lost:
            yield _alone(campaign, lost.pop())
        lost.clear()


def _until_one_dies(campaign, seeds: Iterator[int], processes: int, end: float, lost: list[int]):
    """Results as they come; the seeds that were on their way when a process died go to `lost`."""
    with _pool(processes) as pool:
        waiting: dict[Future, int] = {}
        more = True
        while more or waiting:
            while more and len(waiting) < _AHEAD * processes and time.monotonic() < end:
                seed = next(seeds, None)
                more = seed is not None
                if more:
                    waiting[pool.submit(run_seed, campaign, seed)] = seed
            more = more and time.monotonic() < end
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            try:
                for future in done:
                    yield future.result()
                    del waiting[future]
            except BrokenProcessPool:
                lost.extend(waiting.values())
                return


def _alone(campaign: Campaign, seed: int) -> Finished:
    with _pool(1) as pool:
        try:
            return pool.submit(run_seed, campaign, seed).result()
        except BrokenProcessPool:
            return Finished(seed, kind_of(seed, campaign.kinds), ("the process died",))


def _pool(processes: int) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        processes, spawn, torch.set_num_threads, (1,), max_tasks_per_child=_RENEW
    )

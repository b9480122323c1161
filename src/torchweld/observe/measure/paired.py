"""Paired timing: several ways of one calculation, each run once a round, in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from torchweld.observe.measure.waiting import processor_times, share_since

MIN_ROUNDS, MAX_ROUNDS = 5, 200
SHORT_MS = 5.0  # calls shorter than this are repeated inside one timing


@dataclass(frozen=True)
class Paired:
    """`times_ms[way][round]`: milliseconds of one call. `processor_share`: how much of the
    processor time that it asked for the process got meanwhile; None if it is not known."""

    times_ms: dict[str, tuple[float, ...]]
    processor_share: float | None = None

    @property
    def rounds(self) -> int:
        """Number of rounds that were timed."""
        return len(next(iter(self.times_ms.values())))

    def median_ms(self, way: str) -> float:
        """Of `way` over all rounds."""
        return statistics.median(self.times_ms[way])

    def iqr_ms(self, way: str) -> float:
        """The distance between the first and third quartile."""
        first, _, third = statistics.quantiles(self.times_ms[way], n=4, method="inclusive")
        return third - first


def time_paired(
    calls: dict[str, Callable[[], object]],
    device: str,
    seconds: float,
    on_round: Callable[[float], None] = lambda done: None,
    seconds_now: Callable[[], float] = time.perf_counter,
) -> Paired:
    """Times warm calls for about `seconds` in all, between MIN_ROUNDS and MAX_ROUNDS rounds.
    Each round starts with another way, so that none always follows the same one. `on_round`
    hears the fraction done. `seconds_now`: the clock of a CPU; time.process_time does not count
    other processes' work."""
    clock = _cuda_ms if device == "cuda" else partial(_cpu_ms, seconds_now)
    repeats = {way: _repeats(clock(call, 1)) for way, call in calls.items()}
    times: dict[str, list[float]] = {way: [] for way in calls}
    order, start, given = list(calls), time.perf_counter(), processor_times()
    for done in range(1, MAX_ROUNDS + 1):
        for way in order:
            times[way].append(clock(calls[way], repeats[way]))
        order = order[1:] + order[:1]
        used = min(1.0, (time.perf_counter() - start) / max(seconds, 1e-9))
        fraction = max(done / MAX_ROUNDS, min(used, done / MIN_ROUNDS))
        on_round(fraction)
        if fraction >= 1:
            break
    return Paired({way: tuple(found) for way, found in times.items()}, share_since(given))


def _repeats(once_ms: float) -> int:
    return max(1, min(50, round(SHORT_MS / max(once_ms, 1e-3))))


def _cpu_ms(now: Callable[[], float], call: Callable[[], object], repeats: int) -> float:
    start = now()
    for _ in range(repeats):
        call()
    return (now() - start) * 1e3 / repeats


def _cuda_ms(call: Callable[[], object], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats

"""Equal stretches in a sequence of steps: the layers of a model.

Each step has a form, and touches things: what it reads and makes. `linked` numbers steps so that
equal numbers mean the same form, of things that were last touched as many steps before. So two
stretches with the same numbers do the same, with things that are shared in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

Step = tuple[Hashable, Sequence[Hashable]]  # its form, and what it touches
_CANDIDATES = 8  # periods that are looked at


@dataclass(frozen=True, slots=True)
class Run:
    """The steps from `start` to before `stop`: each has the number of the one `period` before it,
    but for the first `period` of them."""

    start: int
    stop: int
    period: int

    @property
    def count(self) -> int:
        """Whole periods."""
        return (self.stop - self.start) // self.period


def linked(steps: Iterable[Step], fact: Callable[[Hashable], Hashable]) -> list[int]:
    """A number for each step. `fact`: what matters of a thing that is touched for the first time.
    """
    last: dict[Hashable, tuple[int, int]] = {}
    numbers: dict[tuple, int] = {}
    found = []
    for here, (form, things) in enumerate(steps):
        links = []
        for slot, thing in enumerate(things):
            before = last.get(thing)
            links.append(fact(thing) if before is None else (here - before[0], before[1]))
            last[thing] = here, slot
        found.append(numbers.setdefault((form, tuple(links)), len(numbers)))
    return found


def longest(numbers: Sequence[int]) -> Run | None:
    """The run in which most steps repeat the one a period before."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for here, number in enumerate(numbers):
        if number in last:
            distances[here - last[number]] += 1
        last[number] = here
    runs = [_longest_of(numbers, period) for period, _ in distances.most_common(_CANDIDATES)]
    return max(runs, key=lambda r: (r.stop - r.start - r.period, -r.period), default=None)


def _longest_of(numbers: Sequence[int], period: int) -> Run:
    best, start = Run(0, period, period), 0
    for here in range(period, len(numbers)):
        if numbers[here] != numbers[here - period]:
            start = here - period + 1
        elif here + 1 - start > best.stop - best.start:
            best = Run(start, here + 1, period)
    return best

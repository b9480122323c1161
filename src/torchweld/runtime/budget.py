"""Which temporaries leave the arena, so that a call never needs more memory than tensors that are
freed one by one.

An arena lasts for a whole call. Where library results and outputs take most at another moment than
temporaries do, the two add up. Then the largest temporaries become tensors of their own, until the
call's peak is that of its fullest moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchweld.runtime.memory import ALIGNMENT, Lifetime, assign

_SLACK = 0.02  # of what an arena has at its fullest: what alignment and gaps may cost


def fullest(lives: Sequence[Lifetime]) -> int:
    """The most bytes alive at one step."""
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.first] = changes.get(life.first, 0) + life.bytes
        changes[life.last + 1] = changes.get(life.last + 1, 0) - life.bytes
    level = peak = 0
    for step in sorted(changes):
        level += changes[step]
        peak = max(peak, level)
    return peak


def own_tensors(
    temporaries: Sequence[Lifetime], scratch: Sequence[Lifetime], others: Sequence[Lifetime]
) -> frozenset[str]:
    """The fewest of `temporaries`, largest first, that must leave the arena, where `scratch` stays.
    `others`: all else that a call holds, and for how long."""
    bound = fullest((*temporaries, *scratch, *others))
    gaps = int(_SLACK * fullest((*temporaries, *scratch)))
    allowed = bound + gaps + ALIGNMENT * (len(temporaries) + len(scratch))
    ordered = sorted(temporaries, key=lambda v: (-v.bytes, v.first, v.name))

    def held(count: int) -> int:
        own, inside = ordered[:count], ordered[count:]
        return fullest((*own, *others)) + assign((*inside, *scratch)).total

    low, high = 0, 0 if held(0) <= bound else len(ordered)  # no others would need less
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if held(middle) <= allowed else (middle + 1, high)
    return frozenset(v.name for v in ordered[:low])

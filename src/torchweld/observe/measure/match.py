"""What was seen in a trace, tied to what was expected: the same sequence, of which a little may be
missing or added."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchweld.observe.measure.trace import Host

_LOOK_AHEAD = 8
_LARGEST_TABLE = 20_000_000  # entries of four bytes


def match_operators(expected: Sequence[str], roots: Sequence[Host]) -> list[Host | None]:
    """For each expected operator name, its event. An event that is found is not searched for
    others: what it calls is its own affair."""
    found: list[Host | None] = [None] * len(expected)
    position = 0
    waiting = list(reversed(roots))
    while waiting and position < len(expected):
        event = waiting.pop()
        at = _next(expected, position, event.name)
        if at is None:
            waiting.extend(reversed(event.children))
        else:
            found[at], position = event, at + 1
    return found


def match_names(expected: Sequence[str], seen: Sequence[str]) -> list[int | None]:
    """For each name seen, the position of the expected one that it is, so that as many as possible
    are found and their order is kept."""
    start = _common_length(expected, seen)
    end = _common_length(expected[start:][::-1], seen[start:][::-1])
    middle = _longest_common(expected[start : len(expected) - end], seen[start : len(seen) - end])
    last = range(len(expected) - end, len(expected))
    return [*range(start), *(None if at is None else start + at for at in middle), *last]


def _common_length(a: Sequence[str], b: Sequence[str]) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def _longest_common(expected: Sequence[str], seen: Sequence[str]) -> list[int | None]:
    """As `match_names`, by the table of longest common subsequences of all beginnings."""
    if len(expected) * len(seen) > _LARGEST_TABLE:
        return _in_turn(expected, seen)
    names = np.array(expected, dtype=object)
    lengths = np.zeros((len(seen) + 1, len(expected) + 1), dtype=np.int32)
    for row, name in enumerate(seen):
        longer = np.maximum(lengths[row, 1:], lengths[row, :-1] + (names == name))
        lengths[row + 1, 1:] = np.maximum.accumulate(longer)
    found: list[int | None] = [None] * len(seen)
    row, column = len(seen), len(expected)
    while row and column:
        if lengths[row, column] == lengths[row - 1, column]:
            row -= 1
        elif lengths[row, column] == lengths[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            found[row] = column
    return found


def _in_turn(expected: Sequence[str], seen: Sequence[str]) -> list[int | None]:
    found: list[int | None] = []
    position = 0
    for name in seen:
        at = _next(expected, position, name)
        found.append(at)
        position = position if at is None else at + 1
    return found


def _next(expected: Sequence[str], position: int, name: str) -> int | None:
    nearby = range(position, min(position + _LOOK_AHEAD, len(expected)))
    return next((at for at in nearby if _plain(expected[at]) == _plain(name)), None)


def _plain(name: str) -> str:
    """aten::add_ -> aten::add: autograd sums gradients in place only while nobody watches."""
    return name.rstrip("_")

"""What was seen in a trace, tied to what was expected: the same sequence, of which a little may be
missing or added."""

from __future__ import annotations

from collections.abc import Sequence

from torchweld.profiling.trace import Host

_LOOK_AHEAD = 8


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
    """For each name seen, the position of the expected one that it is."""
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

"""When a program is recorded: after some calls with the same sizes, and not too often."""

from __future__ import annotations

from collections import OrderedDict

_FREE_RECORDINGS = 8  # a program whose parameters keep moving is not worth recording again
_REPLAYS_PER_RECORDING = 50  # what one more must have been preceded by
_MOST_SIZES = 64  # that are remembered


class Warmth:
    """Of one program. Sizes are warm after `calls` calls with them, of which the last was not long
    ago."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._seen: OrderedDict[tuple, int] = OrderedDict()
        self._failed = False
        self.recordings, self.replays = 0, 0

    def is_due(self, sizes: tuple) -> bool:
        """Whether this call, which runs without a graph, may be recorded."""
        before = self._seen.pop(sizes, 0)
        self._seen[sizes] = before + 1
        if len(self._seen) > _MOST_SIZES:
            self._seen.popitem(last=False)
        return before >= self._calls and self.may_record()

    def may_record(self) -> bool:
        """Each recording costs as much as some fifty calls: after the first ones, replays earn
        more."""
        earned = self.replays // _REPLAYS_PER_RECORDING
        return not self._failed and self.recordings < _FREE_RECORDINGS + earned

    def recorded(self, sizes: tuple) -> None:
        """A recording has begun: if it goes, its sizes must be seen anew."""
        self.recordings += 1
        self.forget(sizes)

    def forget(self, sizes: tuple) -> None:
        """They must be seen anew."""
        self._seen.pop(sizes, None)

    def fail(self) -> None:
        """It cannot be recorded."""
        self._failed = True

    def cool(self) -> None:
        """What was seen does not count any more."""
        self._seen.clear()

"""Short paired timings, for decisions made while a model is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchweld.profile.paired import time_paired


def paired_medians(
    calls: Sequence[Callable[[], object]], device: str, seconds: float = 0.2
) -> tuple[float, ...]:
    """Median microseconds of each call: warmed up, then timed in turn for about `seconds` in all.
    `device`: "cpu", or "cuda" for events on the current stream."""
    for call in calls:
        call()
    found = time_paired({str(i): c for i, c in enumerate(calls)}, device, seconds)
    return tuple(1e3 * found.median_ms(str(i)) for i in range(len(calls)))

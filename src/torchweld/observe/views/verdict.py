"""What a report's times say about torchweld and another way: faster, slower, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.observe.record.profile import LEAST_SHARE
from torchweld.observe.record.report import Report, Way


@dataclass(frozen=True)
class Verdict:
    """torchweld against `way`. `figure`: "1.82x faster", "1.20x slower", "as fast" or
    "inconclusive". `reasons`: why it is inconclusive, each a clause."""

    way: str
    figure: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        if self.reasons:
            why = " and ".join(self.reasons)
            return f"torchweld against {self.way}: inconclusive, because {why}"
        return f"torchweld is {self.figure} {'as' if self.figure == SAME else 'than'} {self.way}"


INCONCLUSIVE, SAME = "inconclusive", "as fast"


def verdicts(report: Report) -> list[Verdict]:
    """One for each way that was timed beside torchweld."""
    timed = {way.name: way for way in report.ways if way.timing}
    ours = timed.pop("torchweld", None)
    return [verdict(way, ours) for way in timed.values()] if ours else []


def verdict(way: Way, ours: Way) -> Verdict:
    """Faster, slower or as fast; inconclusive if any rule has a reason."""
    reasons = tuple(filter(None, (rule(way, ours) for rule in _RULES)))
    figure = INCONCLUSIVE if reasons else speed_text(way.timing.ratio)
    return Verdict(way.name, figure, reasons)


def speed_text(ratio: float) -> str:
    """A ratio of times, other way / torchweld: 1.8 -> "1.80x faster", 0.5 -> "2.00x slower"."""
    factor = max(ratio, 1 / ratio)
    if round(factor, 2) == 1:
        return SAME
    return f"{factor:.2f}x {'faster' if ratio > 1 else 'slower'}"


def _spans_one(way: Way, ours: Way) -> str:
    """Half of the rounds say faster, half say slower."""
    low, high = way.timing.ratio_low, way.timing.ratio_high
    if low <= 1 <= high and f"{low:.2f}" != f"{high:.2f}":
        return f"half of the ratios lie between {low:.2f} and {high:.2f}"
    return ""


def _disagree(way: Way, ours: Way) -> str:
    """The medians of the two ways lie on the other side of 1, or outside of the ratios' quartiles
    by more than their width."""
    timing = way.timing
    of_medians = timing.median_ms / ours.timing.median_ms
    width = max(timing.ratio_high - timing.ratio_low, 0.02)
    outside = not timing.ratio_low - width <= of_medians <= timing.ratio_high + width
    other_side = (of_medians > 1) != (timing.ratio > 1)
    if outside or (other_side and abs(of_medians - timing.ratio) > width):
        of_rounds = f"the median ratio is {timing.ratio:.2f}"
        return f"the ratio of the medians is {of_medians:.2f}, but {of_rounds}"
    return ""


def _busy(way: Way, ours: Way) -> str:
    share = way.timing.processor_share
    if share is not None and share < LEAST_SHARE:
        return f"the process had {100 * share:.0f} % of the processor time that it asked for"
    return ""


_RULES = (_spans_one, _disagree, _busy)

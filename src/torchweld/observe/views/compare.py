"""Two saved reports: what became faster or slower, beyond the noise that each measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from torchweld.core.errors import UsageError
from torchweld.core.units import bytes_text
from torchweld.observe.record.report import Report, Way
from torchweld.observe.views.page.units import us_text
from torchweld.observe.views.rows import kernel_rows

JUDGED, CONTROL = "torchweld", "eager"
MOST_KERNELS = 8
SAME, BETTER, WORSE, TOLD = "same", "better", "worse", "told"


@dataclass(frozen=True, slots=True)
class Change:
    """`verdict`: same (within the noise), better, worse, or told (not judged). `ratio`: after /
    before, below 1 is better; None where there are no two numbers. `noise`: the relative change
    that would not count."""

    what: str
    before: str
    after: str
    ratio: float | None
    noise: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """`kernels`: those of torchweld whose time changed most, where both reports have profiles; not
    judged, since a profile says nothing of its noise. `notes`: what differs between the two beside
    the figures."""

    changes: tuple[Change, ...]
    kernels: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Whether anything that is judged became worse."""
        return any(change.verdict == WORSE for change in self.changes)

    def to_dict(self) -> dict:
        """What `torchweld compare --json` prints."""
        return {
            "regressed": self.regressed,
            "changes": [asdict(change) for change in self.changes],
            "kernels": [asdict(change) for change in self.kernels],
            "notes": list(self.notes),
        }


def compare(
    before: Report, after: Report, tolerance: float = 0.05, relative_to: str | None = None
) -> Comparison:
    """Judges torchweld's time, peak memory, error contract and whether it ran at all; the other
    ways' times are told.

    A time has changed if it did by more than `tolerance`, and the intervals between the quartiles
    lie apart. Where eager was timed in the same rounds of both, and moves the same bytes in both,
    the time over eager's must have changed too: else it is the machine that did. `relative_to`: a
    way, such as eager, timed in both; only torchweld's time over that is judged, for machines that
    are not the same.
    Errors: UsageError if the reports are of different things or one lacks what is judged.
    """
    _require_same_subject(before, after)
    both = _ways(before), _ways(after)
    _require_times(*both)
    times, doubt = _times(*both, tolerance, relative_to)
    changes = (*times, _peak(both[0][JUDGED], both[1][JUDGED], tolerance),
               _contract(both[0][JUDGED], both[1][JUDGED]), *_told(*both))
    kernels = _kernels(before, after, tolerance)
    return Comparison(changes, tuple(kernels), (*doubt, *_notes(before, after)))


def _require_same_subject(before: Report, after: Report) -> None:
    for name in ("target", "dtype", "train", "inputs"):
        old, new = getattr(before.subject, name), getattr(after.subject, name)
        if old != new:
            raise UsageError(
                f"the reports are of different things: {name} is {old} in the first and {new} in "
                "the second", do="compare reports of one target",
            )  # fmt: skip
    if before.machine.device != after.machine.device:
        raise UsageError(
            f"the first was measured on {before.machine.device}, the second on "
            f"{after.machine.device}", do="compare reports of one kind of device",
        )  # fmt: skip


def _ways(report: Report) -> dict[str, Way]:
    return {way.name: way for way in report.ways}


def _require_times(before: dict[str, Way], after: dict[str, Way]) -> None:
    for which, way in (("first", before.get(JUDGED)), ("second", after.get(JUDGED))):
        if way is None or way.timing is None:
            why = f": {way.problem}" if way and way.problem else ""
            raise UsageError(f"the {which} report has no time of {JUDGED}{why}", do="make it again")


def _times(
    before: dict[str, Way], after: dict[str, Way], tolerance: float, relative_to: str | None
) -> tuple[list[Change], list[str]]:
    """The judged changes of time, and what speaks against one that was not believed."""
    if relative_to:
        return [_relative(before, after, relative_to, tolerance)], []
    alone = _time(JUDGED, before[JUDGED], after[JUDGED], tolerance)
    if not _is_controlled(before.get(CONTROL), after.get(CONTROL)):
        return [alone], []
    relative = _relative(before, after, CONTROL, tolerance)
    if alone.verdict in (SAME, relative.verdict):
        return [alone, replace(relative, verdict=TOLD)], []
    doubt = f"the machine's speed: {CONTROL} did the same work, and its time changed as much"
    return [replace(alone, verdict=SAME), replace(relative, verdict=TOLD)], [doubt]


def _is_controlled(old: Way | None, new: Way | None) -> bool:
    """Whether the control was timed in both, doing the same work: else the model has changed."""
    timed = old and new and old.timing and new.timing
    return bool(timed) and old.bytes_moved == new.bytes_moved


def _time(name: str, old: Way, new: Way, tolerance: float, judged: bool = True) -> Change:
    """An interval as wide as that between the quartiles, about each median."""
    spans = [
        (w.timing.median_ms - w.timing.iqr_ms / 2, w.timing.median_ms, w.timing.median_ms
         + w.timing.iqr_ms / 2)
        for w in (old, new)
    ]  # fmt: skip
    return _change(f"time of {name}", *spans, lambda ms: f"{ms:.3g} ms", tolerance, judged)


def _relative(
    before: dict[str, Way], after: dict[str, Way], name: str, tolerance: float
) -> Change:
    """torchweld's time over that of `name`."""
    spans = []
    for which, ways in (("first", before), ("second", after)):
        timing = ways[name].timing if name in ways else None
        if timing is None:
            raise UsageError(f"the {which} report has no time of {name}", do="time it there, too")
        spans.append((1 / timing.ratio_high, 1 / timing.ratio, 1 / timing.ratio_low))
    what = f"time of {JUDGED} / {name}"
    return _change(what, *spans, lambda ratio: f"{ratio:.3f}", tolerance, True)


def _peak(old: Way, new: Way, tolerance: float) -> Change:
    what = f"peak memory of {JUDGED}"
    if not old.peak_bytes or not new.peak_bytes:
        shown = bytes_text(old.peak_bytes), bytes_text(new.peak_bytes)
        return Change(what, *shown, None, None, TOLD)
    spans = [(float(w.peak_bytes),) * 3 for w in (old, new)]
    return _change(what, *spans, lambda count: bytes_text(round(count)), tolerance, True)


def _contract(old: Way, new: Way) -> Change:
    def shown(way: Way) -> str:
        if way.error is None or way.error.within_contract is None:
            return "not checked"
        return "within" if way.error.within_contract else "OUTSIDE"

    texts = shown(old), shown(new)
    verdicts = {("within", "OUTSIDE"): WORSE, ("OUTSIDE", "within"): BETTER}
    verdict = SAME if texts[0] == texts[1] else verdicts.get(texts, TOLD)
    return Change("error contract", *texts, None, None, verdict)


def _told(before: dict[str, Way], after: dict[str, Way]) -> Iterator[Change]:
    for name, old in before.items():
        new = after.get(name)
        if name != JUDGED and new and old.timing and new.timing:
            yield _time(name, old, new, 0.0, judged=False)
    old, new = before[JUDGED], after[JUDGED]
    yield _counts(f"kernels of {JUDGED}", old.kernels, new.kernels, str)
    yield _counts(f"bytes moved by {JUDGED}", old.bytes_moved, new.bytes_moved, bytes_text)


def _counts(what: str, old: int | None, new: int | None, text: Callable) -> Change:
    shown = ["-" if count is None else text(count) for count in (old, new)]
    return Change(what, *shown, new / old if old and new else None, None, TOLD)


def _kernels(before: Report, after: Report, tolerance: float) -> list[Change]:
    """Those that do the same operations at the same place in both, the largest difference first."""
    old, new = _kernel_times(before), _kernel_times(after)
    moved = {what: new[what] - old[what] for what in old if what in new}
    found = [what for what in moved if abs(moved[what]) > tolerance * old[what]]
    found = sorted(found, key=lambda what: -abs(moved[what]))[:MOST_KERNELS]
    return [
        Change(what, us_text(old[what]), us_text(new[what]), new[what] / old[what], None, TOLD)
        for what in found
    ]


def _kernel_times(report: Report) -> dict[str, float]:
    """Microseconds of a step of torchweld by operations and place."""
    found: dict[str, float] = defaultdict(float)
    for profile in report.profiles:
        for row in kernel_rows(profile) if profile.way == JUDGED else ():
            found[f"{row.operations or row.name} @ {row.module or '-'}"] += row.measured_us
    return found


Span = tuple[float, float, float]  # low, middle, high


def _change(
    what: str, old: Span, new: Span, text: Callable[[float], str], tolerance: float, judged: bool
) -> Change:
    ratio = new[1] / old[1]
    noise = max(tolerance, ((old[2] - old[0]) / old[1] + (new[2] - new[0]) / new[1]) / 2)
    verdict = TOLD
    if judged:
        slower = new[0] > old[2] and ratio > 1 + tolerance
        faster = new[2] < old[0] and ratio < 1 / (1 + tolerance)
        verdict = WORSE if slower else BETTER if faster else SAME
    return Change(what, text(old[1]), text(new[1]), ratio, noise, verdict)


def _notes(before: Report, after: Report) -> Iterator[str]:
    for name in ("name", "threads", "torch", "triton", "python", "torchweld"):
        old, new = getattr(before.machine, name), getattr(after.machine, name)
        if old != new:
            yield f"{'device' if name == 'name' else name}: {old} -> {new}"

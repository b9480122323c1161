"""Times, bytes and energies as people read them: one value with its unit, or a column with one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchweld.core.units import ms_text, seconds_text


def us_text(microseconds: float | None) -> str:
    """Three significant digits, in µs or ms."""
    if microseconds is None:
        return "-"
    if abs(microseconds) >= 9995:
        return f"{ms_text(microseconds / 1e3)} ms"
    digits = 2 - math.floor(math.log10(abs(microseconds))) if microseconds else 0
    return f"{microseconds:.{min(2, max(0, digits))}f} µs"


def joules_text(joules: float | None) -> str:
    """With its unit: J, or mJ below 0.1 J."""
    if joules is None:
        return "-"
    return f"{joules:.3g} J" if abs(joules) >= 0.1 else f"{1e3 * joules:.3g} mJ"


def duration_text(seconds: float) -> str:
    """A stage of compilation: milliseconds below a second."""
    return seconds_text(seconds) if seconds >= 1 else f"{ms_text(1e3 * seconds)} ms"


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit for a whole column: values are divided by `scale`, and have `digits` decimals."""

    name: str
    scale: float
    digits: int

    def text(self, value: float | None) -> str:
        """Without the unit's name, which the heading has; "-" for what is not known."""
        if value is None:
            return "-"
        shown = f"{value / self.scale:.{self.digits}f}"
        least = 10**-self.digits
        return shown if value == 0 or float(shown) else f"<{least:.{self.digits}f}"


_TIMES = (("µs", 1.0), ("ms", 1e3), ("s", 1e6))
_BYTES = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
_FLOPS = (("flop", 1.0), ("kflop", 1e3), ("Mflop", 1e6), ("Gflop", 1e9), ("Tflop", 1e12))


def time_unit(microseconds: Iterable[float | None]) -> Unit:
    """Milliseconds from ten of them on, seconds likewise."""
    return _unit(_TIMES, microseconds, 10.0)


def bytes_unit(counts: Iterable[float | None]) -> Unit:
    """One unit for a column of bytes."""
    return _unit(_BYTES, counts, 1.0)


def flops_unit(counts: Iterable[float | None]) -> Unit:
    """One unit for a column of flop."""
    return _unit(_FLOPS, counts, 1.0)


def _unit(units: Sequence[tuple[str, float]], values: Iterable, least: float) -> Unit:
    """The largest in which the largest value is `least` or more, with four digits of that."""
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    fitting = [u for u in units if largest >= least * u[1]] or units[:1]
    name, scale = fitting[-1]
    before = len(str(int(largest / scale)))
    return Unit(name, scale, 0 if scale == 1.0 and units is _BYTES else max(0, 4 - before))

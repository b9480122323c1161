"""Small times and energies as people read them."""

from __future__ import annotations

import math

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
    if joules is None:
        return "-"
    return f"{joules:.3g} J" if abs(joules) >= 0.1 else f"{1e3 * joules:.3g} mJ"


def duration_text(seconds: float) -> str:
    """A stage of compilation: milliseconds below a second."""
    return seconds_text(seconds) if seconds >= 1 else f"{ms_text(1e3 * seconds)} ms"

"""Numbers as people read them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


def bytes_text(count: int | None) -> str:
    """1234567 -> "1.23 MB" (powers of 1000); None -> "-"."""
    if count is None:
        return "-"
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while abs(value) >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{count} B" if units[0] == "B" else f"{value:.3g} {units[0]}"


def number_text(count: int) -> str:
    """1236000000 -> "1.24 G"."""
    return bytes_text(count)[:-1].strip() if count >= 1000 else str(count)


def count_text(count: int | None) -> str:
    """- for None."""
    return "-" if count is None else str(count)


def ms_text(milliseconds: float) -> str:
    """Three significant digits."""
    return f"{milliseconds:.3g}" if milliseconds < 100 else f"{milliseconds:.0f}"


def seconds_text(seconds: float | None) -> str:
    """With its unit; - for None."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def counted(names: Sequence[str]) -> list[str]:
    """["add", "mul", "add"] -> ["2 add", "mul"]"""
    return [f"{names.count(n)} {n}" if names.count(n) > 1 else n for n in dict.fromkeys(names)]


def general(path: str) -> str:
    """model.layers.11.mlp -> model.layers.*.mlp"""
    return _NUMBER.sub("*", path)

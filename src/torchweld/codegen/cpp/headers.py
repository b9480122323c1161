"""The C++ that every generated kernel may call."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def common_header() -> str:
    """Vector types and mathematics: the text of fastmath.h and vectors.h."""
    here = Path(__file__)
    return "".join(here.with_name(name).read_text() for name in ("fastmath.h", "vectors.h"))

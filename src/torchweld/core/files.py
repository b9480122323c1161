"""Files that a reader never sees half of."""

from __future__ import annotations

import os
from pathlib import Path

from torchweld.core.errors import UsageError


def write_whole(text: str, path: Path) -> None:
    """Written beside `path`, then renamed, so that a reader never sees half of it. Errors:
    UsageError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        why = f"{path} cannot be written: {error.strerror}"
        raise UsageError(why, do="name another file") from error

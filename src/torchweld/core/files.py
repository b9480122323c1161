"""Files that a reader never sees half of."""

from __future__ import annotations

import os
from pathlib import Path

from torchweld.core.errors import UsageError


def write_whole(text: str, path: Path) -> None:
    """Written beside `path`, then renamed; straight into what is no plain file (/dev/stdout, a
    pipe). Errors: UsageError."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            _replace(text, path.resolve())
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror}"
        raise UsageError(why, do="name another file") from error


def _replace(text: str, path: Path) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise

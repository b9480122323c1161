"""What could not be captured or compiled: told once for each cause, and logged with its
traceback."""

from __future__ import annotations

from torchweld.core import events
from torchweld.core.logs import logger


def warn_of(error: Exception, key: str, message: str) -> None:
    """Warns the first time that `key` is seen; where `capture` is logged for debugging, each time
    with where the error was raised."""
    logger("capture").debug("%s", message, exc_info=error)
    events.warn_once(key, message)

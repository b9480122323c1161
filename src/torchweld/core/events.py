"""What went differently from the plan, told once: a warning per cause and a record of all of
them."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass

from torchweld.core.logs import logger


class TorchweldWarning(UserWarning):
    """Something runs, but not as fast as it could. The message says what and why."""


@dataclass(frozen=True, slots=True)
class Event:
    """`key` identifies the cause; `message` is one line."""

    key: str
    message: str


_LIMIT = 1000  # a program that fails in a new way at every call must not grow without bound
_events: list[Event] = []
_warned: set[str] = set()
_lock = threading.Lock()


def record(key: str, message: str) -> bool:
    """Keeps the event; True the first time that `key` is seen."""
    logger("events").info("%s", message)
    with _lock:
        if len(_events) < _LIMIT:
            _events.append(Event(key, message))
        first = key not in _warned
        _warned.add(key)
    return first


def warn_once(key: str, message: str) -> None:
    """Records the event, and warns (`TorchweldWarning`) the first time that `key` is seen in this
    process."""
    if record(key, message):
        warnings.warn(f"torchweld: {message}", TorchweldWarning, stacklevel=3)


def events() -> tuple[Event, ...]:
    """Everything recorded in this process, oldest first."""
    with _lock:
        return tuple(_events)


def clear() -> None:
    """Forgets all events and warns again."""
    with _lock:
        _events.clear()
        _warned.clear()

"""Standard logging under `torchweld`: INFO tells what was compiled and what went otherwise than
planned, DEBUG each stage and each note of a program that runs.

Silent unless the application sets logging up, or TORCHWELD_LOG is set: a level ("info"), or levels
by part ("info,pipeline=debug").
"""

from __future__ import annotations

import logging
import os
from functools import cache

from torchweld.core.errors import UsageError

ROOT = "torchweld"
_LEVELS = ("debug", "info", "warning", "error")
_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def logger(part: str) -> logging.Logger:
    """That of `torchweld.PART`. Errors: UsageError for a TORCHWELD_LOG that means nothing."""
    _set_up()
    return logging.getLogger(f"{ROOT}.{part}")


def levels_of(text: str) -> dict[str, int]:
    """ "info,pipeline=debug" -> {"torchweld": INFO, "torchweld.pipeline": DEBUG}. Errors:
    UsageError."""
    found = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        part, _, level = item.rpartition("=")
        if level.lower() not in _LEVELS:
            raise UsageError(f"TORCHWELD_LOG={text} is not valid",
                             do=f"give a level, of {', '.join(_LEVELS)}, or PART=LEVEL")
        found[f"{ROOT}.{part}" if part else ROOT] = getattr(logging, level.upper())
    return found


@cache
def _set_up() -> None:
    """Once, where the environment asks for it: a handler on stderr, and the levels."""
    levels = levels_of(os.environ.get("TORCHWELD_LOG", ""))
    if not levels:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.getLogger(ROOT).addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)

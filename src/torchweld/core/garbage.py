"""Python's garbage collection, while a model is captured and compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """What is built inside is kept or has no cycles; each full collection amid captured graphs
    takes as long as planning them, and all of them a tenth of a capture."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()

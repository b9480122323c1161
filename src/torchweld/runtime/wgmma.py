"""Compilations by Triton with and without Hopper's wgmma instructions.

Triton (3.6 and 3.7) reads DISABLE_MMA_V3 from the environment, in the pass that picks tensor cores;
it has no option for it. The variable is the process's, so such a compilation waits for the others
to end, and others for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

_VARIABLE = "DISABLE_MMA_V3"
_turn = Condition()
_with = 0  # compilations that run now and may have wgmma


@contextmanager
def allowed() -> Iterator[None]:
    """Several threads at a time may compile so; not while one is in `avoided`."""
    global _with
    with _turn:
        _with += 1
    try:
        yield
    finally:
        with _turn:
            _with -= 1
            _turn.notify_all()


@contextmanager
def avoided() -> Iterator[None]:
    """One thread at a time: products have mma.sync."""
    with _turn:
        _turn.wait_for(lambda: _with == 0)
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before

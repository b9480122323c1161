"""Calls of a module by several threads, and traces of it, which change it for a moment:
torch.export puts fake tensors in the place of its parameters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many calls at a time, or one trace."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls, self._is_traced = 0, False

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A call of the module. It waits for the trace that is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_traced)
            self._calls += 1
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Inside `calling`: the call itself waits until nobody else is in a call or a trace."""
        self._leave()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_traced and not self._calls)
            self._is_traced = True
        try:
            yield
        finally:
            with self._changed:
                self._is_traced, self._calls = False, 1
                self._changed.notify_all()

    def _leave(self) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

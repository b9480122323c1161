"""What Dynamo is told while it traces for a fused object, and what it says about it.

It then captures layers of LSTM, GRU and RNN, and operations whose sizes depend on data, which it
leaves out by itself: the graph would be cut there, or the whole function run in eager, in silence.
What it makes does not mark each call for torch's profiler, which takes 2 us of a call. Nor are
guards timed for its log, which takes 24 ms of a compilation.
Other users of torch.compile in the process see nothing of that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from torchweld.capture import torch_private

_SIZES = "capture_dynamic_output_shape_ops"
_SETTINGS = {"allow_rnn": True, _SIZES: True, "record_runtime_overhead": False}


@dataclass
class _Compilation(threading.local):
    """The one that is under way in this thread. `was`: the settings to come back to."""

    was: dict[str, bool] = field(default_factory=dict)


class _Next(threading.local):
    """The next compilation of this thread. `sizes`: that depend on data are captured."""

    sizes = True


_next = _Next()


class Listener:
    """`ours()`: the compilation that begins is for a fused object. `heard(place, reason)`: a graph
    is cut at this line."""

    def __init__(self, ours: Callable[[], bool], heard: Callable[[str, str], None]) -> None:
        self._ours = ours
        self._now = _Compilation()
        self._breaks = torch_private.GraphBreaks(heard)
        # A backward may be compiled at its first call, amid code that Dynamo traces as it runs: it
        # would trace these too, and wait for its own lock.
        self._begin = torch.compiler.disable(self._started)
        self._end = torch.compiler.disable(self._ended)

    def listen(self) -> None:
        """To be called before each call: torch._dynamo.reset() forgets listeners."""
        if self._begin not in torch_private.START_CALLBACKS:
            torch_private.around_compilations(self._begin, self._end)

    def _started(self, _) -> None:
        if self._ours():
            torch_private.time_guards(False)
            torch_private.find_methods_by_name(False)
            torch_private.find_states_of_lstm(False)
            asked = {**_SETTINGS, _SIZES: _next.sizes}
            _next.sizes = True
            self._now.was = {n: torch_private.set_dynamo(n, v) for n, v in asked.items()}
            self._breaks.listen()

    def _ended(self, _) -> None:
        was, self._now.was = self._now.was, {}
        for name, value in was.items():
            torch_private.set_dynamo(name, value)
        if was:
            torch_private.time_guards(True)
            torch_private.find_methods_by_name(True)
            torch_private.find_states_of_lstm(True)
            self._breaks.stop()


def trace_again_without_sizes() -> None:
    """For a graph with sizes that depend on data, which cannot be compiled: raises what makes
    Dynamo trace it once more, cut at each of them. Returns where that has been done already."""
    if torch_private.set_dynamo(_SIZES, False):
        raise torch_private.TraceAgain


def leave_out_sizes_next() -> None:
    """The next compilation of this thread is cut at each size that depends on data: for code that
    Dynamo itself fails with, where these are captured."""
    _next.sizes = False

"""Calls and traces of one module in several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from torchweld.capture.gate import Gate

SECONDS = 10  # until a lock counts as dead


def test_nobody_calls_during_a_trace():
    gate, inside, worst = Gate(), [0], [0]
    counting = threading.Lock()

    def enter(more: int) -> None:
        with counting:
            inside[0] += more
            worst[0] = max(worst[0], inside[0])

    def call(number: int) -> bool:
        with gate.calling():
            if number % 3:
                return True
            with gate.tracing():
                enter(1)
                alone = inside[0] == 1 and not gate._calls
                enter(-1)
                return alone

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(call, range(300), timeout=SECONDS))
    assert worst == [1]
    assert not gate._calls


def test_two_calls_that_want_to_trace_do_not_wait_for_each_other():
    gate, both = Gate(), threading.Barrier(2)

    def call(_: int) -> bool:
        with gate.calling():
            both.wait(SECONDS)
            with gate.tracing():
                return True

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(call, range(2), timeout=SECONDS)) == [True, True]


def test_a_trace_that_fails_lets_others_in():
    gate = Gate()
    try:
        with gate.calling(), gate.tracing():
            raise ValueError
    except ValueError:
        pass
    with gate.calling(), gate.tracing():
        assert gate._is_traced
    assert not gate._calls and not gate._is_traced

"""Events: every one recorded, each cause warned of once."""

from __future__ import annotations

import warnings

import pytest

from torchweld.core import events


@pytest.fixture(autouse=True)
def _fresh():
    events.clear()
    yield
    events.clear()


def test_one_warning_per_cause():
    with pytest.warns(events.TorchweldWarning) as caught:
        events.warn_once("a", "first")
        events.warn_once("a", "again")
        events.warn_once("b", "other")
    assert [str(w.message) for w in caught] == ["torchweld: first", "torchweld: other"]
    assert [e.message for e in events.events()] == ["first", "again", "other"]


def test_recorded_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert events.record("a", "quiet")
        assert not events.record("a", "quiet")


def test_the_record_is_bounded():
    for n in range(3000):
        events.record(str(n), "x")
    assert len(events.events()) == 1000

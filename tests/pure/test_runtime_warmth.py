"""When programs are recorded."""

from __future__ import annotations

from torchweld.runtime.warmth import Warmth


def calls_until_due(warmth: Warmth, sizes: tuple, most: int = 100) -> int | None:
    return next((n for n in range(most) if warmth.is_due(sizes)), None)


def test_sizes_are_warm_after_some_calls():
    assert calls_until_due(Warmth(1), ()) == 1
    warmth = Warmth(2)
    assert [warmth.is_due((n,)) for n in (4, 5, 4, 4, 5, 5)] == [False] * 3 + [True, False, True]


def test_sizes_that_were_seen_long_ago_are_forgotten():
    warmth = Warmth(1)
    warmth.is_due((1,))
    for n in range(100, 164):
        warmth.is_due((n,))
    assert not warmth.is_due((1,))
    assert warmth.is_due((163,))


def test_a_recording_that_goes_must_be_earned_again():
    warmth = Warmth(0)
    for _ in range(8):
        assert warmth.is_due(())
        warmth.recorded(())
    assert not warmth.is_due(())
    warmth.replays = 49
    assert not warmth.is_due(())
    warmth.replays = 50
    assert warmth.is_due(())
    warmth.recorded(())
    assert not warmth.is_due(())


def test_after_a_failure_there_is_none():
    warmth = Warmth(0)
    warmth.fail()
    assert not warmth.is_due(()) and not warmth.may_record()


def test_after_a_drop_calls_count_anew():
    warmth = Warmth(1)
    warmth.is_due(())
    warmth.cool()
    assert calls_until_due(warmth, ()) == 1

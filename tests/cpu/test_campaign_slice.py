"""A slice of the campaign: seeded, by the interpreter, less than a minute on two cores."""

import pytest

from torchweld.exact.campaign.run import Campaign, run

# Programs that were wrong once, by their seeds.
FOUND = {
    "movement": (455, 473, 474, 509, 2427, 3529),
    "operator": (10414, 10558, 11423),
    "random": (10566, 13803),
}


@pytest.mark.parametrize("part", range(2))
def test_nothing_is_wrong(tmp_path, part):
    log = run(Campaign(tmp_path), range(20 * part, 20 * part + 20), processes=0)
    assert [f for f in log.finished if f.found] == []
    assert sum(bool(f.kind) for f in log.finished) > 10


@pytest.mark.parametrize("device, first, count", [("cpu", 51_000_000, 4), ("H100", 50_000_100, 20)])
def test_nothing_is_wrong_whatever_is_fast(tmp_path, device, first, count):
    """Plans for devices whose rates are drawn."""
    log = run(Campaign(tmp_path, "priced", device), range(first, first + count), processes=0)
    assert [f for f in log.finished if f.wrong] == []
    assert sum(bool(f.kind) for f in log.finished) > count // 2


@pytest.mark.parametrize("kind", FOUND)
def test_what_was_found_stays_right(tmp_path, kind):
    log = run(Campaign(tmp_path, kinds=(kind,)), FOUND[kind], processes=0)
    assert [f for f in log.finished if f.found] == []

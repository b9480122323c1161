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


@pytest.mark.parametrize("kind", FOUND)
def test_what_was_found_stays_right(tmp_path, kind):
    log = run(Campaign(tmp_path, kinds=(kind,)), FOUND[kind], processes=0)
    assert [f for f in log.finished if f.found] == []

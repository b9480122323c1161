"""The slow tier names files that there are."""

from __future__ import annotations

from pathlib import Path

from slow_files import SLOW_FILES

TESTS = Path(__file__).resolve().parent.parent


def test_each_is_a_file_of_another_tier_than_this():
    files = [p for p in TESTS.rglob("test_*.py") if TESTS / "pure" not in p.parents]
    assert {p.stem for p in files} >= SLOW_FILES

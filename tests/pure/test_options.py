"""What users learn of the options."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

import torchweld
from torchweld.core.errors import UsageError


def test_help_tells_of_each_option_and_its_default():
    told = torchweld.Options.__doc__.splitlines()
    for option in fields(torchweld.Options):
        (at,) = [n for n, line in enumerate(told) if line.split(" = ")[0] == option.name]
        assert told[at + 1].strip() == option.metadata["doc"]
    assert "cuda_graphs = True" in told


def test_the_reference_has_the_text_of_each_option():
    page = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    for option in fields(torchweld.Options):
        row = f"| `{option.name}` | {option.metadata['doc']} |"
        assert row in page, f"docs/reference.md lacks {row}"


def test_an_option_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match=r"unknown option speed: choose from .*cuda_graphs"):
        torchweld.Options().with_(speed=3)


@pytest.mark.parametrize("wrong", [
    {"numerics": "egaer"}, {"compile_jobs": "many"}, {"compile_jobs": 0}, {"dynamic": "yes"},
    {"dynamic": 1}, {"cuda_graphs": None}, {"tune_seconds": -1.0}, {"tune_seconds": "long"},
    {"tune_seconds": float("nan")}, {"debug": True}, {"cache_dir": 3}, {"fuse": "no"},
])  # fmt: skip
def test_values_that_mean_nothing(wrong):
    (name,) = wrong
    with pytest.raises(UsageError, match=f"option {name}=.*: give "):
        torchweld.Options(**wrong)
    with pytest.raises(UsageError, match=name):
        torchweld.fuse(len, **wrong)


def test_values_that_mean_something():
    torchweld.Options(numerics="eager", dynamic=False, tune_seconds=3, cache_dir="x", debug=2)

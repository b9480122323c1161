"""What users learn of the options."""

from __future__ import annotations

from dataclasses import fields

import pytest

import torchweld
from torchweld.core.errors import UsageError


def test_help_tells_of_each_option_and_its_default():
    told = torchweld.Options.__doc__.splitlines()
    for option in fields(torchweld.Options):
        (at,) = [n for n, line in enumerate(told) if line.split(" = ")[0] == option.name]
        assert told[at + 1].strip() == option.metadata["doc"]
    assert "cuda_graphs = True" in told


def test_an_option_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match=r"unknown option speed: choose from .*cuda_graphs"):
        torchweld.Options().with_(speed=3)

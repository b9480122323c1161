"""Compilations without wgmma: none other runs then, and the environment is as it was."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from torchweld.runtime import wgmma

NAME = "DISABLE_MMA_V3"


def test_the_variable_is_set_for_one_alone(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)

    def compiles(number):
        if number % 3:
            with wgmma.allowed():
                return [os.environ.get(NAME) for _ in range(1000)]
        with wgmma.avoided():
            return [os.environ.get(NAME) for _ in range(1000)]

    with ThreadPoolExecutor(8) as pool:
        for number, seen in enumerate(pool.map(compiles, range(90))):
            assert set(seen) == ({None} if number % 3 else {"1"})
    assert NAME not in os.environ


def test_what_the_user_set_stays(monkeypatch):
    monkeypatch.setenv(NAME, "0")
    with wgmma.avoided():
        assert os.environ[NAME] == "1"
    assert os.environ[NAME] == "0"

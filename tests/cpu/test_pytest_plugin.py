"""The pytest plugin, as a user's test suite meets it, and each judgement of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchweld
from report_example import example
from torchweld import pytest_plugin
from torchweld.observe.record.schema import read_json, write_json
from torchweld.pytest_plugin import Check

MODEL = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
X = torch.randn(4, 8)
SUITE = """
import torch

def make():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)
    return torch.nn.Sequential(*layers), torch.randn(4, 8)

def test_errors(torchweld_check):
    torchweld_check.within_contract(*make())

def test_speed(torchweld_check):
    torchweld_check.not_slower(*make(), "speed.json")
"""


def check(folder: Path, update: bool = False) -> Check:
    return Check(folder, "geglu", update, 0.0, 0.05)


def report(share: float = 1.0, slower: float = 1.0):
    """Of eager and torchweld; `slower`: torchweld by this factor."""
    found = example()
    ways = []
    for way in (found.ways[0], found.ways[-1]):
        timing = replace(way.timing, processor_share=share)
        if way.name == "torchweld":
            timing = replace(timing, median_ms=slower * timing.median_ms)
        else:
            parts = ("ratio", "ratio_low", "ratio_high")
            timing = replace(timing, **{p: getattr(timing, p) / slower for p in parts})
        ways.append(replace(way, timing=timing))
    return replace(found, ways=ways, profiles=[], graphs=[])


@pytest.fixture
def measures(monkeypatch):
    """What not_slower measures now."""
    return lambda found: monkeypatch.setattr(pytest_plugin, "_report", lambda *_: found)


def test_a_suite_stores_and_then_compares(tmp_path):
    (tmp_path / "test_mine.py").write_text(SUITE)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "torchweld.pytest_plugin",
             "--torchweld-seconds", "0", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
        return done.stdout + done.stderr

    assert "2 passed" in run("--torchweld-update")
    assert {w.name for w in read_json(tmp_path / "speed.json").ways} == {"eager", "torchweld"}


@pytest.mark.parametrize("train", [False, True])
def test_a_model_within_the_contract(tmp_path, train):
    check(tmp_path).within_contract(MODEL, X, train=train)


def test_a_model_outside_the_contract_fails_with_the_errors(tmp_path, monkeypatch):
    def wrong(model, *_, **__):
        fused = torchweld.api.fuse(model, X)
        return lambda x: fused(x) * 1.001

    monkeypatch.setitem(vars(torchweld), "fuse", wrong)
    monkeypatch.setitem(vars(torchweld), "records", lambda _: [1])
    with pytest.raises(pytest.fail.Exception, match="outside the error contract"):
        check(tmp_path).within_contract(MODEL, X)


def test_a_model_that_is_not_fused_fails(tmp_path, monkeypatch):
    monkeypatch.setitem(vars(torchweld), "records", lambda _: [])
    with pytest.raises(pytest.fail.Exception, match="nothing was fused"):
        check(tmp_path).within_contract(MODEL, X)


def test_as_fast_as_the_report(tmp_path, measures):
    measures(report())
    write_json(report(), tmp_path / "speed.json")
    check(tmp_path).not_slower(MODEL, X, "speed.json")


def test_slower_than_the_report(tmp_path, measures):
    write_json(report(), tmp_path / "speed.json")
    measures(report(slower=1.5))
    with pytest.raises(pytest.fail.Exception, match="worse than the stored report"):
        check(tmp_path).not_slower(MODEL, X, "speed.json")
    measures(report(slower=1.5, share=0.5))
    with pytest.raises(pytest.skip.Exception, match="inconclusive: the process had 50%"):
        check(tmp_path).not_slower(MODEL, X, "speed.json")


def test_without_a_report(tmp_path, measures):
    with pytest.raises(pytest.fail.Exception, match="--torchweld-update"):
        check(tmp_path).not_slower(MODEL, X, "speed.json")
    measures(report())
    check(tmp_path, update=True).not_slower(MODEL, X, "speed.json")
    assert read_json(tmp_path / "speed.json") == report()

"""`torchweld profile --predict` on a GPU: the guess is of its kernels, near what is measured."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from torchweld.cli.main import app
from torchweld.observe.record.guess import Guess


def run(*arguments) -> str:
    ran = CliRunner().invoke(app, ["profile", "geglu-mlp", *map(str, arguments)],
                             env={"COLUMNS": "120"})
    assert ran.exit_code == 0, ran.output
    return ran.output


@pytest.mark.parametrize("way", ["eager", "torchweld"])
def test_the_guess_stands_beside_the_measurement(tmp_path, monkeypatch, way):
    monkeypatch.setenv("TORCHWELD_CACHE_DIR", str(tmp_path / "cache"))
    run("--way", way, "--predict", "--json", tmp_path / "guess.json")
    guess = Guess.from_json((tmp_path / "guess.json").read_text())
    shown = run("--way", way)
    guessed, measured, ratio = re.search(
        r"^all +(\d+) +(\d+) +\S+ +\S+ +([\d.]+)", shown, re.M).groups()
    assert int(guessed) == len(guess.kernels) <= int(measured)  # fills of a workspace are more
    assert 0.5 < float(ratio) < 2


def test_the_guess_of_another_gpu(tmp_path):
    run("--predict", "--target", "a100", "--json", tmp_path / "guess.json")
    guess = Guess.from_json((tmp_path / "guess.json").read_text())
    assert guess.device == "A100"
    assert [p.short_op for k in guess.kernels for p in k.places].count("mm") == 3

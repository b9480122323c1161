"""The command line as a user meets it: one clear line and exit code 2 for each thing that can be
wrong."""
from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from torchweld.cli.main import app
from torchweld.report import schema

TARGET = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.GELU()), torch.randn(3, 8)
def misfit():
    return torch.nn.Linear(8, 9), torch.randn(3, 7)
"""


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TARGET)
    return f"{path}:make"


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def refused(*arguments) -> str:
    """What is said; checks the form of it."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("torchweld: ")
    return lines[0]


def test_zoo_lists_every_model():
    from torchweld.zoo.models import TABLE

    listed = run("zoo")
    assert listed.exit_code == 0 and all(name in listed.output for name in TABLE)


def test_report_shows_and_writes_the_same(target, tmp_path):
    out = tmp_path / "report.json"
    result = run("report", target, "--against", "eager", "--json", out, "--seconds", 0,
                 "--device", "cpu")
    assert result.exit_code == 0, result.output
    report = schema.from_json(out.read_text())
    assert [way.name for way in report.ways] == ["eager", "torchweld"]
    assert all(way.timing.rounds >= 5 and way.timing.median_ms > 0 for way in report.ways)
    assert report.subject.inputs == ["float32[3, 8]"] and not report.subject.train
    assert "torchweld is" in result.stdout and report.subject.target == target
    assert [p.name for p in tmp_path.iterdir() if "json" in p.name] == ["report.json"]


def test_report_trains(target, tmp_path):
    out = tmp_path / "report.json"
    result = run("report", target, "--train", "--against", "eager", "--json", out, "--seconds", 0,
                 "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["subject"]["train"] is True


@pytest.mark.parametrize("arguments, said", [
    (["nope"], "the zoo has no 'nope'"),
    (["nope.py:make"], "there is no Python file nope.py"),
    (["bert-base", "--against", "eager,tvm"], "there is no baseline 'tvm': choose from eager"),
    (["bert-base", "--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
])
def test_wrong_arguments_are_told(arguments, said):
    assert said in refused("report", *arguments, "--device", "cpu")


def test_inputs_that_do_not_fit_are_told(target):
    assert "do not fit" in refused("report", target.replace("make", "misfit"), "--device", "cpu")


def test_a_missing_gpu_is_told(target, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no GPU" in refused("report", target, "--device", "cuda")


def test_a_missing_compiler_is_told(target, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "g++ is missing: install it" in refused("report", target, "--device", "cpu")


def test_an_unwritable_cache_is_told(target, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHWELD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    said = refused("report", target, "--device", "cpu")
    assert "cannot be written" in said and "TORCHWELD_CACHE_DIR" in said


def test_a_json_file_that_cannot_be_written_is_told(target, tmp_path):
    said = refused("report", target, "--json", tmp_path, "--device", "cpu", "--against", "",
                   "--seconds", 0)
    assert "is a folder" in said

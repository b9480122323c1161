"""`torchweld profile` as a user meets it."""
from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from torchweld.cli.main import app
from torchweld.observe.record.profile import Profile

TARGET = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.GELU()), torch.randn(3, 8)
def misfit():
    return torch.nn.Linear(8, 9), torch.randn(3, 7)
def broken():
    raise KeyError("x")
def leaves():
    raise SystemExit("bye")
class Talks(torch.nn.GELU):
    def forward(self, x):
        print("hello from the model")
        return super().forward(x)
def talks():
    from neighbour import WIDTH
    return Talks(), torch.randn(3, WIDTH)
def idle():
    return torch.nn.Identity(), torch.randn(3)
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TARGET)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["profile", "--device", "cpu", "--threads", "1",
                                    *map(str, arguments)])


@pytest.mark.parametrize("way", ["eager", "torchweld"])
def test_it_shows_and_writes_the_same(path, tmp_path, way):
    out, trace = tmp_path / "profile.json", tmp_path / "trace.json"
    result = run(f"{path}:make", "--way", way, "--json", out, "--trace", trace)
    assert result.exit_code == 0, result.output
    found = Profile.from_json(out.read_text())
    assert found.way == way and found.target == f"{path}:make"
    assert "addmm" in result.output and "gelu" in result.output
    assert json.loads(trace.read_text())["traceEvents"]
    assert {p.name for p in tmp_path.iterdir()} >= {"profile.json", "trace.json"}
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_the_output_is_the_profile_alone(path):
    (path.parent / "neighbour.py").write_text("WIDTH = 8")  # found as when the file is run
    result = run(f"{path}:talks", "--no-opportunities")
    assert "hello" in result.stderr and "hello" not in result.stdout
    assert "gelu" in result.stdout and "What fusion would save" not in result.stdout


def test_a_target_that_computes_nothing_is_told(path):
    assert "no kernel ran" in run(f"{path}:idle").stdout


def test_training_has_a_backward(path, tmp_path):
    out = tmp_path / "profile.json"
    assert run(f"{path}:make", "--train", "--json", out).exit_code == 0
    phases = {k.phase for k in Profile.from_json(out.read_text()).kernels}
    assert phases == {"forward", "backward"}


@pytest.mark.parametrize("arguments", [
    ["no-such-model"],
    ["{path}"],
    ["{path}:misfit"],
    ["{path}:broken"],
    ["{path}:leaves"],
    ["{path}:missing"],
    ["{path}:make", "--json", "{folder}/none/profile.json"],
    ["{path}:make", "--trace", "{folder}"],
])
def test_bad_input_is_one_line_and_exit_code_two(path, tmp_path, arguments):
    before = sorted(tmp_path.iterdir())
    result = run(*(a.format(path=path, folder=tmp_path) for a in arguments))
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("torchweld: ")
    assert [p for p in sorted(tmp_path.iterdir()) if p.name != "__pycache__"] == before

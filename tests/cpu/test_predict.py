"""`torchweld profile --predict`: the kernels that it expects are those that run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from report_example import ROOF
from torchweld.cli import predict, profile
from torchweld.cli.main import app
from torchweld.core.errors import UsageError
from torchweld.elsewhere.data import Asked
from torchweld.elsewhere.expected import expected
from torchweld.elsewhere.process import guess
from torchweld.observe.measure.recorder import record
from torchweld.observe.measure.subject import Subject
from torchweld.observe.profile import run as profiling
from torchweld.observe.record.guess import Guess
from torchweld.zoo import models

CASES = Path(__file__).parents[1] / "plan_cases.py"


@pytest.mark.parametrize("train", [False, True])
def test_the_kernels_of_eager_are_those_that_run(train):
    found = expected(Asked("bert-base", ("cpu",), train, None, True), "eager", ROOF)
    target = models.load("bert-base", "tiny", dtype=torch.float32, device="cpu", train=train)
    subject = Subject("bert-base", target.model, target.args, target.kwargs or {}, train, "cpu",
                      target.model)  # fmt: skip
    ran = record(subject.step, subject.module_names).calls
    assert [k.name for k in found.kernels] == [c.name for c in ran]
    assert [k.places[0].module for k in found.kernels] == [c.place.module for c in ran]
    assert [k.phase == "backward" for k in found.kernels] == [c.backward for c in ran]
    assert all(k.predicted_us > 0 for k in found.kernels)


def test_the_kernels_of_torchweld_are_those_of_the_plan():
    found = expected(Asked(f"{CASES}:geglu", ("cpu",)), "torchweld", ROOF)
    assert found.way == "torchweld" and {k.kind for k in found.kernels} <= {"generated", "library"}
    operations = [p.short_op for k in found.kernels for p in k.places]
    assert operations.count("mm") == 3 and "gelu" in operations


def test_a_gpu_that_is_not_here():
    """In another process, which pretends to have it."""
    found = guess(Asked(f"{CASES}:geglu", ("h100",)), "torchweld", None)
    assert found.device == "H100" and len(found.kernels) == 2
    gated, down = found.kernels
    assert (gated.kind, down.kind) == ("generated", "library")
    assert gated.predicted_us > down.predicted_us > 0 and gated.regime == "compute"


def test_a_model_that_looks_at_values_is_told():
    with pytest.raises(UsageError, match="does not run without data"):
        expected(Asked(f"{CASES}:depends_on_values", ("cpu",)), "eager", ROOF)


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The device's limits given, and the prediction made in this process."""
    monkeypatch.setenv("TORCHWELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(predict, "roofline", lambda *_: ROOF)
    monkeypatch.setattr(profiling, "roofline", lambda *_: ROOF)
    monkeypatch.setattr(predict, "guess", expected)
    path = tmp_path / "mine.py"
    path.write_text("import torch\ndef make():\n"
                    "    return torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.GELU()), "
                    "torch.randn(3, 8)\n")
    return f"{path}:make"


def run(*arguments):
    return CliRunner().invoke(app, ["profile", "--threads", "1", *map(str, arguments)])


def test_the_next_profile_shows_the_guess(quick, tmp_path):
    out = tmp_path / "guess.json"
    first = run(quick, "--device", "cpu", "--predict", "--json", out)
    assert first.exit_code == 0, first.output
    assert "nothing was run" in first.output and "addmm" in first.output
    assert [k.name for k in Guess.from_json(out.read_text()).kernels] == ["aten::addmm",
                                                                          "aten::gelu"]
    measured = run(quick, "--device", "cpu")
    assert "The guess of" in measured.output and "measured us" in measured.output
    other = profile.Request(quick, "eager", None, None, True, None, None, None, 1, 0, False)
    assert predict.kept_guess(other, "cpu") is None  # of training nothing was guessed


def test_wrong_use_is_one_line(quick):
    told = run(quick, "--target", "h100")
    assert told.exit_code == 2 and "--target is for --predict" in told.output
    told = run(quick, "--predict", "--way", "inductor")
    assert told.exit_code == 2 and "not known before it runs" in told.output

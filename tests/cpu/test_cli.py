"""The command line as a user meets it: one clear line and exit code 2 for each thing that can be
wrong."""
from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from torchweld.cli.main import app
from torchweld.observe.record import schema

TARGET = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.GELU()), torch.randn(3, 8)
def norm():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.GELU(), torch.nn.LayerNorm(8)), torch.randn(3, 8)
def frozen():
    return torch.nn.GELU(), torch.randn(3, 8)
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


@pytest.mark.parametrize("command", [[], ["report"], ["compare"], ["profile"], ["zoo"]])
def test_short_help(command):
    told = run(*command, "-h")
    assert told.exit_code == 0 and told.output == run(*command, "--help").output


def test_version():
    import torchweld

    told = run("--version")
    assert (told.exit_code, told.output) == (0, f"torchweld {torchweld.__version__}\n")


def test_traceback_is_there_when_asked_for():
    result = run("--traceback", "report", "nope", "--device", "cpu")
    lines = result.stderr.strip().splitlines()
    assert result.exit_code == 2 and lines[0].startswith("Traceback")
    assert lines[-1].startswith("torchweld: the zoo has no 'nope'")


@pytest.mark.parametrize("command", ["report", "profile"])
def test_json_on_stdout(target, command):
    extra = ["--seconds", 0, "--against", ""] if command == "report" else []
    result = run(command, target, *extra, "--json", "-", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) and target in "".join(result.stderr.split())


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
    assert "torchweld is" in result.stdout or "inconclusive" in result.stdout
    assert report.subject.target == target
    assert [p.name for p in tmp_path.iterdir() if "json" in p.name] == ["report.json"]


def test_report_writes_a_page_that_the_json_gives_again(target, tmp_path):
    page, again, data = (tmp_path / n for n in ("page.html", "again.html", "report.json"))
    result = run("report", target.replace("make", "norm"), "--against", "", "--html", page,
                 "--json", data, "--seconds", 0, "--device", "cpu")
    assert result.exit_code == 0, result.output
    report = schema.from_json(data.read_text())
    assert [profile.way for profile in report.profiles] == ["eager", "torchweld"]
    (group,) = report.graphs[0].groups
    assert group.error.fused_l2 < 1e-5 and "tw_" in group.sources[0].text
    assert report.subject.seed is None and report.subject.command.startswith("torchweld")
    result = run("report", data, "--html", again)
    assert result.exit_code == 0 and "Work, memory, error" in result.stdout
    assert again.read_text() == page.read_text() and "id=\"kernels\"" in page.read_text()


def test_report_without_a_file_profiles_no_kernels(target, monkeypatch):
    from torchweld.observe.report import build

    monkeypatch.setattr(build, "with_kernels", None)
    result = run("report", target, "--against", "", "--seconds", 0, "--device", "cpu")
    assert result.exit_code == 0, result.output


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


def test_a_model_that_cannot_be_trained_is_told(target):
    said = refused("report", target.replace("make", "frozen"), "--train", "--device", "cpu")
    assert "a training step of" in said and "does not require grad" in said


def test_a_missing_gpu_is_told(target, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds no GPU" in refused("report", target, "--device", "cuda")


def test_a_missing_compiler_is_told(target, monkeypatch, tmp_path):
    from torchweld.runtime import build

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCHWELD_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(build, "find_compiler", build.find_compiler.__wrapped__)
    assert "g++ is missing: install it" in refused("report", target, "--device", "cpu")


def test_an_unwritable_cache_is_told(target, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHWELD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    said = refused("report", target, "--device", "cpu")
    assert "cannot be written" in said and "TORCHWELD_CACHE_DIR" in said


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written_is_told_before_the_work(target, tmp_path, option):
    assert "is a folder" in refused("report", target, option, tmp_path, "--device", "cpu")
    said = refused("report", target, option, "/proc/report", "--device", "cpu")
    assert "/proc cannot be written" in said and option in said


def test_a_saved_report_that_is_cut_short_is_told_and_nothing_is_overwritten(tmp_path):
    (tmp_path / "cut.json").write_text('{"schema_version": 2, "date"')
    (tmp_path / "page.html").write_text("old")
    said = refused("report", tmp_path / "cut.json", "--html", tmp_path / "page.html")
    assert "it is not valid JSON" in said and (tmp_path / "page.html").read_text() == "old"


def test_a_model_that_raises_is_told_and_nothing_is_overwritten(target, tmp_path):
    (tmp_path / "page.html").write_text("old")
    refused("report", target.replace("make", "misfit"), "--device", "cpu", "--html",
            tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "old"

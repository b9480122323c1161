"""docs/howto.md and the notebooks of docs/examples: their code runs, and what they name exists."""

from __future__ import annotations

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from doc_examples import DOCS, run, sections
from torchweld.cli.main import app

PAGE = "howto.md"
NOTEBOOKS = sorted((DOCS / "examples").glob("*.ipynb"))
WORKFLOW = DOCS / "examples" / "torchweld-ci.yml"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("title", [t for t, blocks in sections(PAGE).items() if t and blocks])
def test_the_example_works(title):
    code = "".join(sections(PAGE)[title])
    for needed in ("transformers", "accelerate"):
        if needed in code or (needed == "accelerate" and "Trainer" in code):
            pytest.importorskip(needed)
    assert run(PAGE, title)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebook_runs(path):
    """Cell after cell, as Jupyter does, and each last expression has a short form in HTML or
    text."""
    names: dict = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            exec(compile(source, str(path), "exec"), names)
            last = source.strip().splitlines()[-1]
            if last.isidentifier():
                value = names[last]
                shown = value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
                assert 0 < len(shown) < 200_000


def test_there_are_two_notebooks():
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("page", [DOCS / PAGE, WORKFLOW, DOCS / "report.md", DOCS / "profile.md"],
                         ids=lambda p: p.name)
def test_commands_and_options_that_a_page_names_exist(page):
    """`torchweld report X --html Y`: the command is there, and knows each option."""
    for line in re.findall(r"^.*\btorchweld [a-z]+ .*$", page.read_text(), re.M):
        for command, rest in re.findall(r"torchweld ([a-z]+) ([^#`;&|(]*)", line):
            options = re.findall(r"--[a-z-]+", rest)
            if not options:
                continue
            ran = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
            assert ran.exit_code == 0, command
            assert all(option in ran.output for option in options), (line, options)

"""docs/extending.md: its code runs. The paths, passes and templates that the pages for engineers
name are those that there are."""

from __future__ import annotations

import re

import pytest

from doc_examples import DOCS, run, sections
from torchweld.capture.lowering.rows import ROWS
from torchweld.ir.simplify import RULES
from torchweld.passes.table import PASSES
from torchweld.targets.find import target_of
from torchweld.targets.gpus import H100
from torchweld.templates.registry import TEMPLATES

PAGE = "extending.md"
ROOT = DOCS.parent
DESIGN = (DOCS / "design.md").read_text()
PLACES = (ROOT, ROOT / "src" / "torchweld", ROOT / "src" / "torchweld" / "observe")


@pytest.fixture
def tables_as_they_were():
    """What an example adds to a table is gone after it."""
    before = [(table, dict(table)) for table in (ROWS, RULES, TEMPLATES)]
    yield
    for table, rows in before:
        table.clear()
        table.update(rows)


@pytest.mark.parametrize("title", [t for t in sections(PAGE) if t])
def test_the_example_works(title, tables_as_they_were):
    assert run(PAGE, title)


def test_a_wrong_example_would_be_found(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("## One\n\n```python\nassert 1 == 2\n```\n")
    monkeypatch.setattr("doc_examples.DOCS", tmp_path)
    with pytest.raises(AssertionError):
        run("page.md", "One")


@pytest.mark.parametrize("page", ["design.md", "extending.md", "glossary.md"])
def test_paths_that_a_page_names_exist(page):
    """What looks like one, in backticks: `ir/nodes.py`, `plan/cut`, `templates/gemm/`."""
    text = (DOCS / page).read_text()
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+(?:\.[a-z]+)?/?)`", text))
    missing = [n for n in sorted(named - TEMPLATES.keys()) if not _exists(n)]
    assert not missing


def test_the_design_lists_every_pass_in_order():
    rows = re.findall(r"^\| ([\w ()]+) \| `[\w/.]+` \| (x?) ?\| (x?) ?\|$", DESIGN, re.MULTILINE)
    assert {name for name, _, _ in rows} == PASSES.keys()
    assert tuple(name for name, gpu, _ in rows if gpu) == H100.passes
    assert tuple(name for name, _, cpu in rows if cpu) == target_of("cpu").passes


def test_the_design_lists_every_template():
    table = DESIGN.split("| template | makes |")[1].split("\n\n")[0]
    named = [n for row in table.splitlines() for n in re.findall(r"`([\w/]+)`", row)]
    assert sorted(named) == sorted(TEMPLATES)


def _exists(name: str) -> bool:
    return any((place / f"{name}{end}").exists() for place in PLACES for end in ("", ".py"))

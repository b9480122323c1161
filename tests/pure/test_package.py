"""What the package says of itself: names for type checkers, versions, licence."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

import torchweld

ROOT = Path(__file__).parents[2]


def test_type_checkers_see_the_names_that_there_are():
    tree = ast.parse((ROOT / "src/torchweld/__init__.py").read_text())
    blocks = [n for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name)]
    (block,) = blocks
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == torchweld._HOME and sorted(seen) == torchweld.__all__
    assert (ROOT / "src/torchweld/py.typed").exists()


@pytest.mark.parametrize(
    "name", ["api", "ops", "nn", "integrations.loops", "integrations.transformers"])
def test_what_users_call_is_typed(name):
    """Every argument and result of public functions and methods, as `mypy --strict` asks."""
    path = ROOT / "src/torchweld" / f"{name.replace('.', '/')}.py"
    for node in ast.walk(ast.parse(path.read_text())):
        public = isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if public and (name != "api" or node.name in torchweld.__all__):
            every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            untyped = [a.arg for a in every if a.annotation is None and a.arg != "self"]
            assert not untyped and node.returns is not None, (node.name, untyped)


def test_versions_agree():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{torchweld.__version__}"' in project
    assert '"torch>=2.11,<2.14"' in project
    assert "torch 2.11 to 2.13" in (ROOT / "README.md").read_text()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_licence():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0" and "Typing :: Typed" in project["classifiers"]
    assert all((ROOT / name).exists() for name in project["license-files"])
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_headers_are_installed():
    """An installed package without one compiles no kernel of that template."""
    project = (ROOT / "pyproject.toml").read_text()
    native = ROOT / "src/torchweld/runtime/native"  # all of it is installed
    for folder in {h.parent for h in (ROOT / "src").rglob("*.h")} - {native}:
        package = ".".join(folder.relative_to(ROOT / "src").parts)
        assert f'"{package}" = ["*.h"]' in project, package


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_site_has_every_page():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r": ([\w/-]+\.md)$", nav, re.M)
    assert sorted(listed) == sorted(p.name for p in (ROOT / "docs").glob("*.md"))


def test_the_reference_names_what_there_is():
    for name in re.findall(r"^::: (\S+)$", (ROOT / "docs/reference.md").read_text(), re.M):
        module, _, last = name.rpartition(".")
        parts = importlib.import_module(module)
        assert hasattr(parts, last) or importlib.import_module(name), name


def test_the_torch_that_is_here_is_one_that_is_allowed():
    major, minor = importlib.metadata.version("torch").split(".")[:2]
    assert (2, 11) <= (int(major), int(minor)) < (2, 14)

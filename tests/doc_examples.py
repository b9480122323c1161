"""The code blocks of a page of docs/, by section, and a way to run them."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def sections(page: str) -> dict[str, list[str]]:
    """The Python blocks under each heading of `page`, in order, padded so that a traceback names
    the line of the page. What stands before the first heading is under ""."""
    text = (DOCS / page).read_text()
    found: dict[str, list[str]] = {"": []}
    starts = [(m.start(), m[1]) for m in re.finditer(r"^## (.+)$", text, re.MULTILINE)]
    for block in _BLOCK.finditer(text):
        before = [title for at, title in starts if at < block.start()]
        line = text.count("\n", 0, block.start(1))
        found.setdefault(before[-1] if before else "", []).append("\n" * line + block[1])
    return found


def run(page: str, title: str) -> dict[str, object]:
    """The names that the blocks of a section define, after those before the first heading. Their
    `assert` statements are the test."""
    blocks = sections(page)
    module = types.ModuleType(f"example_{len(sys.modules)}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        for block in (*blocks[""], *blocks[title]):
            exec(compile(block, str(DOCS / page), "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module.__dict__

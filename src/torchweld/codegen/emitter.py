"""A small structured emitter: lines and indented blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Emitter:
    """Collects lines. `with e.block("for (...)"):` writes `for (...) {`, indents and closes the
    brace; with `braces=False` (Python) the header ends in a colon and nothing is closed."""

    def __init__(self, braces: bool = True) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._open, self._close = (" {", "}") if braces else (":", None)

    def line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text if text else "")

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, header: str = "") -> Iterator[None]:
        self.line((header + self._open).strip())
        self._depth += 1
        yield
        self._depth -= 1
        if self._close:
            self.line(self._close)

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

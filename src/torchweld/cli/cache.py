"""`torchweld cache`: what is kept on disk."""

from __future__ import annotations

import time
from datetime import datetime

import typer

from torchweld.core.options import Options
from torchweld.core.units import bytes_text
from torchweld.runtime.cache import refusal
from torchweld.runtime.cache_files import File, files, remove

_DAY = 86400.0


def show() -> None:
    options = Options()
    root = options.cache_root().expanduser()
    found = files(root)
    limit = bytes_text(int(options.cache_gigabytes * 1e9))
    typer.echo(f"{root}: {_text(found)}, limit {limit}")
    for kind in sorted({file.kind for file in found}):
        typer.echo(f"  {kind}: {_text([file for file in found if file.kind == kind])}")
    if found:
        oldest = datetime.fromtimestamp(found[0].used).date()
        typer.echo(f"  longest unused: since {oldest}")
    if root.exists() and (reason := refusal(root)):
        typer.echo(f"  it is not used: {reason}")


def clear(days: float) -> None:
    root = Options().cache_root().expanduser()
    before = time.time() - days * _DAY
    found = [file for file in files(root) if file.used <= before]
    typer.echo(f"{root}: {bytes_text(remove(found))} removed, {_text(files(root))} left")


def _text(found: list[File]) -> str:
    return f"{len(found)} files, {bytes_text(sum(file.bytes for file in found))}"

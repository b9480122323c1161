"""`torchweld cache`: what is kept on disk."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import torch
import typer

from torchweld.cli.asked import check_output
from torchweld.core.errors import UsageError
from torchweld.core.machine import device_name, versions
from torchweld.core.options import Options
from torchweld.core.units import bytes_text
from torchweld.runtime.cache import refusal
from torchweld.runtime.cache_archive import export_cache, import_cache, read_manifest
from torchweld.runtime.cache_files import File, files, remove

_DAY = 86400.0


def show() -> None:
    """Prints the cache's folder, size in bytes and limit, and whether it cannot be used."""
    options = Options()
    root = options.cache_root().expanduser()
    found = files(root)
    limit = bytes_text(int(options.cache_gigabytes * 1e9))
    typer.echo(f"{root}: {_text(found)}, limit {limit}")
    for kind in sorted({file.kind for file in found}):
        typer.echo(f"  {kind}: {_text([file for file in found if file.kind == kind])}")
    if found:
        oldest = datetime.fromtimestamp(found[0].used).date()
        typer.echo(f"  oldest file: last used on {oldest}")
    if root.exists() and (reason := refusal(root)):
        typer.echo(f"  the cache is not used: {reason}")


def clear(days: float) -> None:
    """Removes files that were not used for `days` days; 0: all."""
    root = Options().cache_root().expanduser()
    before = time.time() - days * _DAY
    found = [file for file in files(root) if file.used <= before]
    typer.echo(f"{root}: {bytes_text(remove(found))} removed, {_text(files(root))} left")


def export(path: Path) -> None:
    """Errors: UsageError."""
    check_output(path, "the archive")
    root = Options().cache_root().expanduser()
    moved = export_cache(root, path, made_by())
    typer.echo(f"{path}: {moved.files} files, {bytes_text(moved.bytes)} from {root}")


def import_(path: Path) -> None:
    """Errors: UsageError."""
    root = Options().cache_root().expanduser()
    if reason := refusal(root):
        raise UsageError(f"the cache {root} cannot be used: {reason}")
    theirs, ours = read_manifest(path)["made_by"], made_by()
    other = [f"{name} {theirs.get(name, '-')} there, {found} here"
             for name, found in ours.items() if theirs.get(name) != found]
    moved = import_cache(root, path)
    typer.echo(f"{root}: {moved.files} files added, {bytes_text(moved.bytes)}; "
               f"{moved.there} were there")
    if other:
        typer.echo("torchweld: kernels may be compiled again, because the machines differ: "
                   + "; ".join(other), err=True)


def made_by() -> dict[str, str]:
    """What compiled kernels depend on."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {**versions(), "device": device_name(device)}


def _text(found: list[File]) -> str:
    return f"{len(found)} files, {bytes_text(sum(file.bytes for file in found))}"

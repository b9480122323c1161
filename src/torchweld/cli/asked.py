"""What commands are asked for: the device, the target, the files to write; each wrong one is told
in one line (UsageError, EnvironmentProblem)."""
from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from torchweld.core.errors import EnvironmentProblem, UsageError
from torchweld.core.files import write_whole
from torchweld.core.options import Options
from torchweld.runtime.build import known_compiler
from torchweld.runtime.cache import open_cache


def chosen_device(asked: str | None) -> str:
    """cpu or cuda."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise EnvironmentProblem("torch finds no GPU", do="use --device cpu")
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")


def check_machine(device: str) -> None:
    """A compiler for the CPU, and a cache that can be written."""
    root = Options().cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        raise EnvironmentProblem(f"the cache {root} cannot be written ({error.strerror})",
                                 do="set TORCHWELD_CACHE_DIR to a writable folder") from error
    if device == "cpu":
        _check_compiler()


def _check_compiler() -> None:
    """One that compiles, or a cache with what one has compiled."""
    try:
        known_compiler(open_cache(Options()))
    except EnvironmentProblem:
        raise EnvironmentProblem(
            "g++ is missing", do="install it (Debian, Ubuntu: apt-get install g++)") from None


def is_stdout(path: Path | None) -> bool:
    """Whether an output path is "-"."""
    return path is not None and str(path) == "-"


def tables_console(json: Path | None) -> Console:
    """For what is read by people: stderr where stdout has the JSON."""
    return Console(stderr=is_stdout(json))


def write_text(text: str, path: Path) -> None:
    """To a file, or to stdout for "-"."""
    if is_stdout(path):
        sys.stdout.write(text)
    else:
        write_whole(text, path)


def check_output(path: Path | None, option: str) -> None:
    """That a file can be written there: before the work is done, not after."""
    if path is None or is_stdout(path):
        return
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", do="make it, or name another file")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", do=f"name a file for {option}")
    if path.exists() and not path.is_file():
        return  # a device or a pipe, such as /dev/stdout
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        why = f"{path.parent} cannot be written ({error.strerror})"
        raise UsageError(why, do=f"give another path for {option}") from error

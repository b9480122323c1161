"""What commands are asked for: the device, the target, the files to write; each wrong one is told
in one line (UsageError, EnvironmentProblem)."""
from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from torchweld.core.errors import EnvironmentProblem, UsageError
from torchweld.core.options import Options


def chosen_device(asked: str | None) -> str:
    """cpu or cuda."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise EnvironmentProblem("there is no GPU that torch can use", do="use --device cpu")
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")


def check_machine(device: str) -> None:
    """A compiler for the CPU, and a cache that can be written."""
    if device == "cpu" and shutil.which("g++") is None:
        raise EnvironmentProblem("g++ is missing",
                                 do="install it (Debian, Ubuntu: apt-get install g++)")
    root = Options().cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        raise EnvironmentProblem(f"the cache {root} cannot be written ({error.strerror})",
                                 do="set TORCHWELD_CACHE_DIR to a folder that can") from error


def check_output(path: Path | None, option: str) -> None:
    """That a file can be written there: before the work is done, not after."""
    if path is None:
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
        raise UsageError(why, do=f"name a file elsewhere for {option}") from error

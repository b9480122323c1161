"""What the cache on disk holds, and keeping it within its limit: the files that were not used for
longest go."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FOLDER = re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"[0-9a-f]{40}(\.[.\w-]*)?")
_UNFINISHED = ".new-"  # begins the name of a folder in which a file is being written
_STALE_SECONDS = 86400  # no compiler takes so long: who wrote there was killed
SPARED_SECONDS = 3600  # a file used as lately may be about to be loaded by another process
_KINDS = {".so": "kernels for the CPU, and host code", ".cubin": "kernels for a GPU",
          ".plan.json": "plans"}  # fmt: skip


@dataclass(frozen=True)
class File:
    """`used`: when it was written or last read, to a day, in seconds since 1970."""

    path: Path
    bytes: int
    used: float

    @property
    def kind(self) -> str:
        suffix = "." + self.path.name.partition(".")[2].removesuffix(".lock")
        return _KINDS.get(suffix, "others")


def files(root: Path) -> list[File]:
    """Those of torchweld's cache under `root`, the longest unused first. What else lies there is
    left out."""
    return sorted(_files(root), key=lambda file: file.used)


def is_cached_name(name: str) -> bool:
    """Whether a path relative to the cache, such as ab/ab12...so, is one of its files."""
    folder, _, file = name.partition("/")
    return bool(_FOLDER.fullmatch(folder) and _FILE.fullmatch(file) and file.startswith(folder)
                and not file.endswith(".lock"))


def _files(root: Path) -> Iterator[File]:
    for folder in _entries(root):
        if not (_FOLDER.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False)):
            continue
        for entry in _entries(Path(folder.path)):
            if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                try:
                    status = entry.stat()
                except OSError:  # another process has removed it
                    continue
                yield File(Path(entry.path), status.st_size, status.st_mtime)


def _entries(folder: Path) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def remove(found: list[File]) -> int:
    """Removes them and the folders that are empty then; gives the bytes of those removed."""
    freed = 0
    for file in found:
        try:
            file.path.unlink()
            freed += file.bytes
        except OSError:
            continue
    for folder in {file.path.parent for file in found}:
        try:
            folder.rmdir()
        except OSError:  # not empty
            continue
    return freed


def remove_unfinished(root: Path) -> None:
    """Removes what processes that were killed while they wrote have left, after a day."""
    before = time.time() - _STALE_SECONDS
    named = (e for e in _entries(root) if _FOLDER.fullmatch(e.name))
    for folder in (e for e in named if e.is_dir(follow_symlinks=False)):
        for entry in _entries(Path(folder.path)):
            if not (entry.name.startswith(_UNFINISHED) and entry.is_dir(follow_symlinks=False)):
                continue
            try:
                stale = entry.stat(follow_symlinks=False).st_mtime < before
            except OSError:  # another process has removed it
                continue
            if stale:
                shutil.rmtree(entry.path, ignore_errors=True)


def trim(root: Path, limit_bytes: float) -> int:
    """Removes what was not used for longest until `root` holds no more than `limit_bytes`, less
    what was used within the last hour, and what killed processes have left; gives the bytes of the
    former."""
    remove_unfinished(root)
    found = files(root)
    excess = sum(file.bytes for file in found) - limit_bytes
    before, going = time.time() - SPARED_SECONDS, []
    for file in found:
        if excess <= 0 or file.used > before:
            break
        going.append(file)
        excess -= file.bytes
    return remove(going)

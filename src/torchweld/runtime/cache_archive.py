"""The cache as one file: one machine compiles, others load.

A zip archive of the cache's files and `manifest.json`: the SHA-256 of each file, and what compiled
them. Nothing is unpickled. Whoever imports an archive will run its kernels: it must come from a
source that is trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchweld.core.errors import UsageError
from torchweld.runtime.cache_files import files, is_cached_name

_MANIFEST = "manifest.json"
_FORMAT = 1
_MOST_BYTES = 4 << 30  # of one file: an archive that claims more is none of ours


@dataclass(frozen=True)
class Moved:
    """`files` of `bytes` were written; `there`: had been there before."""

    files: int
    bytes: int
    there: int = 0


def export_cache(root: Path, path: Path, made_by: Mapping[str, str]) -> Moved:
    """Writes what `root` holds to the archive `path`, whole or not at all. `made_by`: versions and
    device, for the manifest. Errors: UsageError if there is nothing, or `path` cannot be
    written."""
    found = [file for file in files(root) if not file.path.name.endswith(".lock")]
    if not found:
        raise UsageError(f"the cache {root} is empty", do="fuse and run a model first")
    try:
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.resolve().parent) as folder:
            fresh = Path(folder, path.name)
            moved = _write(fresh, [file.path for file in found], made_by)
            os.replace(fresh, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return moved


def _write(archive: Path, paths: list[Path], made_by: Mapping[str, str]) -> Moved:
    hashes, total = {}, 0
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in paths:
            try:
                content = path.read_bytes()
            except OSError:  # another process has removed it
                continue
            name = f"{path.parent.name}/{path.name}"
            out.writestr(name, content)
            hashes[name], total = hashlib.sha256(content).hexdigest(), total + len(content)
        manifest = {"format": _FORMAT, "made_by": dict(made_by), "files": hashes}
        out.writestr(_MANIFEST, json.dumps(manifest, indent=1, sort_keys=True))
    return Moved(len(hashes), total)


def read_manifest(path: Path) -> dict:
    """Errors: UsageError for a file that is no such archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = json.loads(archive.read(_MANIFEST))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (zipfile.BadZipFile, KeyError, ValueError):
        raise UsageError(f"{path} is not an archive of a cache",
                         do="make one with `torchweld cache export`") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise UsageError(f"{path} was made by another version of torchweld", do="export it again")
    return found


def import_cache(root: Path, path: Path) -> Moved:
    """Adds the files of the archive `path` to `root`; what is there already stays. Every name and
    hash is checked before the first file is written. Errors: UsageError."""
    hashes = read_manifest(path)["files"]
    with zipfile.ZipFile(path) as archive:
        _check(archive, hashes, path)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        missing = [name for name in hashes if not (root / name).exists()]
        total = sum(_place(root / name, archive.read(name)) for name in missing)
    return Moved(len(missing), total, len(hashes) - len(missing))


def _check(archive: zipfile.ZipFile, hashes: Mapping[str, str], path: Path) -> None:
    names = set(archive.namelist()) - {_MANIFEST}
    strange = [n for n in sorted(names | set(hashes)) if not is_cached_name(n)]
    if strange or names != set(hashes):
        raise UsageError(f"{path} has files that are no part of a cache", do="export it again")
    for name, wanted in hashes.items():
        small = archive.getinfo(name).file_size <= _MOST_BYTES
        try:
            whole = small and hashlib.sha256(archive.read(name)).hexdigest() == wanted
        except (zipfile.BadZipFile, zlib.error):
            whole = False
        if not whole:
            raise UsageError(f"{path} is damaged: the hash of {name} is wrong",
                             do="copy or export it again")


def _place(target: Path, content: bytes) -> int:
    """Writes it under another name first: other processes see the whole file or none."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as folder:
        fresh = Path(folder, target.name)
        fresh.write_bytes(content)
        os.replace(fresh, target)
    return len(content)

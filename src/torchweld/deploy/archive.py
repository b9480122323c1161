"""The file: a zip of parts and `manifest.json`, which has the SHA-256 of each. Nothing in it is
unpickled, and no part is used before its hash was checked, on the very bytes that are used."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from torchweld.core.errors import UsageError
from torchweld.deploy.records import Manifest, Part, manifest_of, manifest_text

_MANIFEST = "manifest.json"
_MOST_MANIFEST_BYTES = 256 << 20
_NAME = re.compile(r"(kernels|weights)/[0-9a-z]{1,64}\.(so|cubin|bin)|plan\.json")
_CHUNK = 1 << 22
_ENCRYPTED = 1  # a flag of a zip's part
_COPY = "copy or export it anew"


class Writer:
    """Parts of an archive under way. The same bytes are kept once."""

    def __init__(self, out: zipfile.ZipFile) -> None:
        self._out, self._parts = out, {}

    def add(self, folder: str, suffix: str, content: bytes | memoryview) -> str:
        """The name of a part with `content`."""
        digest = hashlib.sha256(content).hexdigest()
        return self.put(f"{folder}/{digest[:40]}{suffix}", content)

    def put(self, name: str, content: bytes | memoryview) -> str:
        if name not in self._parts:
            with self._out.open(name, "w", force_zip64=True) as part:
                part.write(content)
            digest = hashlib.sha256(content).hexdigest()
            self._parts[name] = Part(digest, memoryview(content).nbytes)
        return name

    def close(self, manifest: Manifest) -> str:
        """Writes the manifest with the parts; gives its SHA-256."""
        text = manifest_text(replace(manifest, parts=self._parts)).encode()
        self._out.writestr(_MANIFEST, text)
        return hashlib.sha256(text).hexdigest()


def write(path: Path, fill: Callable[[Writer], Manifest]) -> str:
    """Writes the archive `path`, whole or not at all; gives the SHA-256 of its manifest. Errors:
    UsageError if it cannot be written."""
    try:
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
            fresh = Path(folder, path.name)
            with zipfile.ZipFile(fresh, "w", zipfile.ZIP_STORED) as out:
                writer = Writer(out)
                digest = writer.close(fill(writer))
            os.chmod(fresh, stat.S_IMODE(os.stat(fresh).st_mode) & ~0o022)
            os.replace(fresh, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return digest


class Reader:
    """An open archive. `sha256`: of its manifest; None: not known, and then nobody but this user
    and root may have written the file."""

    def __init__(self, path: Path, sha256: str | None = None) -> None:
        self.path = path
        self._turn = Lock()  # zipfile of Python 3.12 and 3.13 mixes up what two threads read
        self._file = _opened(path, pinned=sha256 is not None)
        try:
            self._read_manifest(sha256)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error) -> None:
        self._zip.close()
        self._file.close()

    def read(self, name: str) -> bytes:
        """A part, whole. Errors: UsageError if it does not have its hash."""
        content = bytearray(self.part(name).bytes)
        self.read_into(name, memoryview(content))
        return bytes(content)

    def read_into(self, name: str, target: memoryview) -> None:
        """A part, to memory of its size, which is not to be used if this raises UsageError."""
        part, digest, done = self.part(name), hashlib.sha256(), 0
        try:
            with self._turn, self._zip.open(name) as source:
                while count := source.readinto(target[done : done + _CHUNK]):
                    digest.update(target[done : done + count])
                    done += count
                longer = bool(source.read(1))
        except (zipfile.BadZipFile, EOFError, OSError, RuntimeError):
            longer = True
        if longer or done != part.bytes or digest.hexdigest() != part.sha256:
            raise UsageError(f"{self.path} is damaged: {name} does not have its hash", do=_COPY)

    def part(self, name: str | None) -> Part:
        """What the manifest says of a part. Errors: UsageError if it has none of this name."""
        part = self.manifest.parts.get(name)
        if part is None:
            raise UsageError(f"{self.path} has no {name}", do=_COPY)
        return part

    def _read_manifest(self, sha256: str | None) -> None:
        try:
            self._zip = zipfile.ZipFile(self._file)
            self._check_stored()
            text = self._manifest_bytes()
        except (zipfile.BadZipFile, KeyError, EOFError, ValueError, OSError, RuntimeError) as error:
            what = f"{self.path} is no archive of a model, or only a part of one: {error}"
            raise UsageError(what, do=_COPY) from None
        self.sha256 = hashlib.sha256(text).hexdigest()
        if sha256 is not None and self.sha256 != sha256.lower():
            what = f"the manifest of {self.path} has the hash {self.sha256}, not {sha256}"
            raise UsageError(what, do="use the archive that the hash was told for")
        self.manifest = manifest_of(text.decode(errors="replace"))
        self._check_names()

    def _check_stored(self) -> None:
        """Parts lie in the file as they are: what is packed could need any memory."""
        if any(info.compress_type or info.flag_bits & _ENCRYPTED for info in self._zip.infolist()):
            raise ValueError("its parts are packed")

    def _manifest_bytes(self) -> bytes:
        if self._zip.getinfo(_MANIFEST).file_size > _MOST_MANIFEST_BYTES:
            raise ValueError("its manifest is too large")
        return self._zip.read(_MANIFEST)

    def _check_names(self) -> None:
        """What is in the file is what the manifest says, once each, with the sizes it says."""
        held, parts = self._zip.infolist(), self.manifest.parts
        named = {info.filename: info.file_size for info in held if info.filename != _MANIFEST}
        wanted = {name: part.bytes for name, part in parts.items()}
        strange = [name for name in {*named, *wanted} if not _NAME.fullmatch(name)]
        if strange or len(held) != len(wanted) + 1 or named != wanted:
            raise UsageError(f"{self.path} does not hold what its manifest says", do=_COPY)


def _opened(path: Path, pinned: bool) -> BinaryIO:
    """The file that is looked at is the one that is read, whatever its name means later."""
    try:
        file = open(path, "rb")  # noqa: SIM115  (the reader closes it)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    status = os.fstat(file.fileno())
    why = None if pinned else _why_not_trusted(status)
    if not stat.S_ISREG(status.st_mode):
        why = "it is no plain file"
    if why is not None:
        file.close()
        raise UsageError(f"{path} is not loaded: {why}, and its kernels would be run",
                         do="take ownership of it (chown, chmod go-w), or pin what it must be: "
                         "torchweld.load(path, sha256=...)")
    return file


def _why_not_trusted(status: os.stat_result) -> str | None:
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}"
    return "other users may write to it" if status.st_mode & 0o022 else None

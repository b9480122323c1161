"""Files on disk, named by the hash of what they were made from, shared by processes.

Nothing in the cache is executed or read before its directory is known to be this user's alone. Each
file ends in a checksum of itself, is written under another name and renamed, and is rebuilt when
the checksum does not match.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from filelock import FileLock

from torchweld.core.events import warn_once
from torchweld.core.options import Options
from torchweld.runtime.cache_files import trim

_MAGIC = b"torchweld-sha256"
_TRAILER = len(_MAGIC) + hashlib.sha256().digest_size
_LOCK_SECONDS = (
    300  # longer than any compilation; after it two processes may compile the same file, harmlessly
)


def digest(*parts: str | bytes) -> str:
    """A name for content: hexadecimal, 40 characters. ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()[:40]


@dataclass(frozen=True)
class Artifacts:
    """The files under one private directory. A file's bytes are content + magic + sha256(content):
    loaders of shared objects ignore what follows the last section."""

    root: Path
    limit_bytes: float = 0.0  # 0: none

    def path(self, key: str, suffix: str) -> Path:
        return self.root / key[:2] / f"{key}{suffix}"

    def get(self, key: str, suffix: str) -> bytes | None:
        """The content, or None where there is none that can be trusted."""
        return _used(self.path(key, suffix))

    def put(self, key: str, suffix: str, content: bytes) -> Path | None:
        """Where the content is kept; None where there is no room."""
        try:
            return self._publish(self.path(key, suffix), lambda to: to.write_bytes(content))
        except OSError as error:
            _tell_not_kept(self.root, error)
            return None

    def make(self, key: str, suffix: str, write: Callable[[Path], None]) -> tuple[Path, bool]:
        """(path, whether `write(path)` was called for it). Processes that want the same key at
        once: one writes it. Where there is no room for it, it goes to a folder of this process;
        raises OSError if that has none either."""
        try:
            return self._made(key, suffix, write)
        except OSError as error:
            spare = Artifacts(_temporary_root())
            if self.root == spare.root:
                raise
            _tell_not_kept(self.root, error)
        return spare.make(key, suffix, write)

    def _made(self, key: str, suffix: str, write: Callable[[Path], None]) -> tuple[Path, bool]:
        path = self.path(key, suffix)
        if _used(path) is not None:
            return path, False
        with _lock(path):
            if _content(path) is not None:
                return path, False
            return self._publish(path, write), True

    def _publish(self, path: Path, write: Callable[[Path], None]) -> Path:
        if self.limit_bytes:
            _trim_at_exit(self.root, self.limit_bytes, os.getpid())
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
            fresh = Path(folder, path.name)
            write(fresh)
            _seal(fresh)
            os.replace(fresh, path)
        return path


def open_cache(options: Options) -> Artifacts:
    """The cache that the options name, or, where that one is unusable, one of this process alone
    (with a warning)."""
    limit = options.cache_gigabytes * 1e9
    return Artifacts(_private_root(options.cache_root().expanduser()), limit)


def refusal(directory: Path) -> str | None:
    """Why `directory` must not be used: another user could write there, or this one cannot. None if
    it may be."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.stat(directory)
    except OSError as error:
        return f"it cannot be created ({error.strerror})"
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & 0o022:
        return "other users may write to it (chmod 700 it)"
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return "it is not writable"
    return None


@cache
def _private_root(wanted: Path) -> Path:
    reason = refusal(wanted)
    if reason is None:
        return wanted
    warn_once(
        f"cache {wanted}",
        f"the cache {wanted} is not used: {reason}; each process compiles its kernels again. "
        "TORCHWELD_CACHE_DIR names another folder",
    )
    return _temporary_root()


def _tell_not_kept(root: Path, error: OSError) -> None:
    warn_once(
        f"not kept {root}",
        f"the cache {root} cannot be written ({error.strerror}); the next process compiles "
        "these kernels again",
    )


@cache
def _temporary_root() -> Path:
    folder, owner = tempfile.mkdtemp(prefix="torchweld-"), os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
    return Path(folder)


@contextmanager
def _lock(path: Path):
    """Held by one process (and thread) per file; a file system without locks costs duplicate work,
    nothing else."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    lock = FileLock(f"{path}.lock", timeout=_LOCK_SECONDS, thread_local=False)
    try:
        lock.acquire()
    except (OSError, NotImplementedError, TimeoutError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


@cache
def _trim_at_exit(root: Path, limit_bytes: float, owner: int) -> None:
    """Once for each process that writes there."""
    atexit.register(lambda: os.getpid() == owner and trim(root, limit_bytes))


_DAY = 86400.0


def _used(path: Path) -> bytes | None:
    """The content; the file's time says on which day it was last used."""
    content = _content(path)
    try:
        if content is not None and time.time() - path.stat().st_mtime > _DAY:
            os.utime(path)
    except OSError:  # another process has removed it, or the file system is read-only
        pass
    return content


def _seal(path: Path) -> None:
    with open(path, "r+b") as file:
        content = file.read()
        file.write(_MAGIC + hashlib.sha256(content).digest())
        file.flush()
        os.fsync(file.fileno())


def _content(path: Path) -> bytes | None:
    """Of a file that is whole, and that nobody else could have written."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o002:
                return None
            data = file.read()
    except OSError:
        return None
    content, magic = data[:-_TRAILER], data[-_TRAILER : -_TRAILER + len(_MAGIC)]
    whole = magic == _MAGIC and hashlib.sha256(content).digest() == data[-_TRAILER + len(_MAGIC) :]
    return content if whole else None

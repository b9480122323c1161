"""The cache on disk: what it trusts, what it rebuilds, many processes at once."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from torchweld.core import events
from torchweld.core.options import Options
from torchweld.runtime import cache
from torchweld.runtime.cache import Artifacts, digest, open_cache, refusal


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path)


def test_content_comes_back(artifacts):
    artifacts.put("abcd", ".json", b"text")
    assert artifacts.get("abcd", ".json") == b"text"
    assert artifacts.get("abce", ".json") is None


@pytest.mark.parametrize("damage", [b"", b"x", b"other content of another length"])
def test_a_damaged_file_is_not_there_and_is_rebuilt(artifacts, damage):
    path, made = artifacts.make("abcd", ".so", lambda p: p.write_bytes(b"good"))
    assert made
    path.write_bytes(damage)
    assert artifacts.get("abcd", ".so") is None
    assert artifacts.make("abcd", ".so", lambda p: p.write_bytes(b"good"))[1]
    assert artifacts.get("abcd", ".so") == b"good"


def test_one_flipped_bit_is_damage(artifacts):
    path = artifacts.put("abcd", ".so", bytes(1000))
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    assert artifacts.get("abcd", ".so") is None


def test_a_failing_build_leaves_nothing(artifacts):
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("compiler")

    with pytest.raises(RuntimeError):
        artifacts.make("abcd", ".so", fail)
    assert artifacts.get("abcd", ".so") is None
    assert not [p for p in artifacts.path("abcd", ".so").parent.iterdir() if p.suffix != ".lock"]


def test_threads_that_want_one_file_build_it_once(artifacts):
    built, barrier = [], threading.Barrier(4)

    def build(path: Path) -> None:
        built.append(path)
        path.write_bytes(b"once")

    def ask() -> None:
        barrier.wait()
        artifacts.make("abcd", ".so", build)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(built) == 1


def _make_and_count(root: str, barrier, counts) -> None:
    def build(path: Path) -> None:
        counts.put(os.getpid())
        path.write_bytes(b"once")

    barrier.wait()
    path, _ = Artifacts(Path(root)).make("abcd", ".so", build)
    assert path.exists()


def test_processes_that_want_one_file_build_it_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, counts = context.Barrier(3), context.Queue()
    workers = [
        context.Process(target=_make_and_count, args=(str(tmp_path), barrier, counts))
        for _ in range(3)
    ]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert [w.exitcode for w in workers] == [0, 0, 0]
    assert isinstance(counts.get(), int)
    assert counts.empty()


def test_keys_separate_their_parts():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab", b"c") == digest(b"ab", "c")


def test_a_new_directory_is_private(tmp_path):
    root = tmp_path / "new"
    assert refusal(root) is None
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    assert "other users may write" in refusal(tmp_path)


def test_another_users_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to user" in refusal(tmp_path)


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be created" in refusal(tmp_path / "file" / "below")


def test_the_cache_may_be_named_by_a_string(tmp_path):
    named = Options(cache_dir=str(tmp_path / "cache"))
    assert named.cache_root() == tmp_path / "cache"
    assert open_cache(named).root == tmp_path / "cache"


def test_a_refused_directory_is_replaced_by_a_private_one_with_one_warning(tmp_path):
    tmp_path.chmod(0o777)
    events.clear()
    with pytest.warns(events.TorchweldWarning, match="other users may write"):
        found = open_cache(Options(cache_dir=tmp_path))
    assert found.root != tmp_path
    assert found.root.stat().st_mode & 0o777 == 0o700
    assert open_cache(Options(cache_dir=tmp_path)) == found
    assert not list(tmp_path.iterdir())

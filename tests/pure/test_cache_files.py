"""The cache on disk stays within its limit, and its command shows and clears it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from torchweld.cli.main import app
from torchweld.runtime.cache import Artifacts, digest
from torchweld.runtime.cache_files import files, trim

DAY = 86400


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHWELD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path / "cache"


def written(root, count, suffix=".so", size=1000):
    """Files whose last use is 1, 2, ... days ago, the most lately used first."""
    artifacts = Artifacts(root)
    paths = [artifacts.put(digest(suffix, str(i)), suffix, bytes(size)) for i in range(count)]
    for i, path in enumerate(paths):
        os.utime(path, (time.time() - (i + 1) * DAY - 60,) * 2)
    return paths


def test_the_longest_unused_go(root):
    paths = written(root, 5)
    size = paths[0].stat().st_size
    assert trim(root, 3 * size) == 2 * size
    assert [path.exists() for path in paths] == [True, True, True, False, False]
    assert trim(root, 3 * size) == 0
    assert not paths[4].parent.exists() or any(paths[4].parent.iterdir())


def test_what_is_read_counts_as_used(root):
    paths = written(root, 3)
    assert Artifacts(root).get(digest(".so", "2"), ".so") == bytes(1000)
    trim(root, paths[0].stat().st_size)
    assert [path.exists() for path in paths] == [False, False, True]


def test_what_was_used_just_now_stays(root):
    path = Artifacts(root).put(digest("new"), ".so", bytes(1000))
    assert trim(root, 0) == 0 and path.exists()


def test_files_of_others_are_left_alone(root, tmp_path):
    written(root, 1)
    for name in ("notes.txt", "ab/notes.txt", "abc/" + "0" * 40):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("mine")
    (root / "cd").symlink_to(tmp_path)
    assert len(files(root)) == 1
    assert "0 files" in CliRunner().invoke(app, ["cache", "clear"]).output
    assert (root / "notes.txt").exists() and (root / "abc" / ("0" * 40)).exists()


def test_a_process_that_writes_trims_when_it_ends(root):
    paths = written(root, 3)
    code = (
        "from torchweld.core.options import Options\n"
        "from torchweld.runtime.cache import open_cache, digest\n"
        "open_cache(Options(cache_gigabytes=2e-6)).put(digest('x'), '.so', bytes(100))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [path.exists() for path in paths] == [True, False, False]


def test_show_and_clear(root):
    written(root, 2)
    written(root, 3, ".plan.json", 500)
    shown = CliRunner().invoke(app, ["cache", "show"]).output
    assert f"{root}: 5 files, " in shown and "limit 10 GB" in shown and "plans: 3 files" in shown
    cleared = CliRunner().invoke(app, ["cache", "clear", "--days", "1.5"])
    assert cleared.exit_code == 0 and "2 files" in cleared.output
    assert "0 files" in CliRunner().invoke(app, ["cache", "clear"]).output
    assert "0 files" in CliRunner().invoke(app, ["cache", "show"]).output


def test_what_a_killed_process_left_goes_after_a_day(tmp_path):
    kept = tmp_path / "ab" / ".new-now", tmp_path / "notes" / ".new-old", tmp_path / "ab" / "old"
    left = tmp_path / "ab" / ".new-old"
    for folder in (*kept, left):
        folder.mkdir(parents=True)
        (folder / "half").write_bytes(b"x")
    for folder in (*kept[1:], left):
        os.utime(folder, (1, 1))
    trim(tmp_path, 1e9)
    assert not left.exists() and all((folder / "half").exists() for folder in kept)

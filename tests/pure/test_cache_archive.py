"""The cache as one file: what is exported is imported, and nothing else."""

from __future__ import annotations

import json
import zipfile

import pytest
from typer.testing import CliRunner

from torchweld.cli import cache as command
from torchweld.cli.main import app
from torchweld.core.errors import UsageError
from torchweld.runtime.cache import Artifacts, digest
from torchweld.runtime.cache_archive import export_cache, import_cache, read_manifest

KEYS = [digest("a", str(k)) for k in range(3)]


@pytest.fixture
def archive(tmp_path):
    ours = Artifacts(tmp_path / "ours")
    ours.root.mkdir()
    for k, key in enumerate(KEYS):
        ours.put(key, ".so", bytes([k]) * 1000)
    (tmp_path / "ours" / "notes.txt").write_text("no part of the cache")
    moved = export_cache(ours.root, tmp_path / "kernels.zip", {"torch": "2.13.0"})
    assert (moved.files, moved.bytes > 3000) == (3, True)
    return tmp_path / "kernels.zip"


def changed(path, change):
    """The archive with its manifest and files as `change` leaves them."""
    with zipfile.ZipFile(path) as old:
        held = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(held.pop("manifest.json"))
    change(manifest, held)
    with zipfile.ZipFile(path, "w") as new:
        for name, content in held.items():
            new.writestr(name, content)
        new.writestr("manifest.json", json.dumps(manifest))
    return path


def test_another_cache_has_it_then(archive, tmp_path):
    theirs = Artifacts(tmp_path / "theirs")
    assert import_cache(theirs.root, archive).files == 3
    assert [theirs.get(key, ".so") for key in KEYS] == [bytes([k]) * 1000 for k in range(3)]
    again = import_cache(theirs.root, archive)
    assert (again.files, again.there) == (0, 3)
    assert read_manifest(archive)["made_by"] == {"torch": "2.13.0"}


def _flip(manifest, held):
    held[next(iter(held))] += b"x"


def _escape(manifest, held):
    name = next(iter(held))
    held["../evil.so"] = held.pop(name)
    manifest["files"]["../evil.so"] = manifest["files"].pop(name)


def _extra(manifest, held):
    held[f"ab/{'ab' * 20}.so"] = b"not in the manifest"


def _newer(manifest, held):
    manifest["format"] = 99


@pytest.mark.parametrize("change, said", [
    (_flip, "is damaged: the hash of"), (_escape, "no part of a cache"),
    (_extra, "no part of a cache"), (_newer, "another version"),
])  # fmt: skip
def test_what_is_wrong_is_refused_whole(archive, tmp_path, change, said):
    theirs = tmp_path / "theirs"
    with pytest.raises(UsageError, match=said):
        import_cache(theirs, changed(archive, change))
    assert not theirs.exists() and not (tmp_path / "evil.so").exists()


def test_a_file_that_is_no_archive(tmp_path):
    (tmp_path / "x.zip").write_text("hello")
    with pytest.raises(UsageError, match="not an archive of a cache"):
        import_cache(tmp_path / "theirs", tmp_path / "x.zip")
    with pytest.raises(UsageError, match="cannot be read"):
        import_cache(tmp_path / "theirs", tmp_path / "none.zip")
    with pytest.raises(UsageError, match="is empty"):
        export_cache(tmp_path / "theirs", tmp_path / "y.zip", {})


def test_the_commands(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "made_by", lambda: {"torch": "2.13.0", "device": "A processor"})
    monkeypatch.setenv("TORCHWELD_CACHE_DIR", str(tmp_path / "theirs"))
    told = CliRunner().invoke(app, ["cache", "import", str(archive)])
    assert told.exit_code == 0 and "3 files added" in told.output
    assert "device - there, A processor here" in told.output
    out = CliRunner().invoke(app, ["cache", "export", str(tmp_path / "again.zip")])
    assert out.exit_code == 0 and len(read_manifest(tmp_path / "again.zip")["files"]) == 3
    wrong = CliRunner().invoke(app, ["cache", "import", str(tmp_path / "none.zip")])
    assert wrong.exit_code == 2

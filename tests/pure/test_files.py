"""Files that a reader never sees half of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchweld.core.errors import UsageError
from torchweld.core.files import write_whole


def test_a_file_is_replaced_where_a_link_points(tmp_path):
    file, link = tmp_path / "a", tmp_path / "b"
    file.write_text("before")
    link.symlink_to(file)
    write_whole("after", link)
    assert file.read_text() == "after" and link.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_pipe_stays_one():
    reader, writer = os.pipe()
    write_whole("text", Path(f"/dev/fd/{writer}"))
    assert os.read(reader, 10) == b"text"


def test_what_cannot_be_written_is_left_as_it_was(tmp_path):
    full = Path("/dev/full")
    with pytest.raises(UsageError, match="No space left"):
        write_whole("text", full)
    assert full.is_char_device()
    with pytest.raises(UsageError, match="cannot be written"):
        write_whole("text", tmp_path / "no folder" / "a")

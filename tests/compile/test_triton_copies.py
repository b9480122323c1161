"""Copies around a replay, compiled for an H100."""

from __future__ import annotations

import pytest

from torchweld.runtime.copies import copy_source
from torchweld.runtime.triton_compile import compile_source, resources

pytest.importorskip("triton")


@pytest.mark.parametrize("count", [1, 3, 8])
def test_copies_of_whole_vectors_are_wide(count):
    wide = resources(compile_source(copy_source(count, vectors=True), 90))
    assert wide.wide_loads >= count and wide.wide_stores >= count and wide.spill_bytes == 0


@pytest.mark.parametrize("count", [1, 3, 8])
def test_odd_sizes_are_copied_in_vectors_too(count):
    """Of three tensors, one of 36 bytes had made a copy of 8 MB go byte by byte."""
    odd = resources(compile_source(copy_source(count, vectors=False), 90))
    assert odd.wide_loads >= count and odd.wide_stores >= count and odd.spill_bytes == 0

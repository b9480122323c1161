"""What generated Triton kernels compute, without a GPU: Triton's own interpreter against ours."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from forked import lines_of


def test_kernels_agree_with_the_interpreter():
    lines = lines_of("triton_interpreted.py")
    assert len(lines) > 40
    assert [line for line in lines if not line.startswith("agrees")] == []


def test_random_programs_agree_with_the_interpreter():
    """Tiles are small and drawn at random. What is not supported stays a small share."""
    lines = lines_of("triton_fuzzed.py")
    assert [line for line in lines if line.startswith("DIFFERS")] == []
    assert sum(line.startswith("agrees") for line in lines) > 0.8 * len(lines) > 30

"""What generated Triton kernels compute, without a GPU: Triton's own interpreter against ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TESTS = Path(__file__).parents[1]


def test_kernels_agree_with_the_interpreter():
    done = subprocess.run(
        [sys.executable, TESTS / "triton_interpreted.py"],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) > 40
    assert [line for line in lines if not line.startswith("agrees")] == []

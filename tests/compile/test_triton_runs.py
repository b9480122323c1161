"""Sums of runs (templates/runs/), without a GPU: Triton's interpreter against ours, and what is
compiled."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from test_triton_meaning import lines_of

import runs_cases as cases
from triton_run import _compile


def test_kernels_agree_with_the_interpreter():
    lines = lines_of("runs_interpreted.py")
    assert len(lines) == len(cases.ALL) + 2
    assert [line for line in lines if not line.startswith("agrees")] == []


@pytest.mark.parametrize(("count", "rows", "columns", "dtype", "arch"), [
    (65536, 5000, (1, 256), "bf16", 90), (65536, 5000, (1, 256), "bf16", 80),
    (3000, 70000, (3, 40), "f32", 90), (300000, 100, (1, 5), "f64", 80),
    (4097, 100, (1, 1), "f16", 90),
])  # fmt: skip
def test_kernels_compile(count, rows, columns, dtype, arch):
    bundle = cases.bundle_of(cases.runs(cases.drawn(count, rows), rows, columns, dtype))
    for source in bundle.sources:
        _compile(source, arch)
    assert not any("atomic" in s.text for s in bundle.sources)

"""Sums by index on a GPU, without one: sums of runs (templates/runs/) in Triton's interpreter and
in ours, and what is compiled of them and of atomics."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import runs_cases as cases
import triton_run
from forked import lines_of
from torchweld.runtime.triton_compile import compile_source
from triton_cases import case


def test_kernels_agree_with_the_interpreter():
    lines = lines_of("runs_interpreted.py")
    assert len(lines) == 2 * len(cases.ALL) + 2
    assert [line for line in lines if not line.startswith("agrees")] == []


@pytest.mark.parametrize(("count", "rows", "columns", "dtype", "arch"), [
    (65536, 5000, (1, 256), "bf16", 90), (65536, 5000, (1, 256), "bf16", 80),
    (3000, 70000, (3, 40), "f32", 90), (300000, 100, (1, 5), "f64", 80),
    (4097, 100, (1, 1), "f16", 90),
])  # fmt: skip
def test_kernels_compile(count, rows, columns, dtype, arch):
    bundle = cases.bundle_of(cases.runs(cases.drawn(count, rows), rows, columns, dtype))
    for source in bundle.sources:
        compile_source(source, arch)
    assert not any("atomic" in s.text for s in bundle.sources)


def test_atomics_are_relaxed_and_four_at_a_time():
    """The axes of what is added lie as in memory, also where others are contiguous in what is
    read."""
    given = case("scatter", "h:4, i:640, j:32", """%0 = load at[i] : i64
        %1 = load x[h, j, i] : bf16
        %2 = cast %1 : f32
        store.add y[%0, h, j] %2 init 0.0""",
        at=("i64", 640), x=("bf16", 4, 32, 640), y=("f32", 50, 4, 32))  # fmt: skip
    (source,) = triton_run.bundle_of(given).sources
    texts = {arch: compile_source(source, arch).asm["ptx"] for arch in (80, 90)}
    assert "atom.global.gpu.relaxed.add.f32" in texts[80] and "v4.f32" in texts[90]
    assert not any("acq_rel" in text for text in texts.values())

"""Kernels compiled by other processes are found by this one; without them it compiles itself."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from torchweld import pipeline
from torchweld.codegen.source import BufferArg, GridDim, KernelSource
from torchweld.core.options import Options
from torchweld.ir.nodes import Axis, Comp, Graph
from torchweld.runtime.builders import Builders
from torchweld.runtime.triton_compile import compile_source, job_of

TEXT = """import triton
import triton.language as tl


@triton.jit
def double(target, source, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + place, 2 * tl.load(source + place))
"""
SOURCE = KernelSource(
    "triton", "double", TEXT, (BufferArg("target"), BufferArg("source")), (GridDim(1),),
    (("BLOCK", 128),), ("*fp32", "*fp32"),
)  # fmt: skip


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def builders():
    with Builders() as made:
        made.start(1)
        yield made


def binaries(cache) -> dict:
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*.cubin")}


def test_what_a_builder_compiles_is_found_here(cache, builders):
    builders.build(job_of(SOURCE, 90))
    made = binaries(cache)
    assert len(made) == 1
    assert compile_source(SOURCE, 90).asm["cubin"] == next(iter(made)).read_bytes()
    assert binaries(cache) == made


def test_a_builder_goes_on_after_a_kernel_that_does_not_compile(cache, builders):
    builders.build(job_of(replace(SOURCE, text=TEXT.replace("2 *", "nothing *")), 90))
    assert not binaries(cache)
    builders.build(job_of(SOURCE, 90))
    assert binaries(cache)


def test_without_a_builder_nothing_is_waited_for(cache, builders):
    builders._all[0].kill()
    for _ in range(2):
        builders.build(job_of(SOURCE, 90))
    assert not binaries(cache) and compile_source(SOURCE, 90)


def test_builders_import_no_torch():
    text = "import sys; import torchweld.runtime.triton_build; print('torch' in sys.modules)"
    made = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "False"


def kernels(*extents: int) -> Graph:
    comps = [Comp(f"fused_add_{k}", (Axis("i", n),), (), ()) for k, n in enumerate(extents)]
    return Graph("g", (), {}, tuple(comps), (), ())


def test_as_many_as_there_are_kinds_of_kernels_unless_they_are_few():
    options = Options(compile_jobs=6)
    assert pipeline._builders_for(kernels(*range(1, 6), *range(1, 6)), options) == 5
    assert pipeline._builders_for(kernels(*range(100)), options) == 6
    assert pipeline._builders_for(kernels(*[1, 2, 3] * 9), options) == 0
    assert pipeline._builders_for(kernels(*range(9)), Options(compile_jobs=1)) == 0

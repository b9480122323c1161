"""Chains without a GPU: what they compute (in Triton's interpreter), and what they cost on sm_80
and sm_90."""

from __future__ import annotations

import pytest

import chain_cases as cases
from triton_cases import Case, title

pytest.importorskip("triton")

from forked import lines_of
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.targets.find import named_target
from torchweld.templates.chain.form import chain_of
from torchweld.templates.chain.schedule import Work, candidates

TABLES = {80: named_target("A100"), 90: named_target("H100")}
ROWS = 1 << 18
SHIPPED = [
    cases.layers(ROWS, (64,) * 5),
    cases.layers(ROWS, (64,) * 5, keep=True, transposed=True),
    cases.layers(ROWS, (63, 128, 128, 4), keep=True, transposed=True),
    cases.layers(ROWS, (3, 64, 64, 4), "f16"),
    cases.layers("s0", (64, 64, 64), sizes={"s0": ROWS}),
    cases.layers(64, (64, 64, 64), batch=1024),
    cases.gated(ROWS, (64, 128, 64)),
    cases.backward(ROWS, (64,) * 5),
    cases.backward(ROWS, (4, 64, 63)),
]


def test_kernels_agree_with_the_interpreter():
    lines = lines_of("chain_interpreted.py")
    assert len(lines) > 12
    assert [line for line in lines if not line.startswith("agrees")] == []


@pytest.mark.parametrize("arch", TABLES)
@pytest.mark.parametrize("case", SHIPPED, ids=title)
def test_defaults_use_tensor_cores_and_do_not_spill(case: Case, arch: int):
    (source,) = cases.made(case, TABLES[arch]).sources
    compiled = compile_source(source, arch)
    found = resources(compiled)
    assert found.spill_bytes == 0
    assert compiled.metadata.shared <= TABLES[arch].shared_bytes
    assert ("wgmma" if arch == 90 else "mma.sync") in compiled.asm["ptx"]


@pytest.mark.parametrize("case", SHIPPED, ids=title)
def test_shared_memory_is_foreseen(case: Case):
    """As far as it decides what is refused: the candidate that takes most takes no more than a
    multiprocessor has."""
    work = Work(case.comp, case.buffers, chain_of(case.comp), TABLES[90], case.sizes)
    most = max(candidates(work), key=lambda schedule: work.shared_bytes(schedule.block_rows))
    (source,) = cases.made(case, TABLES[90], most).sources
    assert compile_source(source, 90).metadata.shared <= TABLES[90].shared_bytes

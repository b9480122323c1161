"""Streams of few rows compiled for a Hopper GPU without one: nothing spills, all fits, weights are
copied before the wait for the kernel in front."""

from __future__ import annotations

from dataclasses import replace

import pytest

import product_cases as cases
from product_cases import parts
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.templates.gemm.skinny import schedule as product_stream
from torchweld.templates.gemm.skinny.generate import generate
from triton_cases import Case, title
from triton_run import H100

SHARED_LIMIT = 227 << 10
SHIPPED = [
    cases.residual(16, 2048, 8192),
    cases.gated(16, 8192, 2048),
    cases.gated(64, 14336, 4096, "f16"),
    cases.side_by_side(16, (2048, 512, 512), 2048),
    cases.side_by_side(1, (2048, 512, 512), 2048),
    cases.linear(2, 128256, 2048),
    cases.bias_gelu(64, 3072, 768),
    cases.bias_residual(8, 768, 3072),
    cases.linear(8, 2304, 768, right="kn"),
    cases.linear("s0", 768, 768, sizes={"s0": 20}),
    cases.linear("s0", 2048, 8192, sizes={"s0": 1}),
    cases.scaled_outputs(33, 768, 768),
    cases.dropout(64, 768, 768),
    cases.into_cache(8, 32, 8, 64, 2048),
    cases.rotary(16, (32, 8, 8), 64, 2048),
    cases.rotary(64, (32, 8, 8), 128, 4096),
    cases.rotary(1, (16, 16, 16), 64, 1024, interleaved=True),
]


def candidates(case: Case) -> list:
    accesses, contraction = parts(case)
    assert product_stream.supports(accesses, contraction, H100) is None
    return list(product_stream.candidates(accesses, contraction, H100, case.sizes))


def compiled(case: Case, schedule):
    (source,) = generate(case.comp, case.buffers, schedule, case.sizes).sources
    return source, compile_source(source, 90)


@pytest.mark.parametrize("case", SHIPPED, ids=title)
def test_the_default_does_not_spill(case: Case):
    source, made = compiled(case, candidates(case)[0])
    used = resources(made)
    assert used.spill_bytes == 0 and used.shared_bytes <= SHARED_LIMIT
    assert made.metadata.launch_pdl and source.otherwise.language == "triton"
    ptx = made.asm["ptx"]
    assert "wgmma.mma_async" in ptx and "mma.sync" not in ptx
    assert ptx.index("cp.async.bulk.tensor") < ptx.rindex("griddepcontrol.wait")


@pytest.mark.parametrize("case", SHIPPED[1:4], ids=title)
def test_all_that_a_tuner_may_time_compiles(case: Case):
    for schedule in candidates(case)[1:]:
        used = resources(compiled(case, schedule)[1])
        assert used.spill_bytes == 0 and used.shared_bytes <= SHARED_LIMIT, schedule


def test_what_is_no_parameter_is_read_after_the_wait():
    case = cases.residual(16, 2048, 2048)
    buffers = {n: replace(b, frozen=False) for n, b in case.buffers.items()}
    _, made = compiled(replace(case, buffers=buffers), candidates(case)[0])
    ptx = made.asm["ptx"]
    assert ptx.rindex("griddepcontrol.wait") < ptx.index("cp.async.bulk.tensor")

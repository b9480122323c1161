"""Attention kernels without a GPU: what they compute (in Triton's interpreter), what they cost on
sm_80 and sm_90."""

from __future__ import annotations

import pytest

from attention_cases import Sizes, bundle_of, case

pytest.importorskip("triton")

from forked import lines_of
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.targets.find import named_target

TABLES = {80: named_target("A100"), 90: named_target("H100")}
SHIPPED = [
    case(Sizes(1, 8, 4, 16, 16, 64, 64), causal=True),
    case(Sizes(8, 8, 4, 1, 4096, 128, 128), "bf16", "b1 bl"),
    case(Sizes(1, 12, 1, 1, 1024, 64, 64), "f16"),
    case(Sizes(32, 8, 8, 8, "s0", 128, 128), sizes={"s0": 8192}),
    case(Sizes(4, 2, 4, 1, 2048, 256, 256)),
]


def test_kernels_agree_with_the_interpreter():
    lines = lines_of("attention_interpreted.py")
    assert len(lines) > 10
    assert [line for line in lines if not line.startswith("agrees")] == []


@pytest.mark.parametrize("arch", TABLES)
@pytest.mark.parametrize("c", SHIPPED, ids=lambda c: c.name)
def test_defaults_use_tensor_cores_and_do_not_spill(c, arch: int):
    (source,) = bundle_of(c, TABLES[arch]).sources
    compiled = compile_source(source, arch)
    found = resources(compiled)
    assert found.spill_bytes == 0
    assert found.shared_bytes <= TABLES[arch].shared_bytes
    assert "mma" in compiled.asm["ptx"]
    assert ("griddepcontrol.wait" in compiled.asm["ptx"]) == (arch == 90)

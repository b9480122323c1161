"""Score nests without a GPU: what their kernels compute (in Triton's interpreter), and what they
cost on sm_80 and sm_90."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from forked import lines_of
from nest_gpu_cases import (
    ADDED,
    ALIBI,
    BIAS,
    CAUSAL,
    DROPOUT,
    SINKS,
    SOFTCAP,
    WINDOW,
    NestCase,
    Sizes,
    bias_gradient,
    forward,
    generated,
    keys_gradient,
    on_hopper,
    queries_gradient,
)
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.targets.find import named_target

TABLES = {80: named_target("A100"), 90: named_target("H100")}
BOTH = tuple(TABLES)
LONG = {n: Sizes(2, 4, 2, 4096, 4096, n, n) for n in (64, 80, 128, 256)}
# Each table of tiles (kind, depth, type, generation) once; scores differ from one to the next.
SHIPPED = [
    (forward(LONG[128], CAUSAL, saved=True), (90,)),
    (forward(Sizes(1, 8, 4, "s0", "s0", 128, 128), ALIBI, sizes={"s0": 4096}), (80,)),
    (forward(LONG[64], WINDOW, "f16"), BOTH),
    (forward(LONG[256], SOFTCAP), BOTH),
    (forward(LONG[64], CAUSAL, "f32"), BOTH),
    (forward(LONG[80], BIAS), BOTH),
    (queries_gradient(LONG[64], CAUSAL, "f32"), BOTH),
    (queries_gradient(LONG[128], ALIBI), BOTH),
    (queries_gradient(LONG[64], DROPOUT, "f16"), BOTH),
    (keys_gradient(LONG[64], CAUSAL, "f32"), BOTH),
    (keys_gradient(LONG[64], WINDOW), (90,)),
    (keys_gradient(LONG[64], DROPOUT), (80,)),
    (keys_gradient(LONG[128], CAUSAL), (90,)),
    (keys_gradient(LONG[128], SOFTCAP), (80,)),
    (forward(LONG[128], SINKS, saved=True), BOTH),
    (bias_gradient(LONG[64], CAUSAL), BOTH),
    (bias_gradient(LONG[128], BIAS, "f16"), BOTH),
    (bias_gradient(LONG[64], BIAS, "f32"), BOTH),
]
RARE = [
    forward(Sizes(1, 1, 1, 1, 1100, 64, 64), CAUSAL),  # one query, shares of the keys
    on_hopper(forward(Sizes(1, 9, 3, 200, 200, 48, 48), ADDED)),  # no mask in whole blocks
    *(keys_gradient(Sizes(1, 2, 1, 140, 150, n, n), WINDOW) for n in (16, 32, 48)),
]


def test_kernels_agree_with_the_interpreter():
    lines = lines_of("nest_gpu_interpreted.py")
    assert len(lines) > 40
    assert [line for line in lines if not line.startswith("agrees")] == []


@pytest.mark.parametrize(
    ("case", "arch"), [(case, arch) for case, archs in SHIPPED for arch in archs],
    ids=lambda v: getattr(v, "name", str(v)),
)  # fmt: skip
def test_defaults_use_tensor_cores_and_do_not_spill(case: NestCase, arch: int):
    (source,) = generated(case, TABLES[arch]).sources
    compiled = compile_source(source, arch)
    found = resources(compiled)
    assert found.spill_bytes == 0
    assert found.shared_bytes <= TABLES[arch].shared_bytes
    product = "wgmma" if arch == 90 else "mma.sync"  # of float32, in parts of bfloat16
    assert product in compiled.asm["ptx"]


@pytest.mark.parametrize("case", RARE, ids=lambda c: c.name)
def test_rare_tiles_compile(case: NestCase):
    for source in generated(case).sources:
        compile_source(source, 90)


def test_masked_blocks_are_skipped_and_whole_ones_have_no_mask():
    text = generated(forward(LONG[64], WINDOW), TABLES[80]).sources[0].text
    first, whole, last = text.split("for block in ")[1:]
    assert first.startswith("tl.range(first, inner") and last.startswith("tl.range(outer, last")
    assert "<" in first and "<" in last and "<" not in whole
    assert whole.count("tl.where(") == first.count("tl.where(") - 1


def test_a_gradient_loads_each_block_of_queries_once():
    text = generated(keys_gradient(LONG[64], BIAS)).sources[0].text
    (loop,) = text.split("for block in ")[1:]
    assert loop.count("tl.load(p_q +") == loop.count("tl.load(p_do +") == 1
    assert loop.count("tl.trans(") == 2

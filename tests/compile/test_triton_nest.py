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
from torchweld.ir.parser import parse_graph
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.targets.find import named_target
from torchweld.templates.generate import generate_all, kernels_of

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


@pytest.mark.parametrize("arch", BOTH)
@pytest.mark.parametrize("gradient", [queries_gradient, keys_gradient])
def test_float32_gradients_of_heads_of_256_stay_in_registers_but_for_little(gradient, arch: int):
    """In tiles of 32 rows ptxas gave up: 8 to 9 KB of each thread were in memory."""
    (source,) = generated(gradient(LONG[256], CAUSAL, "f32"), TABLES[arch]).sources
    found = resources(compile_source(source, arch))
    assert found.spill_bytes < 1 << 10
    assert found.shared_bytes <= TABLES[arch].shared_bytes


def test_float32_gradients_of_heads_of_128_hardly_spill():
    (source,) = generated(keys_gradient(LONG[128], CAUSAL, "f32")).sources
    assert resources(compile_source(source, 90)).spill_bytes < 64


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


ROWS_AND_RESULTS = """graph g {
  buffer q : bf16[64, 1024, 64] strides [65536, 64, 1] on cuda:0
  buffer x : bf16[64, 1024, 64] strides [65536, 64, 1] on cuda:0
  buffer top : f32[64, 1024] strides [1024, 1] on cuda:0
  buffer scale : f32[64, 1024] strides [1024, 1] on cuda:0
  buffer empty : b1[64, 1024] strides [1024, 1] on cuda:0
  buffer y : bf16[64, 1024, 64] strides [65536, 64, 1] on cuda:0
  buffer z : f32[64, 1024] strides [1024, 1] on cuda:0
  input q, x, top, scale, empty
  comp attention [b:64, m:1024, n:64, k:1024, d:64] {
    %0 = load q[b, m, d] : bf16
    %1 = cast %0 : f32
    %2 = load x[b, k, d] : bf16
    %3 = cast %2 : f32
    %4 = mul %1 %3 : f32
    %5 = reduce.sum[d] %4 : f32
    %6 = load top[b, m] : f32
    %7 = sub %5 %6 : f32
    %8 = exp %7 : f32
    %9 = load scale[b, m] : f32
    %10 = load empty[b, m] : b1
    %11 = const 1.0 : f32
    %12 = where %10 %11 %9 : f32
    %13 = const 0.0 : f32
    %14 = where %10 %13 %8 : f32
    %15 = reduce.sum[k] %14 : f32
    %16 = load x[b, k, n] : bf16
    %17 = cast %16 : f32
    %18 = mul %14 %17 : f32
    %19 = reduce.sum[k] %18 : f32
    %20 = mul %19 %12 : f32
    %21 = cast %20 : bf16
    %22 = mul %15 %12 : f32
    store y[b, m, n] %21
    store z[b, m] %22
  }
  output view(y, [64, 1024, 64], [65536, 64, 1], 0), view(z, [64, 1024], [1024, 1], 0)
}"""


def test_a_row_s_value_has_a_name_in_each_layout():
    """Empty rows: what is loaded of a row decides the scores, the result and another store."""
    graph = parse_graph(ROWS_AND_RESULTS)
    (kernel,) = kernels_of(graph, TABLES[90])
    assert kernel.template == "attention/hopper"
    (bundle,) = generate_all((kernel,), lambda made: None).values()
    for source in bundle.sources:
        compile_source(source, 90)


@pytest.mark.parametrize("score, first", [(CAUSAL, False), (BIAS, True)])
def test_a_maximum_is_subtracted_before_the_power_of_two_where_memory_adds_to_scores(score, first):
    """Else both are one multiply-add, whose shift is rounded: for scores of -1e9, by up to 64."""
    text = generated(forward(LONG[64], score, "f16"), named_target("A100")).sources[0].text
    powers = [line for line in text.splitlines() if "tl.exp2(" in line]
    assert powers and all(("tl.exp2((" in line) == first for line in powers)

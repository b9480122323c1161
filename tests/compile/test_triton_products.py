"""Triton product kernels without a GPU: what they compute (in Triton's interpreter), what they cost
on sm_80 and sm_90, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import product_cases as cases
from image_cases import convolution, normalised
from product_cases import parts
from triton_cases import Case, title
from triton_run import product_bundle

pytest.importorskip("triton")

from forked import lines_of
from torchweld.core import dtypes
from torchweld.core.errors import BuildError, InvalidIR
from torchweld.runtime import sass
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.targets.find import named_target
from torchweld.targets.target import Target
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.triton import schedule
from torchweld.templates.gemm.triton.generate import generate
from torchweld.templates.gemm.triton.schedule import candidates, staged_bytes, supports, valid

TABLES = {80: named_target("A100"), 90: named_target("H100")}
SHIPPED = [
    cases.linear(8192, 3072, 768),
    cases.bias_gelu(4096, 3072, 768),
    cases.bias_residual(4096, 768, 3072),
    cases.gated(8192, 3072, 768),
    cases.normed(32, 3072, 768),
    cases.batched(96, 512, 512, 64),
    cases.gate_before(4096, 768, 3072),
    cases.bias_gelu(128, 3072, 768, "f16"),
    cases.linear("s0", 3072, 768, sizes={"s0": 512}),
    cases.residual(1, 2048, 8192),
    cases.residual(16, 2048, 8192),
    cases.gated(16, 8192, 2048),
    cases.normed(16, 8192, 2048, pair=True),
    cases.bias_gelu(64, 3072, 768),
    cases.three(16, 2048, 2048),
    cases.summed(4096, 3072, 768),
    cases.int8_weight(1, 4096, 4096),
    cases.nibbles(16, 4096, 32, 64),
    cases.nibbles(64, 4096, 32, 64),
    convolution(16, 576, (14, 14), 576, (1, 1), groups=18),
    normalised(16, 384, (28, 28), 384, (1, 1), groups=24),
    convolution(16, 1152, (7, 7), 288, (1, 1), groups=36),
]


def default(case: Case, table: Target) -> ProductSchedule:
    return next(candidates(*parts(case), table, case.sizes))


def test_kernels_agree_with_the_interpreter():
    lines = lines_of("product_interpreted.py")
    assert len(lines) > 20
    assert [line for line in lines if not line.startswith("agrees")] == []


@pytest.mark.parametrize("arch", TABLES)
@pytest.mark.parametrize("case", SHIPPED, ids=title)
def test_defaults_use_tensor_cores_and_do_not_spill(case: Case, arch: int):
    chosen = default(case, TABLES[arch])
    source, *_ = generate(case.comp, case.buffers, chosen, case.sizes).sources
    compiled = compile_source(source, arch)
    ptx = compiled.asm["ptx"]
    assert resources(compiled).spill_bytes == 0
    assert compiled.metadata.shared <= TABLES[arch].shared_bytes
    copies = "cp.async.cg.shared.global" in ptx
    assert copies or resources(compiled).wide_loads > 0  # a single step has plain loads
    assert "cp.async.ca" not in ptx
    assert ("wgmma" if arch == 90 and chosen.block_m >= 64 else "mma.sync") in ptx


@pytest.mark.parametrize("arch", TABLES)
@pytest.mark.parametrize(("gap", "narrow"), [(5, False), (0, True)], ids=["apart", "odd rows"])
def test_lines_that_begin_aligned_are_loaded_whole_to_their_end(gap: int, narrow: bool, arch: int):
    """Of the gradient of a weight, with all shares of a long depth."""
    case = cases.linear(195, 99, 50176, left="km", right="kn", gap=gap)
    chosen = default(case, TABLES[arch])
    source, *_ = generate(case.comp, case.buffers, chosen).sources
    compiled = compile_source(source, arch)
    assert chosen.splits > 1 and resources(compiled).spill_bytes == 0
    assert ("ld.global.b16" in compiled.asm["ptx"]) == narrow


@pytest.mark.parametrize("rows", (1, 16))
def test_a_tile_reads_one_of_several_matrices_side_by_side(rows: int):
    case = cases.side_by_side(rows, (2048, 512, 512), 2048)
    chosen = default(case, TABLES[90])
    (source,) = generate(case.comp, case.buffers, chosen).sources
    loop = source.text[source.text.index("for block") : source.text.index("tl.dot")]
    assert loop.count("tl.load") == 2
    assert "cp.async.cg" in compile_source(source, 90).asm["ptx"]


def test_matrices_side_by_side_that_share_tiles_are_read_all():
    case = cases.side_by_side(16, (2048, 500, 500), 2048)
    chosen = default(case, TABLES[90])
    (source,) = generate(case.comp, case.buffers, chosen).sources
    loop = source.text[source.text.index("for block") : source.text.index("tl.dot")]
    assert loop.count("tl.load") == 4
    assert compile_source(source, 90).metadata.shared <= TABLES[90].shared_bytes


@pytest.mark.parametrize("arch", TABLES)
def test_streams_begin_early_where_the_device_can(arch: int):
    case = cases.normed(16, 8192, 2048, pair=True)
    chosen = default(case, TABLES[arch])
    (source,) = generate(case.comp, case.buffers, chosen).sources
    compiled = compile_source(source, arch)
    said = [word in compiled.asm["ptx"] for word in ("griddepcontrol.wait", "prefetch.global.L2")]
    assert (source.early, compiled.metadata.launch_pdl, *said) == (arch == 90,) * 4


@pytest.mark.parametrize("case", (cases.residual(16, 2048, 8192), cases.linear(1, 3072, 2048),
                                  cases.bias_residual(128, 768, 3072)), ids=title)  # fmt: skip
def test_few_tiles_are_one_wave_of_blocks_that_fill_a_multiprocessor(case: Case):
    accesses, contraction = parts(case)
    table = TABLES[90]
    chosen = default(case, table)
    (source,) = generate(case.comp, case.buffers, chosen).sources
    rows, columns, shares = (-(-d.size // d.block) for d in source.grid)
    assert table.units // 2 < rows * columns * shares <= table.units
    used = staged_bytes(chosen, accesses, contraction, table)
    assert table.shared_bytes // 2 < used <= table.shared_bytes


@pytest.mark.parametrize("case", SHIPPED, ids=title)
def test_candidates_are_correct_and_differ(case: Case):
    accesses, contraction = parts(case)
    for table in TABLES.values():
        found = list(candidates(accesses, contraction, table, case.sizes))
        assert 2 < len(set(found)) == len(found)
        for near in found:
            assert valid(near, accesses, contraction)
            assert staged_bytes(near, accesses, contraction, table) <= table.shared_bytes
            assert generate(case.comp, case.buffers, near, case.sizes).sources


def mixed() -> Case:
    b = cases.Body("bf16", m=32, n=32, k=32)
    b.write("y", "mn", b.dot(b.read("x", "mk"), b.read("w", "nk", dtypes.f16)))
    return b.case("mixed")


def unrounded() -> Case:
    b = cases.Body("bf16", m=32, n=32, k=32)
    left = b.op("mul", b.read("x", "mk"), b.read("s", "m", dtypes.f32))
    b.write("y", "mn", b.dot(left, b.read("w", "nk")))
    return b.case("unrounded")


def dependent() -> Case:
    b = cases.Body("bf16", m=32, n=32, k=32)
    x = b.read("x", "mk")
    left = b.rounded(b.op("mul", x, b.op("rsqrt", b.sum(b.op("mul", x, x)))))
    b.write("y", "mn", b.dot(left, b.read("w", "nk")))
    return b.case("dependent")


def two_results() -> Case:
    b = cases.Body("bf16", m=32, n=32, k=32)
    x = b.read("x", "mk")
    spread = b.builder.reduce("welford", (x,), ("k",))
    scale = b.builder.pick(spread, 1)
    b.write("y", "mn", b.op("mul", b.dot(x, b.read("w", "nk")), scale))
    return b.case("two_results")


def along_the_depth() -> Case:
    b = cases.Body("bf16", m=32, n=32, k=32)
    left = b.rounded(cases.silu(b, b.read("x", "mk")))
    b.write("y", "mn", b.dot(left, b.read("w", "nk")))
    b.write("z", "mk", left)
    return b.case("along_the_depth")


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (mixed(), "differ in dtype"),
        (unrounded(), "not rounded to 16 bits"),
        (dependent(), "depends on another"),
        (two_results(), "several results"),
        (along_the_depth(), "along the depth"),
        (cases.batched(70000, 16, 16, 16), "a batch of 70000"),
        (cases.gate_before(32, 32, 32), None),
        (cases.linear(1, 32, 32), None),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_supports(case: Case, reason: str | None):
    said = supports(*parts(case), TABLES[90])
    assert said is None if reason is None else reason in said


def test_old_devices_are_refused():
    case = cases.linear(32, 32, 32)
    turing = replace(TABLES[80], capability=(7, 5))
    assert "asynchronous" in supports(*parts(case), turing)


GOOD = ProductSchedule("triton", 64, 64, 64, 4, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"form": "gluon"},
        {"block_m": 8},
        {"block_n": 48},
        {"block_k": 0},
        {"num_warps": 3},
        {"stages": 0},
        {"stages": 13},
        {"group": 0},
        {"block_m": 256, "block_n": 256},  # accumulators do not fit into registers
        {"splits": 3},  # more than there are blocks of the depth
        {"splits": 0},
    ],
)
def test_invalid_schedules_are_refused(change: dict):
    case = cases.linear(512, 512, 128)
    assert valid(GOOD, *parts(case))
    wrong = replace(GOOD, **change)
    assert not valid(wrong, *parts(case))
    with pytest.raises(InvalidIR, match="cannot be tiled"):
        generate(case.comp, case.buffers, wrong)


def test_a_depth_that_is_not_known_is_not_shared():
    case = cases.linear(16, 512, "s0", sizes={"s0": 4096})
    assert not valid(replace(GOOD, form="stream", splits=2), *parts(case))
    assert all(s.splits == 1 for s in candidates(*parts(case), TABLES[90], case.sizes))


@pytest.mark.parametrize(("m", "n", "k", "tile"), [
    (512, 512, 2048, (64, 4)), (256, 256, 8192, (64, 16)), (1000, 1000, 1000, (128, 2)),
    (256, 256, 1 << 19, (128, 32)), (4096, 4096, 512, (128, 1)),
])  # fmt: skip
def test_two_programs_of_a_multiprocessor_share_the_depth_of_float32(m, n, k, tile):
    case = cases.linear(m, n, k, "f32")
    found = schedule.first(*parts(case), TABLES[90])
    assert (found.block_m, found.splits) == tile
    assert found.splits == 1 or 132 < found.splits * -(-m // found.block_m) * -(-n // 64) <= 264
    (source, *_) = generate(case.comp, case.buffers, found).sources
    used = resources(compile_source(source, 90))
    assert used.spill_bytes == 0 and 2 * used.registers * 32 * found.num_warps <= 65536
    assert 2 * used.shared_bytes <= 227 << 10


def test_what_makes_no_product_is_refused():
    b = cases.Body("bf16", m=32, k=32)
    b.write("y", "m", b.sum(b.read("x", "mk")))
    with pytest.raises(InvalidIR, match="cannot be tiled"):
        generate(b.case("sums").comp, b.buffers, GOOD)


@pytest.mark.parametrize("pair", [False, True])
def test_sums_beside_products_are_refused_in_large_tiles(pair: bool):
    """On an H100 such kernels were wrong from 64 rows on."""
    assert "sums" in _refusal(cases.normed(33, 264, 200, "bf16", pair))
    case = cases.normed(32, 264, 2000, "bf16", pair)
    assert _refusal(case) is None
    tried = list(candidates(*parts(case), TABLES[90], {}))
    assert tried and all(s.block_m == 32 for s in tried)
    assert not valid(replace(GOOD, block_m=64), *parts(case))
    assert valid(replace(GOOD, block_m=32), *parts(case))


def test_what_a_dot_reads_is_not_computed_with_in_large_tiles():
    """A dot that is pending would read what the next copy writes (bench/race_left_sums.py)."""
    assert "another product" in _refusal(cases.beside_computed(33, 264, 200))
    case = cases.beside_computed(32, 264, 2000)
    assert _refusal(case) is None
    tried = list(candidates(*parts(case), TABLES[90], {}))
    assert tried and all(s.block_m == 32 for s in tried)
    assert not valid(replace(GOOD, block_m=64), *parts(case))
    assert _refusal(cases.gated(64, 264, 200)) is _refusal(cases.two_lefts(64, 264, 200)) is None


def _refusal(case: Case) -> str | None:
    return supports(*parts(case), TABLES[90])


def test_computed_right_factors_leave_shared_memory_for_themselves():
    (source,) = product_bundle(cases.side_by_side(7, (100, 60), 520, "bf16")).sources
    assert resources(compile_source(source, 90)).shared_bytes <= TABLES[90].shared_bytes


def test_right_factors_that_lie_in_both_directions_have_wide_tiles():
    case, table = cases.two_lefts(65, 65, 65), TABLES[90]
    found = list(candidates(*parts(case), table, case.sizes))
    assert found and all(s.block_n >= 64 for s in found)
    narrow = replace(found[0], block_n=32)
    assert not valid(narrow, *parts(case)) and valid(narrow, *parts(cases.gated(65, 65, 65)))


def test_what_ptxas_makes_wrong_is_mended(monkeypatch, tmp_path):
    """Narrow tiles of right factors that lie in both directions."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(schedule, "_LEAST_OPPOSED", 32)
    case = cases.two_lefts(65, 65, 65)
    narrow = replace(next(candidates(*parts(case), TABLES[90], case.sizes)), block_n=32)
    (source,) = generate(case.comp, case.buffers, narrow, case.sizes).sources
    with monkeypatch.context() as as_it_comes:
        as_it_comes.setattr(sass, "in_two_steps", lambda ptx: ptx)
        with pytest.raises(BuildError, match="loses a register"):
            compile_source(source, 90)
    made = compile_source(source, 90)
    assert sass.fault(made.kernel) is None and made.kernel == made.asm["cubin"]
    monkeypatch.setattr(sass, "fault", None)  # what is kept is not read again
    assert compile_source(source, 90).kernel == made.kernel

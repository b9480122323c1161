"""Streams of few rows on Hopper: what they compute with warps interleaved at random, which barriers
they need, what they read before the kernel in front has ended, how they are tiled."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import product_cases as cases
from gluon_interpreted import interpret
from product_cases import parts
from product_check import problems
from torchweld.core import dtypes
from torchweld.core.errors import InvalidIR
from torchweld.ir.size import symbol
from torchweld.targets.find import named_target
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.skinny import schedule as product_stream
from torchweld.templates.gemm.skinny.generate import generate
from torchweld.templates.gemm.triton import schedule as product_triton
from triton_cases import Case, tensors

H100 = named_target("H100")


def tiles(block_m, block_n=64, block_k=64, stages=3, splits=1) -> ProductSchedule:
    return ProductSchedule("gluon stream", block_m, block_n, block_k, block_n // 16, stages, 1,
                           splits, True)  # fmt: skip


CASES = [
    (cases.linear(16, 200, 328), tiles(16)),
    (cases.linear(5, 200, 328), tiles(8, splits=3)),
    (cases.linear(7, 136, 1000), tiles(8, 128, 128, 2, splits=4)),
    (cases.linear(33, 136, 264, "f16"), tiles(64, splits=2)),
    (cases.linear(70, 72, 264), tiles(32, splits=2)),
    (cases.linear(16, 136, 200, right="kn"), tiles(16, stages=5)),
    (cases.linear("s0", 72, 200, sizes={"s0": 19}), tiles(16)),
    (cases.linear("s0", 72, 328, sizes={"s0": 5}), tiles(16, splits=3)),
    (cases.linear("s0", 136, 328, sizes={"s0": 37}), tiles(16, splits=3)),
    (cases.gated("s0", 72, 328, sizes={"s0": 19}), tiles(16, splits=2)),
    (cases.bias_residual(9, 136, 328), tiles(16, splits=2)),
    (cases.bias_gelu(16, 136, 136), tiles(16)),
    (cases.gated(16, 200, 264), tiles(16, splits=2)),
    (cases.three(3, 136, 136), tiles(8, splits=2)),
    (cases.scaled_outputs(7, 136, 72), tiles(8)),
    (cases.side_by_side(16, (200, 72, 136), 200), tiles(16, splits=2)),
    (cases.side_by_side(1, (200, 72, 136), 200), tiles(8, splits=2)),
    (cases.into_cache(16, 4, 2, 40, 200), tiles(16, splits=2)),
    (cases.scattered(13, 136, 200), tiles(16, splits=2)),
    (cases.rotary(7, (3, 2, 2), 64, 200), tiles(8, splits=2)),
    (cases.rotary(16, (2, 1, 1), 128, 136), tiles(16)),
    (cases.rotary(1, (3, 1, 1), 256, 136), tiles(8, splits=2)),
    (cases.rotary(5, (3, 1, 2), 48, 136, interleaved=True), tiles(8)),
]


def title(value) -> str:
    if isinstance(value, str):
        return re.sub(r"\W+", "-", value).strip("-")
    if isinstance(value, Case):
        return f"{value.name}-{'x'.join(str(a.extent) for a in value.comp.axes)}"
    return f"{value.block_m}x{value.block_n}x{value.block_k}-{value.splits}"


def bundle_of(case: Case, schedule: ProductSchedule, frozen: bool = True):
    buffers = {n: replace(b, frozen=b.frozen and frozen) for n, b in case.buffers.items()}
    return generate(case.comp, buffers, schedule, case.sizes)


def run(case: Case, bundle, seed: int = 0) -> dict[str, torch.Tensor]:
    scratch = {b.name: torch.zeros(b.shape, dtype=dtypes.to_torch(b.dtype)) for b in bundle.scratch}
    made = {**tensors(case), **scratch}
    interpret(bundle.sources[0], made, case.sizes, seed)
    assert all(not made[name].any() for name in bundle.zeroed)  # as they were found
    return made


@pytest.mark.parametrize(("case", "schedule"), CASES, ids=title)
def test_results_whoever_runs_first(case: Case, schedule: ProductSchedule):
    assert problems(case, run(case, bundle_of(case, schedule))) == []


def test_shares_are_added_in_their_order():
    case, schedule = cases.linear(16, 72, 448), tiles(16, splits=4)
    results = [run(case, bundle_of(case, schedule), seed)["y"] for seed in range(3)]
    assert all(torch.equal(r, results[0]) for r in results)


NEEDED = [r"mbarrier.wait\(ready.*", r"mbarrier.wait\(empty.*", r"mbarrier.arrive\(empty.*"]


@pytest.mark.parametrize("wait", NEEDED, ids=title)
def test_without_a_barrier_something_is_wrong(wait: str):
    case, bundle = CASES[0][0], bundle_of(*CASES[0])
    text, count = re.subn(wait, "pass", bundle.sources[0].text)
    assert count == 1
    broken = replace(bundle, sources=(replace(bundle.sources[0], text=text),))
    assert any(_fails(case, broken, seed) for seed in range(20))


def _fails(case: Case, bundle, seed: int) -> bool:
    try:
        return problems(case, run(case, bundle, seed)) != []
    except AssertionError:
        return True


@pytest.mark.parametrize("frozen", [True, False])
def test_only_parameters_are_read_before_the_kernel_in_front_has_ended(frozen: bool):
    (source,) = bundle_of(cases.bias_residual(9, 136, 328), tiles(16), frozen).sources
    produce = source.text[source.text.index("def produce") :]
    before = produce[: produce.index("await_previous()")]
    assert re.findall(r"copy_in\((\w+)", before) == (["d_w0_0"] if frozen else [])
    consume = source.text[source.text.index("def consume") : source.text.index("def produce")]
    assert "await_previous" in consume.partition("finish_0(")[0]
    assert source.early and source.text.count("begin_next()") == 1


@pytest.mark.parametrize(
    ("case", "block", "splits"),
    [
        (cases.residual(16, 2048, 8192), (16, 64, 128), 4),
        (cases.linear(2, 2048, 2048), (8, 64, 128), 4),
        (cases.gated(64, 8192, 2048), (64, 64, 128), 1),
        (cases.linear(16, 16384, 2048), (16, 64, 128), 1),
        (cases.side_by_side(16, (2048, 512, 512), 2048), (16, 64, 128), 2),
        (cases.linear("s0", 768, 3072, sizes={"s0": 4}), (64, 64, 128), 8),
        (cases.linear("s0", 2048, 8192, sizes={"s0": 1}), (64, 64, 128), 4),
        (cases.linear("s0", 8192, 2048, sizes={"s0": 4}), (64, 64, 128), 1),
        (cases.linear("s0", 32768, 2048, sizes={"s0": 4}), (64, 128, 128), 1),
    ],
)
def test_defaults(case: Case, block: tuple[int, int, int], splits: int):
    first = next(product_stream.candidates(*parts(case), H100, case.sizes))
    assert (first.block_m, first.block_n, first.block_k) == block and first.splits == splits


def test_more_tiles_than_multiprocessors_are_two_on_each():
    few, many = (next(product_stream.candidates(*parts(cases.linear(16, n, 2048)), H100))
                 for n in (8192, 16384))  # fmt: skip
    assert few.stages == 10 and many.stages == 5


@pytest.mark.parametrize("rows", [8, 16, 64])
def test_a_left_factor_that_lies_along_its_rows_has_tiles_of_64(rows: int):
    """Of narrow ones, some ended in an illegal access (schedule.py)."""
    case = cases.linear(rows, 136, 264, left="km")
    found = list(product_stream.candidates(*parts(case), H100))
    assert found and all(s.block_m == 64 for s in found)
    assert rows == 64 or not product_stream.valid(replace(found[0], block_m=rows), *parts(case))


def test_many_rows_are_no_stream():
    assert list(product_stream.candidates(*parts(cases.linear(65, 768, 768)), H100)) == []


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (cases.linear(16, 64, 100), "not aligned"),
        (cases.normed(16, 64, 64), "is computed"),
        (cases.batched(3, 16, 64, 64), "at once"),
        (cases.linear(16, 64, 64), None),
        (cases.linear(16, 64, 8 * symbol("s0"), sizes={"s0": 8}), "at the call"),
        (cases.linear(16, "s0", 64, sizes={"s0": 64}), "at the call"),
        (cases.side_by_side(1, (64, 64), 64), None),
        (cases.side_by_side(1, (64, 64), 36), "not aligned"),
        (cases.rotary(16, (2, 1, 1), 128, 64), None),
        (cases.rotary(16, (2, 1, 1), 96, 64), "fill no tile"),
        (cases.rotary(16, (2, 1, 1), 96, 64, interleaved=True), None),
    ],
)
def test_reasons(case: Case, reason: str | None):
    said = product_stream.supports(*parts(case), H100)
    assert said is None if reason is None else reason in said


def test_schedules_that_do_not_fit_are_refused():
    case, good = cases.linear(16, 256, 1024), tiles(16)
    for change in ({"stages": 40}, {"block_m": 128}, {"num_warps": 8}, {"block_n": 96},
                   {"splits": 17}, {"splits": 11}, {"form": "stream"}, {"stages": 1}):  # fmt: skip
        with pytest.raises(InvalidIR):
            bundle_of(case, replace(good, **change))


@pytest.mark.parametrize("rows", [1, 64, 65, 130])
@pytest.mark.parametrize("columns", [136, 328, 2048])
def test_rows_that_the_call_knows_have_a_triton_kernel_too(rows: int, columns: int):
    """For memory that TMA cannot copy: one share of the depth, however few the tiles."""
    case = cases.linear("s0", columns, 2048, sizes={"s0": rows})
    found = list(product_triton.candidates(*parts(case), H100, case.sizes))
    assert any(s.splits == 1 for s in found)
    assert all(product_triton.valid(s, *parts(case)) for s in found)

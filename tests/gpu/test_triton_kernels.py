"""Generated Triton kernels on a GPU, against the IR interpreter: float64, and eager's
arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import triton_cases as cases
from torchweld.core import dtypes
from triton_cases import Case, expected, looped, reduction, tensors, title
from triton_run import bundle_of, compile_in_processes, gpu_starter, launches, prepare

_TIES = torch.tensor([[1.0, 3.0, 3.0, 0.0], [float("nan"), 5.0, float("nan"), 9.0],
                      [float("-inf")] * 4, [float("inf"), 1.0, float("inf"), 2.0]])  # fmt: skip
_MASKED = torch.zeros(20000)
_MASKED[:10000] = float("-inf")
_PARTLY_MASKED = torch.zeros(150)
_PARTLY_MASKED[:70] = float("-inf")
_ALL_MASKED = torch.full((70,), float("-inf"))
_OFFSET = torch.randn(33, 1000, generator=torch.Generator().manual_seed(3)) + 1000

ALL = [
    *cases.POINTWISE,
    *cases.SCALARS,
    cases.gelu_mul(101, 1001),
    cases.window(3, 5003),
    *(cases.row_scaled(9, c) for c in (4095, 4096, 5003, 50257)),
    *(cases.row_divided(c) for c in (67, 1024, 5003)),
    cases.many_weights(70_001, 130), cases.shared_gathers(5, 300_001, 4000),
    *(reduction("sum", 70_001, c, d) for c in (70, 130, 1024) for d in ("f32", "bf16")),
    cases.softmax(70_001, 130),
    cases.signed_zeros("f32"), cases.signed_zeros("f64"),
    *(cases.softmax(5, c) for c in (1, 2, 127, 128, 129, 4096)),
    cases.softmax(3, 20000),
    cases.softmax(3, 20000, dtype="bf16", fill={"m": _MASKED}),
    cases.softmax(4, 70, fill={"m": _ALL_MASKED}),
    cases.softmax("s0", "s1", sizes={"s0": 7, "s1": 1000}),
    cases.softmax(300, 17),
    cases.guarded_sum(5, 70),
    looped(cases.guarded_sum(5, 700), 32, 3),
    *(cases.checked_embedding(r, c) for r, c in ((13, 40), (1, 4096), (1000, 7))),
    cases.checked_embedding(5, 40, "bf16", first=0),
    cases.doubled_and_summed(4096, 300),
    *(cases.add_layer_norm(7, c) for c in (1, 96, 768, 1023, 4096, 20000)),
    cases.add_layer_norm("s0", 768, sizes={"s0": 19}),
    *(cases.add_rms_norm(5, c) for c in (64, 4096)),
    *(cases.layer_norm_backward(r, c) for r, c in ((1, 8), (13, 40), (1000, 768), (700, 4096))),
    cases.layer_norm_backward("s0", 257, sizes={"s0": 301}),
    *(cases.cross_entropy(6, c) for c in (1, 300, 20001, 50257)),
    *(cases.cross_entropy_backward(6, c) for c in (300, 20001, 50257)),
    *(cases.softmax_gradients(r, c) for r, c in ((3, 16001), (300, 8200), (5, 3000))),
    *(cases.cumulative("sum", 3, c, backwards=True) for c in (100, 20001)),
    *(cases.cumulative(m, 3, c) for m in ("sum", "prod", "max", "min") for c in (1, 100, 20000)),
    *(cases.cumulative("logaddexp", 4, c, b, fill={"x": cases.equal_numbers(c)})
      for b in (False, True) for c in (101, 20001)),
    *(cases.log_sums(r, c, d) for r, c in ((333, 3001), (64, 77)) for d in ("f32", "bf16")),
    *(cases.middle_scan(m, 64, n, 251) for m in ("sum", "max", "logaddexp") for n in (128, 1000)),
    *(c for m in ("sum", "max") for n in (16384, 20001)
      for c in cases.stretches(cases.cumulative(m, 3, n, backwards=n == 20001), 1024)),
    *(c for kind, n in (("f32", 9001), ("i64", 16384))
      for c in cases.stretches(cases.scan_down("sum", 24, n, kind), 256)),
    *(cases.scan_of_equal_rows(m, r, c) for m in ("sum", "prod", "max", "logaddexp")
      for r, c in ((5, 7), (100, 7), (33, 77), (3, 20001))),
    *(cases.loss_of_pixels(3, 19, n, d) for n in (1024, 1023) for d in ("bf16", "f16")),
    *(cases.stored_steps(4096, n, 64) for n in (16, 13)),
    *(cases.running_extreme(m, 4, c, fill={"x": cases.equal_numbers(c)})
      for m in ("max", "min") for c in (101, 20001)),
    *(reduction(m, 5, c) for c in (1, 127, 1024) for m in
      ("sum", "prod", "max", "min", "argmax", "argmin", "welford", "logsumexp")),
    *(reduction(m, 3, 50001) for m in ("sum", "max", "argmax", "argmin", "welford", "logsumexp")),
    *(reduction(m, 1501, 200, dim=0) for m in
      ("sum", "max", "argmax", "argmin", "welford", "logsumexp")),
    *(reduction(m, 4, 4, fill={"x": _TIES}) for m in ("max", "min", "argmax", "argmin")),
    reduction("welford", 33, 1000, fill={"x": _OFFSET}),
    looped(reduction("welford", 33, 1000, fill={"x": _OFFSET}), 128, 1, 1),
    *(cases.moments_of_equal_numbers(n) for n in (7, 100, 768, 1000, 20001)),
    *(looped(reduction(m, 4, 5003, fill={"x": cases.equal_numbers(5003)}), 512, splits, 1)
      for m in ("argmax", "argmin") for splits in (1, 3)),
    *(looped(cases.exponentials(3, 150, {"m": m}, keeps), 32, splits)
      for m in (_PARTLY_MASKED, -_PARTLY_MASKED) for keeps in (False, True) for splits in (1, 2)),
    cases.scaled_sum(10, 1 << 17),
    cases.add_layer_norm(3, 100000),
    cases.softmax(600, 40000),
    cases.exponentials(3, 100000),
    *(reduction(m, 40, 33, dtype="i64") for m in ("sum", "max", "min", "argmax")),
    *(reduction(m, 40, 33, dtype="i32") for m in ("max", "argmin")),
    *(reduction(m, 40, 33, dtype="b1") for m in ("any", "all")),
    *(reduction(m, 9, 70, dtype="f64") for m in ("sum", "max", "welford", "logsumexp")),
    reduction("sum", 5, 0),
    reduction("sum", 0, 5),
    reduction("sum", 2, 1 << 20),
    looped(cases.softmax(3, 150, fill={"m": _PARTLY_MASKED}), 32),
    looped(cases.softmax(3, 150, fill={"m": torch.full((150,), float("-inf"))}), 32),
    looped(cases.add_layer_norm(3, 100), 32),
    *(looped(reduction(m, 5, 150), 32) for m in cases.MONOIDS),
    *(looped(reduction(m, 3, 1500), 64, 4) for m in cases.MONOIDS),
    *(looped(reduction(m, 1000, 12, dim=0), 8, 5, 8) for m in cases.MONOIDS),
    *(cases.prepared(c) for m in ("argmax", "argmin") for c in cases.places(m)),
    *(cases.prepared(reduction(m, *shape, dim=d)) for m in ("argmax", "argmin")
      for shape, d in (((3, 50001), 1), ((50001, 3), 0), ((33, 1001), 0))),
    *(cases.prepared(cases.middle(m, 30, n, j, dtype)) for m in ("sum", "max", "argmin", "welford")
      for n, j in ((17, 1024), (32, 1001), (24, 77), (300, 333), (77, 77), (5000, 13))
      for dtype in ("f32", "bf16")),
    cases.middle("sum", 4, 8000, 333),
    *(cases.apart(cases.scaled_middle(2, 3, 19, 7), *how)
      for how in (("persistent", 8, 32), ("looped", 4, 8), ("looped", 2, 8))),
]  # fmt: skip


SHARED = [c for c in ALL if len(bundle_of(c).sources) == 2]
MOVES = ("transposed_copy", "embedding", "cat_rows", "dropout")


@pytest.fixture(scope="module")
def compiled() -> dict:
    return compile_in_processes([s for c in ALL for s in bundle_of(c).sources])


def run(case: Case, compiled: dict) -> dict[str, torch.Tensor]:
    on_gpu = tensors(case, "cuda")
    bundle = bundle_of(case)
    prepare(case, bundle, on_gpu)
    launches(case, bundle, on_gpu, gpu_starter(compiled))
    return {n: on_gpu[n].cpu() for n in case.comp.writes}


@pytest.mark.parametrize("case", ALL, ids=title)
def test_kernel_agrees_with_the_interpreter(case: Case, compiled: dict):
    got = run(case, compiled)
    exact = expected(case, tensors(case), exact=True)
    eager = expected(case, tensors(case), exact=False)
    for name in case.comp.writes:
        check(name, case, got[name], eager[name], exact[name])


def check(
    name: str, case: Case, got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor
) -> None:
    """Bitwise for what is no float; for floats, within 1.5 x (and at worst 3 x) the error of
    eager's arithmetic, with a floor of what the dtype resolves."""
    assert got.dtype == eager.dtype and got.shape == eager.shape
    if not got.dtype.is_floating_point:
        assert torch.equal(got, eager), name
        return
    # The CPU's fmodf gives NaN for denormal divisors, where the remainder is a number.
    eager = torch.where(eager.isnan() & ~exact.isnan(), exact.to(eager.dtype), eager)
    assert torch.equal(got.isnan(), eager.isnan()), name
    wide = exact.double().nan_to_num(0.0, 0.0, 0.0)
    infinite = eager.isinf()
    assert torch.equal(got[infinite], eager[infinite]), name
    keep = (~infinite & ~got.isinf()).double()
    assert torch.equal(got.isinf(), infinite), name
    mine, theirs = (_apart(t, wide, keep) for t in (got, eager))
    resolution = 4 * torch.finfo(got.dtype).eps * (wide * keep).abs()
    assert mine.norm() <= 1.5 * theirs.norm() + resolution.norm() + 1e-37, name
    worst = 3 * theirs.max() + resolution.max() if mine.numel() else 0.0
    assert mine.numel() == 0 or mine.max() <= worst + 1e-37, name


def _apart(t: torch.Tensor, exact: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return (t.double().nan_to_num(0.0, 0.0, 0.0) - exact).abs() * keep


@pytest.mark.parametrize("case", [c for c in cases.POINTWISE if c.name in MOVES], ids=title)
def test_data_movement_is_bitwise(case: Case, compiled: dict):
    got, eager = run(case, compiled), expected(case, tensors(case), exact=False)
    assert all(torch.equal(got[n], eager[n]) for n in case.comp.writes)


@pytest.mark.parametrize("case", SHARED, ids=title)
def test_results_repeat(case: Case, compiled: dict):
    first = run(case, compiled)
    for _ in range(3):
        again = run(case, compiled)
        assert all(_same(first[n], again[n]) for n in first)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[a.element_size()]
    return torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


def test_every_dtype_moves():
    """A copy with a cast to and from every dtype."""
    from torchweld.runtime.triton_compile import compile_triton

    for source in dtypes.ALL:
        case = cases.case(
            f"copy_{source}",
            "i:100",
            f"%0 = load x[i] : {source}\nstore y[i] %0",
            x=(source.name, 100),
            y=(source.name, 100),
        )
        bundle = bundle_of(case)
        got = run(case, {s: compile_triton(s) for s in bundle.sources})
        assert _same(got["y"], tensors(case)["x"])


def test_unaligned_pointers(compiled: dict):
    """A tensor that starts at an odd element gets a binary that does not assume 16 bytes."""
    case = next(c for c in cases.POINTWISE if c.name == "bias_gelu")
    bundle, made = bundle_of(case), tensors(case, "cuda")
    memory = torch.empty(made["x"].numel() + 1, dtype=made["x"].dtype, device="cuda")
    made["x"] = memory[1:].view(made["x"].shape).copy_(made["x"])
    launches(case, bundle, made, gpu_starter(compiled))
    assert torch.equal(made["y"].cpu(), run(case, compiled)["y"])


@pytest.mark.parametrize("name", ["reciprocal", "one"])
def test_a_quotient_of_one_has_the_bits_of_a_division(name: str):
    """Of all fractions, at exponents where numbers or their inverses are normal, large and
    subnormal."""
    fractions = torch.arange(1 << 23, dtype=torch.int32)
    exponents = (0, 1, 126, 127, 252, 253, 254, 255)
    x = torch.cat([fractions + (e << 23) for e in exponents]).view(torch.float32)
    made = cases.inverse(cases.INVERSES[name], x.numel())
    made = replace(made, fill={"x": x})
    got = run(made, compile_in_processes(bundle_of(made).sources))["y"]
    wanted = (1.0 / x.cuda()).cpu()
    nan = wanted.isnan()
    assert torch.equal(got.isnan(), nan)
    assert torch.equal(got[~nan].view(torch.int32), wanted[~nan].view(torch.int32))


@pytest.mark.parametrize("exponent", cases.POWERS)
def test_a_power_that_is_known_is_as_exact_as_eager(exponent: float):
    """Within one unit in the last place of any float32, by float64; where eager has no finite
    number, neither has it."""
    bits = torch.arange(-(1 << 31), 1 << 31, 2003, dtype=torch.int64).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.rand(1 << 20) * 4])
    made = replace(cases.inverse(cases.power(exponent), x.numel()), fill={"x": x})
    got = run(made, compile_in_processes(bundle_of(made).sources))["y"]
    wanted = x.double().pow(exponent)
    nearest = wanted.float()
    finite = nearest.isfinite()
    assert torch.equal(got.isnan(), nearest.isnan())
    unit = torch.nextafter(nearest.abs(), torch.tensor(math.inf)) - nearest.abs()
    error = (got.double() - wanted).abs()[finite] / unit[finite]
    assert error.max() < 2 and error[wanted.abs()[finite] > 1e-30].max() < 1
    infinite = nearest.isinf()
    assert torch.equal(got[infinite], nearest[infinite])

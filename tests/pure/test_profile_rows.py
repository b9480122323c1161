"""Rows, sums and regimes from runs written by hand, on a device written by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from torchweld.core.errors import UsageError
from torchweld.observe.predict.limits import predict_us, regime_of
from torchweld.observe.predict.work import Work
from torchweld.observe.profile import rows
from torchweld.observe.profile.rows import Run, Task
from torchweld.observe.record.profile import (
    SCHEMA_VERSION,
    Energy,
    Memory,
    Place,
    Profile,
    Roofline,
    Totals,
)
from torchweld.observe.views.profile import plain_text
from torchweld.targets.find import named_target

# 1 us a launch, 1 GB/s of memory, 4 GB/s of cache for up to 1000 bytes, 1 Gflop/s, products 10
LINE = Roofline("cpu", "A device", 1, 1.0, 1e9, 4e9, 1000, {"float32": 1e10}, 1e9,
                generated_launch_us=0.5, operator_us={"aten::mm": 3.0},
                operator_flops_per_s={"aten::mm float32": 5e9})
TABLE = named_target("H100")


def work(moved=0, flops=0.0, operator="aten::x", product=False):
    return Work(moved, flops, "float32", operator, product)


@pytest.mark.parametrize(("kernel", "regime"), [
    (work(), "launch"),
    (work(3000, 900.0), "memory"),
    (work(3900), "memory"),
    (work(990), "launch"),  # in the cache: a quarter of a microsecond
    (work(3000, 3100.0), "compute"),
    (work(3000, 29000.0, product=True), "memory"),
    (work(3000, 31000.0, product=True), "compute"),
    (work(600, operator="generated"), "launch"),  # generated: half a microsecond
])
def test_the_regime_is_the_limit_that_takes_longest(kernel, regime):
    assert regime_of(kernel, LINE) == regime


def test_a_prediction_is_a_launch_and_the_longer_of_memory_and_arithmetic():
    assert predict_us(work(3000, 900.0), LINE, TABLE) == pytest.approx(1 + 3)
    assert predict_us(work(3000, 5000.0), LINE, TABLE) == pytest.approx(1 + 5)
    product = work(0, 50_000.0, "aten::mm", product=True)
    assert predict_us(product, LINE, TABLE) == pytest.approx(3 + 10)  # at the library's own rate


@pytest.mark.parametrize(("measured", "flops_per_s"), [
    ({"aten::convolution float32": 1e9}, 1e9),
    ({"aten::convolution float32": 1e9, "aten::convolution_backward float32": 5e8}, 5e8),
])
def test_a_gradient_has_its_own_rate_if_one_is_measured(measured, flops_per_s):
    line = replace(LINE, operator_flops_per_s=measured)
    gradient = work(0, 1e9, "aten::convolution_backward", product=True)
    start = predict_us(work(operator="aten::convolution_backward", product=True), line, TABLE)
    assert predict_us(gradient, line, TABLE) - start == pytest.approx(1e15 / flops_per_s)


def test_a_gpu_s_product_fills_whole_waves_of_tiles():
    rate = 6.8e14
    line = replace(LINE, device="cuda", matmul_flops_per_s={"bfloat16": rate},
                   operator_flops_per_s={"aten::mm bfloat16": rate})

    def predicted(rows):
        gemm = (1, rows, 4096, 4096)
        flops = 2.0 * rows * 4096 * 4096
        return predict_us(Work(0, flops, "bfloat16", "aten::mm", True, gemm=gemm), line, TABLE)

    ideal = 2.0 * 8192 * 4096 * 4096 / rate * 1e6
    assert ideal <= predicted(8192) < 1.35 * ideal
    assert predicted(1) < 20  # memory: its weights


def place(module, op="aten.add.Tensor"):
    return Place(op, module, "model.py:1")


def task(name, module, moved=3000, backward=False):
    return Task(name, "operator", (place(module),), backward, work(moved))


A, B = task("a", "net.first"), task("b", "net.second")
FUSED = Task("f", "generated", (place("net.first"), place("net.second.act")), False, work(2000))


def test_a_kernel_of_several_calls_is_one_row_with_their_sum():
    steps = [[Run(A, 0, 10), Run(B, 10, 5), Run(A, 20, 20)], [Run(A, 0, 20), Run(A, 30, 14)]]
    (a, b), numbers = rows.kernels_of(steps, LINE, TABLE)
    assert (a.name, a.calls, a.measured_us) == ("a", 2, 32.0)
    assert (b.name, b.calls, b.measured_us) == ("b", 1, 2.5)
    assert (a.bytes, a.predicted_us) == (6000, pytest.approx(8.0))
    assert a.limit_share == pytest.approx(2 * 3 / 32)
    assert a.miss == pytest.approx(math.log(32 / 8))
    assert [launch.kernel for launch in rows.timeline(steps[0], numbers)] == [0, 1, 0]


def test_the_same_kernel_in_another_layer_is_another_row():
    found, _ = rows.kernels_of([[Run(A, 0, 1), Run(task("a", "net.second"), 1, 1)]], LINE, TABLE)
    assert [k.places[0].module for k in found] == ["net.first", "net.second"]


def test_a_task_without_work_has_no_prediction():
    (kernel,), _ = rows.kernels_of([[Run(Task("k", "copy", ()), 0, 2)]], LINE, TABLE)
    assert (kernel.predicted_us, kernel.bytes, kernel.limit_share, kernel.miss) == (None,) * 4
    assert kernel.regime == "unknown"


def test_modules_sum_what_is_below_them_and_share_fused_kernels():
    kernels, _ = rows.kernels_of([[Run(A, 0, 10), Run(FUSED, 10, 4), Run(B, 14, 6)]], LINE, TABLE)
    sums = {m.path: m.measured_us for m in rows.module_sums(kernels)}
    assert sums == {"": 20, "net": 20, "net.first": 12, "net.second": 8, "net.second.act": 2}
    assert list(sums) == ["", "net", "net.first", "net.second", "net.second.act"]


def test_gaps_and_busy_time_of_runs_that_overlap():
    runs = [Run(A, 5, 10), Run(B, 10, 10), Run(A, 30, 5)]
    _, numbers = rows.kernels_of([runs], LINE, TABLE)
    assert rows.busy_us(runs) == 20
    found = [(g.start_us, g.duration_us, g.before, g.after) for g in rows.gaps(runs, numbers, 50)]
    assert found == [(35, 15, 0, None), (20, 10, 1, 0), (0, 5, None, 0)]


def test_the_typical_step_is_the_median_one():
    assert rows.median_step([[Run(A, 0, 9)], [Run(A, 0, 1)], [Run(A, 0, 5)]]) == 2


def test_accuracy_names_the_misses_that_matter():
    runs = [Run(A, 0, 40), Run(B, 40, 4), Run(task("tiny", "net", moved=10), 50, 0.05)]
    kernels, _ = rows.kernels_of([runs], LINE, TABLE)
    found = rows.accuracy_of(kernels)
    assert found.kernels == 3
    assert found.median_abs_log == pytest.approx(math.log(10))
    assert found.within_two == pytest.approx(1 / 3)
    assert found.worst == [0, 1]  # the tiny one is a thousandth of the time


def test_a_device_that_became_slower_shows_as_a_bias():
    runs = [Run(A, 0, 12), Run(B, 12, 12)]  # four would do
    kernels, _ = rows.kernels_of([runs], LINE, TABLE)
    assert rows.accuracy_of(kernels).bias == pytest.approx(math.log(3))


def test_nothing_known_is_no_accuracy():
    assert rows.accuracy_of([]).median_abs_log is None


def profile():
    runs = [Run(A, 0, 10), Run(FUSED, 10, 4)]
    kernels, numbers = rows.kernels_of([runs], LINE, TABLE)
    totals = Totals(20.0, 1.0, 25.0, 14.0, 6.0, rows.gaps(runs, numbers, 25.0), 1.0)
    return Profile(
        SCHEMA_VERSION, "net", "eager", False, ["float32[2, 3]"], {"torch": "2"}, 1, LINE, totals,
        kernels, rows.timeline(runs, numbers), rows.module_sums(kernels),
        Memory(10, 20, 1.5, [(0.0, 4), (1.5, 10)], []), [], rows.accuracy_of(kernels),
        Energy(None, None, 0.0, "no counter"),
    )  # fmt: skip


def test_a_profile_survives_json():
    assert Profile.from_json(json.dumps(profile().to_dict())) == profile()


def test_a_profile_is_told_at_eighty_columns():
    text = plain_text(profile())
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "net.first" in text and "model.py:1" in text and "100% of their time" in text


def layered(count: int, name: str) -> Profile:
    """The same kernel in each of several layers."""
    places = [Place("aten.cat.default", f"model.layers.{n}.mlp", "m.py:7") for n in range(count)]
    runs = [Run(Task(name, "operator", (at,)), 10 * n, 4) for n, at in enumerate(places)]
    return profile_of(runs)


def profile_of(runs: list[Run]) -> Profile:
    kernels, _ = rows.kernels_of([runs], LINE, TABLE)
    return replace(profile(), kernels=kernels, modules=rows.module_sums(kernels),
                   accuracy=rows.accuracy_of(kernels))


def test_layers_alike_are_told_together():
    name = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<int, 4>(long)"
    lines = plain_text(layered(5, name)).splitlines()
    assert [line for line in lines if "* x5" in line or "mlp x5" in line] != []
    (row,) = [line for line in lines if "cat: CatArray" in line]
    assert row.split()[2:4] == ["5", "20"]  # calls, microseconds
    assert "  @ model.layers.*.mlp" in plain_text(layered(5, name))


def test_generated_kernels_alike_are_told_without_their_numbers():
    at = Place("aten.cat.default", "model.fc", "m.py:7")
    runs = [Run(Task(f"fused_cat{n}", "generated", (at,), work=Work(3000, 10.0, "float32")), k, 1)
            for k, n in enumerate(("", "_1", "_2"))]  # fmt: skip
    words = plain_text(profile_of(runs)).split()
    assert "fused_cat" in words and not {"fused_cat_1", "fused_cat_2"} & set(words)
    assert "fused_cat_2" in plain_text(profile_of(runs[2:]))


def test_long_names_of_modules_keep_their_end():
    deep = Place("aten.cat.default", "a_model_with.long_names.in_its_tree.of_modules.end", "x:1")
    told = plain_text(profile_of([Run(Task("cat", "operator", (deep,)), 0, 4)]))
    (line,) = [line for line in told.splitlines() if "@ " in line]
    assert line.strip().startswith("@ ..") and line.strip().endswith("of_modules.end")


def test_products_are_told_at_the_rate_of_most_of_them():
    fast = Work(10, 100.0, "bfloat16", "aten::mm", product=True)
    slow = Work(10, 1.0, "float32", "aten::bmm", product=True)
    runs = [Run(Task(w.operator, "operator", (), False, w), 0, 4) for w in (slow, fast)]
    line = replace(LINE, matmul_flops_per_s={"float32": 5e10, "bfloat16": 9e14})
    assert "900 Tflop/s" in " ".join(plain_text(replace(profile_of(runs), roofline=line)).split())


@pytest.mark.parametrize(("change", "message"), [
    (lambda d: d | {"schema_version": 99}, "not a profile of version"),
    (lambda d: {}, "not a profile of version"),
    (lambda d: d | {"kernels": [{}]}, "wrong at kernels.0"),
    (lambda d: {k: v for k, v in d.items() if k != "totals"}, "wrong at totals"),
    (lambda d: [], "not a profile of version"),
])
def test_other_data_is_refused_in_one_line(change, message):
    with pytest.raises(UsageError, match=message) as error:
        Profile.from_json(json.dumps(change(profile().to_dict())))
    assert "\n" not in str(error.value)


def test_half_a_profile_is_refused_in_one_line():
    with pytest.raises(UsageError, match="is not valid JSON"):
        Profile.from_json(json.dumps(profile().to_dict())[:-30])

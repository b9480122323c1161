"""What becomes of a GPU's trace, without a GPU: kernels of eager calls, of nodes in ranges, and of
a replayed graph."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from torchweld.observe.measure.recorder import record
from torchweld.observe.measure.trace import STEP, steps_of
from torchweld.observe.predict.work import Work
from torchweld.observe.profile import compiled, eager
from torchweld.observe.profile.opportunities import _EagerKernels
from torchweld.observe.profile.rows import Run, Task, kernels_of
from torchweld.observe.record.profile import Place, Roofline
from torchweld.runtime.regions import region_name
from torchweld.targets.find import named_target


def host(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid,
            "args": args}


def launch(number, ts, tid=1):
    return host("cuda_runtime", "cudaLaunchKernel", ts, 1, tid, correlation=number)


def kernel(name, number, ts, dur, cat="kernel"):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7,
            "args": {"correlation": number}}


def step(*events, length=1000):
    (found,) = steps_of([host("user_annotation", STEP, 0, length), *events])
    return found


def mlp_calls():
    bias, x, w = torch.randn(4), torch.randn(3, 5), torch.randn(5, 4)
    with torch.no_grad():
        return record(lambda: F.gelu(torch.addmm(bias, x, w)), {}).calls


EAGER = step(
    host("cpu_op", "aten::linear", 10, 50),
    host("cpu_op", "aten::addmm", 15, 40), launch(1, 20), launch(2, 30),
    host("cpu_op", "aten::gelu", 70, 20), launch(3, 75),
    host("cpu_op", "Optimizer.step", 100, 20), launch(4, 105),
    kernel("splitK", 1, 40, 5), kernel("gemm", 2, 50, 20), kernel("gelu", 3, 80, 7),
    kernel("adam", 4, 110, 9), kernel("Memset", 5, 120, 1, cat="gpu_memset"),
)


def test_a_kernel_that_begins_early_has_the_time_after_the_one_before_it():
    other = kernel("beside", 4, 45, 10) | {"tid": 8}  # a stream of its own
    found = step(kernel("a", 1, 40, 20), kernel("b", 2, 42, 30), kernel("c", 3, 43, 35), other)
    assert [(k.name, k.start_us, k.duration_us) for k in found.kernels] == [
        ("a", 40, 20), ("beside", 45, 10), ("b", 60, 12), ("c", 72, 6)]


def test_every_kernel_of_a_call_is_tied_and_the_longest_has_its_work():
    (runs,) = eager.kernel_runs(mlp_calls(), [EAGER])
    told = [(r.task.name, [p.op for p in r.task.places], r.task.work is not None) for r in runs]
    assert told == [
        ("splitK", ["aten.addmm.default"], False), ("gemm", ["aten.addmm.default"], True),
        ("gelu", ["aten.gelu.default"], True), ("adam", [], False), ("Memset", [], False)]
    assert [(r.start_us, r.duration_us) for r in runs[:2]] == [(40, 5), (50, 20)]
    assert [r.task.kind for r in runs] == ["operator"] * 4 + ["copy"]
    assert eager.tied_share([runs]) == 32 / 42


def task(node, kind="generated"):
    name = region_name("graph0", node)
    places = (Place(f"aten.{node}.default"),)
    return name, Task(node, kind, places, False, Work(10, 1.0, "float32"), name)


TASKS = dict([task("mm", "library"), task("gelu"), task("norm")])
NAMED = step(
    host("cpu_op", region_name("graph0", "mm"), 10, 30),
    host("cpu_op", "aten::mm", 12, 20), launch(1, 14),
    host("cpu_op", region_name("graph0", "gelu"), 50, 10), launch(2, 52),
    host("cpu_op", region_name("graph0", "norm"), 70, 20), launch(3, 72), launch(4, 80),
    host("cpu_op", "aten::sum", 100, 10), launch(5, 102),
    kernel("gemm_tn", 1, 20, 9), kernel("fused_gelu", 2, 55, 3), kernel("norm_partial", 3, 75, 4),
    kernel("norm_finish", 4, 85, 2), kernel("reduce", 5, 105, 2),
)


def test_kernels_in_ranges_are_those_of_the_nodes():
    found = compiled.launched_in(TASKS, NAMED)
    assert [(t.name, t.kind, bool(t.places), t.work is not None) for t in found] == [
        ("gemm_tn", "library", True, True), ("fused_gelu", "generated", True, True),
        ("norm_partial", "generated", True, True), ("norm_finish", "generated", True, False),
        ("reduce", "operator", False, False)]
    assert found[2].region == found[3].region == region_name("graph0", "norm")


def test_a_replay_is_tied_by_name_and_order():
    replay = step(
        host("cuda_runtime", "cudaMemcpyAsync", 5, 1, correlation=8),
        host("cuda_runtime", "cudaGraphLaunch", 10, 5, correlation=9),
        kernel("Memcpy DtoD", 8, 8, 2, cat="gpu_memcpy"),
        *(kernel(name, 9, 20 + 10 * k, 5) for k, name in enumerate(
            ("gemm_tn", "fused_gelu", "norm_partial", "norm_finish"))),
        kernel("reduce", 11, 90, 4),
    )
    (runs,) = compiled.replayed_runs(compiled.launched_in(TASKS, NAMED), [replay])
    assert [(r.task.name, [p.op for p in r.task.places]) for r in runs] == [
        ("Memcpy DtoD", []), ("gemm_tn", ["aten.mm.default"]),
        ("fused_gelu", ["aten.gelu.default"]), ("norm_partial", ["aten.norm.default"]),
        ("norm_finish", ["aten.norm.default"]), ("reduce", [])]
    assert [runs[0].task.kind, runs[1].task.kind] == ["copy", "library"]


def test_kernels_of_inductor_are_named():
    seen = step(kernel("triton_poi_fused_add_0", 1, 10, 5), kernel("gemm", 2, 20, 5))
    (runs,) = compiled.replayed_runs((), [seen])
    assert [(r.task.name, r.task.kind) for r in runs] == [
        ("triton_poi_fused_add_0", "generated"), ("gemm", "operator")]


def test_a_fill_before_a_product_is_no_product_of_its_own():
    """cuBLAS fills its workspace first: the call of eager is both kernels."""
    at = Place("aten.mm.default", "gate", "m.py:1")
    runs = [Run(Task("Memset", "copy", (at,)), 0, 1),
            Run(Task("gemm", "operator", (at,), False, Work(10, 5.0, "float32")), 1, 9)]
    line = Roofline("cuda", "A GPU", 1, 1.0, 1e9, 4e9, 1000, {"float32": 1e10}, 1e9)
    kernels, _ = kernels_of([runs], line, named_target("H100"))
    eager_kernels = _EagerKernels(kernels)
    assert eager_kernels.take(at, False) == (1, 0)
    assert eager_kernels.take(replace(at, module="up"), False) is None

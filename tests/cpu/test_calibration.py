"""Rates of this machine: what they decide, when they are kept, and when they are not believed."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import torchweld
from own_cache import with_runtime
from torchweld import pipeline
from torchweld.calibration import convolutions, gemm, halves, waiting
from torchweld.calibration import target as calibration
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import Comp, Extern
from torchweld.plan.decisions import Choice
from torchweld.targets import rates as prior
from torchweld.targets.find import target_of
from torchweld.targets.rates import ROWS, WAYS, favouring_convolutions, library_rate, rate_at
from torchweld.templates.attention.nest import nest_of

CPU = target_of("cpu")


def rates(**ways: float):
    """Multiply-adds a second, the same at all sizes."""
    return {f"float32 {way}": (rate,) * len(ROWS) for way, rate in ways.items()}


def planned(monkeypatch, function, *args, **ways: float) -> list:
    """The nodes of a function's graph on a machine of such rates, and what was decided of them."""
    torch._dynamo.reset()
    target = replace(CPU, rates=rates(**ways))
    monkeypatch.setattr(pipeline, "target_of", lambda device: target)
    fused = torchweld.fuse(function)
    with torch.no_grad():
        torch.testing.assert_close(fused(*args), function(*args), rtol=1e-4, atol=1e-4)
    (record,) = torchweld.records(fused)
    return record.graph.nodes, [d for d in record.decisions if isinstance(d, Choice)]


def layer(x, w, b, r):
    return F.linear(x, w, b)


def with_readers(x, w, b, r):
    """What follows is no activation that a call could do."""
    return F.gelu(F.linear(x, w, b)) * r


def tensors(rows=256, depth=320, columns=640):
    return (torch.randn(rows, depth), torch.randn(columns, depth) / 16, torch.randn(columns),
            torch.randn(rows, columns))  # fmt: skip


def test_a_library_that_is_faster_makes_the_product(monkeypatch):
    (node,), (told,) = planned(monkeypatch, layer, *tensors(), aten=1.3e11, own=1.0e11)
    assert isinstance(node, Extern) and node.target == "aten.addmm.default"
    assert told.template == "library/aten" and "own" in told.reason and told.predicted_us > 0


def test_a_library_that_is_slower_does_not(monkeypatch):
    (node,), (told,) = planned(monkeypatch, layer, *tensors(), aten=0.5e11, own=1.0e11)
    assert isinstance(node, Comp) and told.template == "gemm/cpu"


def test_onednn_is_asked_too(monkeypatch):
    ways = {"aten": 0.5e11, "onednn": 1.5e11, "own": 1.0e11}
    (node,), (told,) = planned(monkeypatch, layer, *tensors(), **ways)
    assert node.target == "torchweld.linear" and told.template == "library/onednn"


def test_what_follows_is_worth_a_slower_product(monkeypatch):
    """As fast as the library is for the product alone, and one pass over memory less."""
    nodes, _ = planned(monkeypatch, with_readers, *tensors(), aten=1.0e11, own=0.98e11)
    assert [type(n) for n in nodes] == [Comp]
    nodes, _ = planned(monkeypatch, with_readers, *tensors(), aten=3.0e11, own=1.0e11)
    assert [type(n) for n in nodes] == [Extern, Comp]


def test_equal_prices_leave_the_library(monkeypatch):
    (node,), _ = planned(monkeypatch, layer, *tensors(), aten=1.0e11, own=1.02e11)
    assert isinstance(node, Extern)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(gemm, "_rejected_at", {})
    return Options(cache_dir=with_runtime(tmp_path / "cache"), calibrate="auto")


@pytest.fixture(scope="module")
def without_rates(tmp_path_factory):
    """A cache that comes to have kernels, which take seconds to compile, but no rates."""
    root = with_runtime(tmp_path_factory.mktemp("rates") / "cache")
    return Options(cache_dir=root, calibrate="auto")


@pytest.fixture
def patient(monkeypatch):
    """Rates are measured although tests run beside."""
    monkeypatch.setattr(gemm, "_MOST_SPREAD", math.inf)
    monkeypatch.setattr(gemm, "_SECONDS", 600.0)
    monkeypatch.setattr(gemm, "waiting_share", lambda since: 0.0)


def test_rates_are_measured_once_and_kept(empty_cache, patient, monkeypatch):
    found = gemm.measured_rates(CPU, empty_cache)
    assert found.keys() <= {f"float32 {way}" for way in WAYS}
    assert all(len(r) == len(ROWS) and min(r) > 0 for r in found.values())
    monkeypatch.setattr(gemm, "_measured", None)  # not asked again
    assert gemm.measured_rates(CPU, empty_cache) == found


@pytest.mark.skipif("avx2" not in CPU.features, reason="no convolutions of our own")
def test_rates_of_convolutions_are_measured_once_and_kept(empty_cache, patient, monkeypatch):
    monkeypatch.setattr(convolutions, "_SECONDS", 600.0)
    monkeypatch.setattr(convolutions, "waiting_share", lambda since: 0.0)
    found = convolutions.measured_convolutions(CPU, empty_cache)
    assert found.keys() == favouring_convolutions("own").keys()
    assert all(len(r) == 2 and min(r) > 0 for r in found.values())
    monkeypatch.setattr(convolutions, "_measured", None)  # not asked again
    assert convolutions.measured_convolutions(CPU, empty_cache) == found


@pytest.mark.parametrize(
    "sign", [("_MOST_SPREAD", 0.5), ("waiting_share", lambda since: 0.3), ("_SECONDS", 0.0)]
)
def test_a_busy_machine_is_not_believed(without_rates, patient, monkeypatch, sign):
    monkeypatch.setattr(gemm, "_rejected_at", {})
    monkeypatch.setattr(gemm, *sign)
    assert gemm.measured_rates(CPU, without_rates) is None
    assert gemm.kept_rates(without_rates) is None


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not count")
def test_a_thread_that_waits_for_a_processor_is_seen(monkeypatch):
    """Two threads of this process, on one processor."""
    monkeypatch.setattr(waiting, "_has_quota", lambda: False)
    allowed = os.sched_getaffinity(0)
    stop = threading.Event()

    def work():
        os.sched_setaffinity(0, {min(allowed)})
        while not stop.is_set():
            hashlib.sha256(bytes(1 << 20))  # without Python's lock

    others = [threading.Thread(target=work) for _ in range(2)]
    before = waiting.Moment.now()
    for other in others:
        other.start()
    for _ in range(100):
        hashlib.sha256(bytes(1 << 20))
    waited = waiting.waiting_share(before)
    stop.set()
    for other in others:
        other.join()
    assert waited > gemm._MOST_WAITING


def test_a_slow_moment_slows_all_ways_of_a_round_alike():
    """The machine is twice as slow in two rounds of three, and recovers within the first."""
    taken = gemm.taken_s({"aten": [2.0, 1.0, 2.0, 2.0, 1.0], "own": [1.0, 1.0, 2.0, 2.0, 1.0]})
    assert taken == {"aten": 1.0, "own": 1.0}
    taken = gemm.taken_s({"aten": [1.0, 2.0, 2.0, 2.0, 2.0], "own": [1.8, 1.8, 1.8, 1.8, 1.8]})
    assert taken == {"aten": 1.0, "own": 0.9}


def test_a_quota_is_what_there_is_to_measure(monkeypatch, tmp_path):
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(waiting, "_QUOTA", quota)
    quota.write_text("150000 100000\n")
    assert waiting.Moment.now().waited_s == {}
    quota.write_text("max 100000\n")
    assert not waiting._has_quota()


def test_off_measures_nothing(empty_cache, monkeypatch):
    def fails(*args):
        raise AssertionError("measured")

    monkeypatch.setattr(gemm, "_measured", fails)
    fused = torchweld.fuse(layer, calibrate="off", cache_dir=empty_cache.cache_dir)
    fused(*tensors())
    assert torchweld.records(fused)


def test_rates_between_what_was_measured():
    known = {"float32 own": (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)}
    assert rate_at(known, "float32 own", 64) == pytest.approx(64)
    assert rate_at(known, "float32 own", 32) == pytest.approx(32)
    assert rate_at(known, "float32 own", 5000) == pytest.approx(1024)


def test_the_users_random_numbers_are_not_taken():
    before = torch.get_rng_state()
    gemm._calls(CPU, Options())
    assert torch.equal(torch.get_rng_state(), before)


def on_a_machine(monkeypatch, bfloat16: float) -> None:
    """Whose library makes so many multiply-adds a second in bfloat16, and 5e10 in float32."""
    found = {"bfloat16 aten": (bfloat16,) * len(ROWS)}
    monkeypatch.setattr(calibration, "measured_rates", lambda *args: rates(own=5e10, aten=5e10))
    monkeypatch.setattr(calibration, "measured_halves", lambda *args: found)
    torch._dynamo.reset()


def mlp(x, up, down):
    return F.gelu(x @ up) @ down


@pytest.mark.parametrize(("library", "nests"), [(3e11, 0), (2e10, 1)])
def test_products_of_16_bits_stay_apart_where_the_library_is_faster(monkeypatch, library, nests):
    on_a_machine(monkeypatch, bfloat16=library)
    args = [torch.randn(s).div(8).bfloat16() for s in ((8, 256, 64), (8, 64, 256), (8, 256, 64))]
    fused = torchweld.fuse(mlp, calibrate="auto")
    with torch.no_grad():
        torch.testing.assert_close(fused(*args), mlp(*args), rtol=0.05, atol=0.05)
    (record,) = torchweld.records(fused)
    found = [nest_of(n) is not None for n in record.graph.nodes if isinstance(n, Comp)]
    assert sum(found) == nests


@pytest.mark.parametrize(("library", "nests"), [(3e11, 0), (2e10, 3)])
def test_scores_of_16_bits_are_saved_where_the_library_is_faster(monkeypatch, library, nests):
    on_a_machine(monkeypatch, bfloat16=library)
    args = [torch.randn(8, 128, 64).bfloat16().requires_grad_() for _ in range(3)]
    fused = torchweld.fuse(lambda q, k, v: (q @ k.mT * 0.125).softmax(-1) @ v, calibrate="auto")
    fused(*args).sum().backward()
    nodes = [n for r in torchweld.records(fused) for n in r.graph.nodes if isinstance(n, Comp)]
    assert sum(nest_of(n) is not None for n in nodes) == nests


def test_a_rate_of_16_bits_is_measured_and_kept(tmp_path):
    options = Options(cache_dir=tmp_path)
    first = halves.measured_halves(torch.bfloat16, options)
    if first is not None:  # else the machine is busy
        assert list(first) == ["bfloat16 aten"] and len(first["bfloat16 aten"]) == len(ROWS)
        assert halves.measured_halves(torch.bfloat16, options) == first
        assert gemm.kept_rates(options, "bfloat16 rates") == first


@pytest.mark.parametrize(("flags", "known"), [("avx2 avx512_bf16", True), ("avx2 avx512f", False)])
def test_instructions_for_16_bits_are_assumed_to_be_used(monkeypatch, flags, known):
    monkeypatch.setattr(prior, "_of_processor", {"flags": flags, "vendor_id": "GenuineIntel"}.get)
    assert (library_rate(prior.prior_rates.__wrapped__(2), dtypes.bf16) is not None) == known


def test_a_computed_mask_is_none_in_memory_whatever_the_library(monkeypatch):
    """Its call would read rows x keys of it. Saved for a backward nothing is."""
    on_a_machine(monkeypatch, bfloat16=3e11)
    q, k, v = (torch.randn(2, 4, 160, 32).bfloat16() for _ in range(3))

    def alibi(q, k, v):
        i = torch.arange(q.shape[2])
        bias = (i[None] - i[:, None]).abs() * -0.1
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)[None, None])

    fused = torchweld.fuse(alibi, calibrate="auto")
    with torch.no_grad():
        torch.testing.assert_close(fused(q, k, v), alibi(q, k, v), rtol=0.05, atol=0.05)
    (record,) = torchweld.records(fused)
    assert not [n for n in record.graph.nodes if "scaled_dot" in getattr(n, "target", "")]


def test_a_busy_machine_has_no_rate_of_16_bits(monkeypatch):
    """Beside rates of another processor it would say that ours are faster."""
    monkeypatch.setattr(calibration, "measured_rates", lambda *args: None)
    monkeypatch.setattr(calibration, "measured_halves", lambda *args: pytest.fail("asked"))
    assert calibration.with_rates(CPU, [dtypes.bf16], Options()) == CPU

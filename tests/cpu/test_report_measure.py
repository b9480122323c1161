"""The figures of a report: each against a calculation by hand."""
from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.observe.measure.memory import added_bytes, live_bytes
from torchweld.observe.measure.paired import MIN_ROUNDS, time_paired
from torchweld.observe.measure.recorder import record
from torchweld.observe.report import ways as ways_module
from torchweld.observe.report.build import Plan, build_report
from torchweld.observe.report.measure import Workload, _eager_figures, measure
from torchweld.observe.report.ways import WAYS, Recipe, chosen_ways, fresh_inductor_cache

N = 100_003  # elements; 4 bytes each


def workload(model=None, train=False):
    return Workload(model or torch.nn.Linear(4, 4), (torch.ones(3, 4),), {}, train, "cpu")


def silent(what, done):
    pass


def traffic_of(call):
    calls = record(call, {}).calls
    return len(calls), sum(made.bytes_moved for made in calls)


def test_traffic_counts_reads_and_writes_once():
    x, y = torch.ones(N), torch.ones(N)
    assert traffic_of(lambda: x + y) == (1, 12 * N)
    assert traffic_of(lambda: x.add_(y)) == (1, 12 * N)


def test_the_report_and_the_profile_count_the_same_bytes():
    """An index reads some rows of a table: what a call is given is not what its kernel moves."""
    table, at = torch.randn(1000, 70), torch.arange(5)

    def step(at):
        return torch.nn.functional.layer_norm(table[at] + 1, (70,))

    profile = torchweld.profile(step, (at,), opportunities=False)
    moved = _eager_figures(None, lambda: step(at))["bytes_moved"]
    assert moved == sum(kernel.bytes for kernel in profile.kernels) < 4 * 1000 * 70


def test_traffic_counts_no_views_and_expanded_dimensions_once():
    x, row = torch.ones(50, 70), torch.ones(70)
    assert traffic_of(lambda: x.t().reshape(70, 50)[3:].unsqueeze(0)) == (0, 0)
    assert traffic_of(lambda: row.expand(50, 70).abs()) == (1, 4 * 70 + 4 * 50 * 70)
    assert traffic_of(lambda: torch.ones(0, 7).abs())[1] == 0


def test_traffic_includes_the_backward_pass():
    x = torch.ones(N, requires_grad=True)
    forward = traffic_of(lambda: (x * 2).sum())[0]
    assert traffic_of(lambda: (x * 2).sum().backward())[0] > forward


def test_added_memory_is_the_peak_not_the_sum():
    x = torch.ones(N)

    def call():
        for _ in range(3):
            y = x + 1
            del y
        return (x + 1) + 1

    assert added_bytes(call, "cpu") == pytest.approx(8 * N, abs=1024)


def test_live_memory_counts_shared_storage_once():
    before = live_bytes("cpu")
    x = torch.ones(N)
    views = [x[1:], x.view(-1), torch.nn.Parameter(x)]
    assert live_bytes("cpu") - before == 4 * N and len(views) == 3
    del x, views
    assert live_bytes("cpu") == before


def test_rounds_are_paired_and_turn():
    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    paired = time_paired(calls, "cpu", seconds=0)
    assert paired.rounds == MIN_ROUNDS == 5
    assert [len(t) for t in paired.times_ms.values()] == [5, 5, 5]
    runs = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert runs[3:12] == list("abcbcacab")
    assert paired.iqr_ms("b") >= 0


def test_progress_never_goes_back_and_ends_full():
    heard = []
    time_paired({"a": lambda: None}, "cpu", seconds=0.01, on_round=heard.append)
    assert heard == sorted(heard) and heard[-1] == 1.0


def test_baselines_come_in_order_and_torchweld_last():
    assert chosen_ways(None, "cpu") == ["eager", "inductor", "torchweld"]
    assert chosen_ways(None, "cuda")[-2:] == ["inductor-reduce-overhead", "torchweld"]
    mixed = chosen_ways("torchweld,inductor,eager,eager", "cpu")
    assert mixed == ["inductor", "eager", "torchweld"]
    assert chosen_ways("", "cpu") == ["torchweld"]


def test_the_inductor_cache_is_fresh_and_gone_after(monkeypatch):
    import os

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    with fresh_inductor_cache() as folder:
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder) and not list(folder.iterdir())
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere" and not folder.exists()


def test_a_baseline_that_fails_is_told_and_the_rest_measured(monkeypatch):
    def fail(model, inputs, train):
        raise RuntimeError("no compiler\nlong trace")

    monkeypatch.setitem(WAYS, "inductor", Recipe(fail))
    found, _ = measure(["eager", "inductor", "torchweld"], workload(), 0, silent)
    assert found[1].problem == "RuntimeError: no compiler" and found[1].timing is None
    assert found[0].timing and found[2].timing


def test_torchweld_itself_failing_is_an_error(monkeypatch):
    def fail(model, inputs, train):
        raise ZeroDivisionError

    monkeypatch.setitem(ways_module.WAYS, "torchweld", Recipe(fail))
    with pytest.raises(ZeroDivisionError):
        measure(["torchweld"], workload(), 0, silent)


def test_measuring_leaves_model_and_gradients_as_they_were():
    class Loss(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).square().mean()

    model = Loss(4, 4)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    measure(["eager", "torchweld"], workload(model, train=True), 0, silent)
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


class Dropping(torch.nn.Module):
    """With a dropout layer, or a call of dropout."""

    def __init__(self, layer: bool, always: bool = False):
        super().__init__()
        self.lin, self.always = torch.nn.Linear(8, 8), always
        self.drop = torch.nn.Dropout(0.5) if layer else torch.nn.Identity()
        self.called = not layer

    def forward(self, x):
        y = self.drop(self.lin(x))
        if self.called:
            y = torch.nn.functional.dropout(y, 0.5, self.training or self.always)
        return y.square().mean()


@pytest.mark.parametrize("model, within, told", [
    (Dropping(True), True, "dropout off"), (Dropping(False), True, "eval mode"),
    (Dropping(False, always=True), None, "draws random numbers"),
])  # fmt: skip
def test_dropout_breaks_no_contract(model, within, told):
    plan = Plan("dropping", Workload(model, (torch.randn(16, 8),), {}, True, "cpu"),
                ["eager", "torchweld"], 0.0)  # fmt: skip
    report = build_report(plan, silent)
    error = report.ways[-1].error
    assert (error and error.within_contract) is within
    assert any(told in warning for warning in report.warnings)
    assert all(part.training for part in model.modules())

"""A profile of models whose lines are known: what is tied to what, and what adds up."""

from __future__ import annotations

import inspect
import json
import time

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.api import records
from torchweld.core.errors import UsageError
from torchweld.observe.measure.memory import added_bytes
from torchweld.observe.measure.recorder import record
from torchweld.observe.measure.subject import Subject
from torchweld.observe.measure.trace import read_trace, walk
from torchweld.observe.measure.tracing import trace_steps
from torchweld.observe.profile.run import profile_subject
from torchweld.observe.record.profile import Profile
from torchweld.runtime.regions import PREFIX, named_regions


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(24, 40)
        self.down = torch.nn.Linear(40, 24)

    def forward(self, x):
        hidden = self.up(x)  # line 1
        hidden = torch.tanh(hidden)  # line 2
        hidden = hidden * hidden  # line 3
        return self.down(hidden)  # line 4


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Gated(), Gated()

    def forward(self, x):
        return self.second(self.first(x))


def line(number: int) -> str:
    """file:line of a marked line of Gated."""
    source, start = inspect.getsourcelines(Gated)
    offset = next(i for i, text in enumerate(source) if f"# line {number}" in text)
    return f"{__file__}:{start + offset}"


X = torch.randn(6, 24)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Twice()


def test_eager_kernels_are_tied_to_module_and_line(model):
    found = torchweld.profile(model, X)
    assert [(k.name, k.places[0].module, k.places[0].source) for k in found.kernels] == [
        (name, module, line(number))
        for block in ("first", "second")
        for name, module, number in (
            ("aten::addmm", f"{block}.up", 1), ("aten::tanh", block, 2),
            ("aten::mul", block, 3), ("aten::addmm", f"{block}.down", 4))]
    assert (found.totals.tied_share, found.way, found.target) == (1.0, "eager", "Twice")
    assert all(k.calls == 1 and k.measured_us > 0 and k.predicted_us > 0 for k in found.kernels)


def test_the_backward_takes_the_forward_s_places(model):
    found = torchweld.profile(lambda x: model(x).square().mean(), X, train=True)
    backward = {(k.places[0].op, k.places[0].source)
                for k in found.kernels if k.phase == "backward"}
    assert ("aten.tanh_backward.default", line(2)) in backward
    assert {("aten.mm.default", line(1)), ("aten.mm.default", line(4))} <= backward
    assert found.totals.tied_share == 1.0
    assert {k.places[0].module for k in found.kernels} >= {"first.up", "second.down", "first"}
    assert not any(k.name == "aten::add_" for k in found.kernels)  # each step starts afresh


def test_fused_kernels_are_tied_to_all_their_operations(model):
    found = torchweld.profile(torchweld.fuse(model, X), X)
    assert found.way == "torchweld"
    (fused, _) = [k for k in found.kernels if "tanh" in k.name]
    places = {(p.op, p.source) for p in fused.places}
    assert {("aten.tanh.default", line(2)), ("aten.mul.Tensor", line(3))} <= places
    assert found.totals.tied_share == 1.0


def test_what_is_fused_is_the_opportunity_that_eager_was_told(model):
    found = torchweld.profile(model, X)
    (best, *_) = found.opportunities
    assert [p.op for p in best.places] == ["aten.tanh.default", "aten.mul.Tensor"]
    assert (best.rank, best.repeats, best.intermediates) == (1, 2, ["float32[6, 40]"])
    assert best.saved_bytes == 2 * 2 * 6 * 40 * 4
    kernels = [found.kernels[k] for k in best.kernels]
    assert {k.name for k in kernels} == {"aten::tanh", "aten::mul"}
    assert best.measured_us == pytest.approx(sum(k.measured_us for k in kernels))


def test_sums_of_modules_and_the_timeline_agree_with_the_kernels(model):
    found = torchweld.profile(model, X)
    total = sum(k.measured_us for k in found.kernels)
    sums = {m.path: m for m in found.modules}
    assert sums[""].measured_us == pytest.approx(total)
    assert sums["first"].kernels == sums["second"].kernels == 4
    assert sums["first.up"].bytes == found.kernels[0].bytes
    assert [launch.kernel for launch in found.launches] == list(range(8))
    starts = [launch.start_us for launch in found.launches]
    assert starts == sorted(starts)


def test_memory_is_what_the_profiler_counts_and_names_its_makers(model):
    found = torchweld.profile(model, X).memory
    with torch.no_grad():
        assert found.peak_bytes == added_bytes(lambda: model(X), "cpu")
    assert sum(a.bytes for a in found.alive) == found.peak_bytes
    assert {a.place.op for a in found.alive} <= {
        "aten.addmm.default", "aten.tanh.default", "aten.mul.Tensor"}
    parameters = sum(p.nbytes for p in model.parameters())
    assert found.resident_bytes == parameters + X.nbytes
    assert max(level for _, level in found.timeline) == found.peak_bytes


def test_memory_of_a_fused_model_is_that_of_its_plan(model):
    found = torchweld.profile(torchweld.fuse(model, X), X).memory
    made = {(a.what, a.role) for a in found.alive}
    assert ("float32[6, 40]", "temporary") in made
    assert found.timeline and found.peak_at_us is not None
    assert max(level for _, level in found.timeline) == sum(a.bytes for a in found.alive)


def test_saved_activations_are_told_from_temporaries(model):
    def loss(x):
        return model(x).square().mean()

    found = torchweld.profile(loss, torch.randn(600, 24), train=True).memory
    roles = {(a.place.op, a.role) for a in found.alive if a.place}
    assert ("aten.tanh.default", "saved") in roles


def test_ranges_change_nothing_but_the_trace(model):
    fused = torchweld.fuse(model, X)
    with torch.no_grad():
        plain = fused(X)
        with named_regions():
            named, (step,) = fused(X), trace_steps(lambda: fused(X), "cpu", 1).steps
        (after,) = trace_steps(lambda: fused(X), "cpu", 1).steps
    assert torch.equal(plain, named)
    assert sum(e.name.startswith(PREFIX) for e in walk(step.operators)) == 6
    assert not any(e.name.startswith(PREFIX) for e in walk(after.operators))


def test_a_cpu_says_that_it_counts_no_energy(model):
    energy = torchweld.profile(model, X).energy
    assert energy.joules is None and "energy" in energy.problem


def test_recording_leaves_no_hooks_behind(model):
    before = F.linear
    record(lambda: model(X), {})
    assert torch.nn.modules.module._global_forward_hooks == {} and F.linear is before


def test_the_trace_has_a_track_of_operations(model, tmp_path):
    path = tmp_path / "trace.json"
    found = torchweld.profile(model, X, trace=path)
    track = [e for e in json.loads(path.read_text())["traceEvents"]
             if e.get("cat") == "torchweld"]
    names = {e["name"] for e in track}
    assert len(track) == found.steps * len(found.kernels)
    assert {"tanh @ first", "addmm @ second.down"} <= names
    assert track[0]["args"]["lines"] == [line(1)]
    assert len(read_trace(path).steps) == found.steps + 1  # it can be read again


def test_a_profile_is_data(model):
    found = torchweld.profile(model, X)
    assert Profile.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "Kernels, by time" in str(found)


def test_inductor_is_profiled_too():  # of one kernel: each takes 1.4 s
    found = torchweld.profile(lambda x: x.tanh() * 2, X, way="inductor")
    assert any("cpp_fused" in k.name for k in found.kernels)


def raises(x):
    raise ValueError("no\nsecond line")


@pytest.mark.parametrize(("target", "options", "message"), [
    (raises, {}, "raises raises ValueError: no"),
    (Gated(), {"train": True}, "no loss to train with"),
    (lambda x: x @ x, {}, "raises RuntimeError"),
    (torch.neg, {"way": "faster"}, "way='faster' is not valid"),
])
def test_what_does_not_run_is_told_in_one_line(target, options, message):
    with pytest.raises(UsageError, match=message) as error:
        torchweld.profile(target, X, **options)
    assert "\n" not in str(error.value)


def test_a_model_that_is_not_captured_is_profiled_all_the_same():
    def odd(x):
        return x[x > 0].sum()

    found = torchweld.profile(odd, X)
    assert any(k.name == "aten::sum" for k in found.kernels)


def test_the_function_stays_where_its_folder_is_imported():
    import torchweld.observe.measure.paired

    assert callable(torchweld.profile) and torchweld.observe.measure.paired


class Named(torch.nn.Module):
    """Dynamo compiles it anew for each name, to the same graph."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        return torch.tanh(x).sum() if self.name else x


def test_every_training_in_a_process_is_compiled():
    x = torch.randn(4, 5, requires_grad=True)
    for number in range(9):  # Dynamo by itself gives up after eight
        run = torchweld.fuse(Named(f"number {number}"))
        subject = Subject("named", run, (x,), train=True)
        found = profile_subject(subject, "torchweld", records=lambda run=run: records(run))
        assert "generated" in {k.kind for k in found.kernels}, number
        assert not any("nothing was compiled" in w for w in found.warnings)


def test_what_is_not_compiled_is_told():
    @torch.compiler.disable
    def own(x):
        return torch.tanh(x)

    run = torchweld.fuse(lambda x: own(x))
    warnings = torchweld.profile(run, torch.ones(3)).warnings
    assert any("nothing was compiled" in w for w in warnings)


class Own:
    """A result that torch.export does not know."""

    def __init__(self, value):
        self.value = value


class Boxed(Gated):
    def forward(self, x):
        return Own(super().forward(x))


def test_opportunities_are_found_where_export_gives_up():
    found = torchweld.profile(Boxed(), X)
    assert not any("no opportunities" in w for w in found.warnings)
    assert [p.short_op for p in found.opportunities[0].places][-2:] == ["tanh", "mul"]


@pytest.mark.parametrize(("asked", "sought"), [(None, False), (True, True)])
def test_opportunities_that_take_too_long_are_sought_if_asked_for(monkeypatch, asked, sought):
    monkeypatch.setattr("torchweld.observe.profile.run.capture_s", lambda *_: 60.0)
    found = torchweld.profile(Gated(), X, opportunities=asked)
    assert bool(found.opportunities) == sought
    assert sum("about 60 s" in warning for warning in found.warnings) == (not sought)


@pytest.mark.parametrize(("had", "warned"), [(1.0, 0), (0.5, 1)])
def test_a_process_that_has_half_a_processor_says_so(monkeypatch, had, warned):
    monkeypatch.setattr(time, "thread_time", lambda: had * time.perf_counter())
    warnings = torchweld.profile(Gated(), X, opportunities=False).warnings
    assert ["50% of the time" in w for w in warnings] == [True] * warned

"""Decisions by measurement, with a clock that the test sets: the fastest tiling is kept, what loses
is taken back, what the defaults refuse is tried, equal layers are measured once, by any model, and
time or memory runs out."""

from __future__ import annotations

from itertools import count

import pytest
import torch
import torch.nn.functional as F
from nets import H100, calls, captured, comps, formed

from torchweld import tuning
from torchweld.core import events
from torchweld.core.options import Options
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Reduce
from torchweld.plan.products.form import form_products
from torchweld.plan.search import plan
from torchweld.runtime import measured
from torchweld.runtime.cache import Artifacts
from torchweld.templates.gemm.choice import choose
from torchweld.tuning import Choices, Tuner, nodes_behind, region_of

M, K, N = 4096, 512, 1024


def meta(*shape):
    return torch.empty(shape, dtype=torch.bfloat16)


def layers(x, one, two):
    """Two equal layers."""
    for w, back in (one, two):
        x = F.relu(F.linear(x, w)) @ back
    return x


def graph_of_layers():
    weights = (meta(N, K), meta(N, K))
    return captured(lambda x, a, b, c, d: layers(x, (a, b), (c, d)), meta(M, K), *weights, *weights)


def graph_of_another():
    """One such layer, and other things around it."""
    weights = (meta(N, K), meta(N, K))
    return captured(lambda x, a, b: F.relu(F.linear(x.sin(), a)) @ b, meta(M, K), *weights)


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """Seconds by (is it a fused kernel, its tile); and what was timed."""
    timed: list[tuple[str, object]] = []
    rule = {"fused": lambda tiles: 1e-6 * tiles.block_n, "apart": 1e-3}

    def measure(graph, bundles, options):
        comp = next((n for n in graph.nodes if isinstance(n, Comp) and n.name in bundles), None)
        if len(graph.nodes) == 1 and comp is not None:
            tiles = bundles[comp.name]
            timed.append((comp.name, tiles))
            return rule["fused"](tiles)
        timed.append((graph.name, None))
        return rule["apart"]

    monkeypatch.setattr(tuning, "graph_seconds", measure)
    monkeypatch.setattr(tuning, "load_kernels", lambda *args, **others: {})
    monkeypatch.setattr(tuning, "open_cache", lambda options: None)
    monkeypatch.setattr(measured, "open_cache", lambda options: Artifacts(tmp_path))
    monkeypatch.setattr(measured, "device_identity", lambda device: (device,))
    monkeypatch.setattr(tuning.registry, "bundle_of", lambda comp, b, t, h, choose: choose())
    return rule, timed


def run(clock, seconds=60.0, graph_of=graph_of_layers):
    planned = plan(graph_of(), H100, Options())
    options, choices = Options(tune_seconds=seconds), Choices()
    tuner = Tuner(H100, options, choices, lambda graph: (graph, {}))

    def join(p):
        return form_products(p, H100, options, choices.choose, choices.leeway)

    after = tuner.tuned(planned, join)
    return planned, after, choices


def kinds(timed) -> set[str]:
    """Names of the kernels that were timed."""
    return {name for name, tiles in timed if tiles is not None}


def test_the_fastest_tiling_is_kept(clock):
    _, timed = clock
    _, after, choices = run(clock)
    for name in kinds(timed):
        tried = {tiles for n, tiles in timed if n == name}
        assert len(tried) > 2
        assert min(t.block_n for t in tried) in {m.best.block_n for m in choices.known.values()}
    assert not calls(after.graph)  # both layers stay fused, and back is ours too


def test_equal_layers_are_measured_once(clock):
    _, timed = clock
    run(clock)
    assert len(kinds(timed)) == 2  # with relu, and alone
    assert len(timed) == len(set(timed))


def test_what_the_defaults_refuse_is_tried(clock):
    planned, after, _ = run(clock)
    plain = form_products(planned, H100, Options(), Choices().choose)
    assert len(calls(plain.graph)) == 2 and not calls(after.graph)


def test_what_loses_is_taken_back(clock):
    rule, _ = clock
    rule["apart"] = 1e-9
    planned, after, _ = run(clock)
    assert calls(after.graph) == calls(planned.graph)
    reasons = [d.evidence for d in after.refusals if "measured" in d.evidence]
    assert len(reasons) == 2


def test_without_time_the_defaults_stand(clock):
    _, timed = clock
    planned, after, choices = run(clock, seconds=0.0)
    plain = form_products(planned, H100, Options(), Choices().choose)
    assert not timed and not choices.known
    assert [n.name for n in after.graph.nodes] == [n.name for n in plain.graph.nodes]


def test_what_cannot_be_timed_is_left_alone_and_told(clock, monkeypatch):
    def fails(graph, bundles, options):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(tuning, "graph_seconds", fails)
    events.clear()
    with pytest.warns(events.TorchweldWarning, match="tilings of .* could be timed"):
        _, after, choices = run(clock)
    assert not choices.known and len(comps(after.graph)) == 2
    assert any("is not timed: no such kernel" in event.message for event in events.events())


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("none left"), RuntimeError("CUDA error: out of memory")]
)
def test_a_tiling_that_finds_no_memory_is_skipped_and_told(clock, monkeypatch, error):
    rule, timed = clock
    run(clock)
    smallest = min(tiles.block_n for _, tiles in timed if tiles is not None)

    def fused(tiles):
        if tiles.block_n == smallest:
            raise error
        return 1e-6 * tiles.block_n

    rule["fused"] = fused
    monkeypatch.setattr(measured.MeasuredCache, "get", lambda *_: None)
    events.clear()
    _, after, choices = run(clock)
    found = choices.known.values()
    assert all(m.best.block_n > smallest for m in found) and any(m.failed for m in found)
    assert not calls(after.graph)
    assert any("out of memory" in event.message for event in events.events())


@pytest.mark.parametrize("apart", [1e-3, 1e-9])
def test_another_model_with_an_equal_region_measures_nothing(clock, apart):
    rule, timed = clock
    rule["apart"] = apart
    _, _, first = run(clock)
    timed.clear()
    _, after, second = run(clock, graph_of=graph_of_another)
    assert not timed and second.known == first.known
    fused = [c for c in comps(after.graph) if any(isinstance(i, Reduce) for i in c.body)]
    assert len(fused) == (2 if apart == 1e-3 else 0)


def test_what_is_kept_for_other_devices_or_spoiled_is_measured_anew(clock, monkeypatch, tmp_path):
    _, timed = clock
    run(clock)
    first = len(timed)
    monkeypatch.setattr(measured, "device_identity", lambda device: (device, "another"))
    run(clock)
    assert len(timed) == 2 * first
    for path in tmp_path.rglob("*.measured.json"):
        path.write_bytes(path.read_bytes().replace(b"best", b"bets"))
    run(clock)
    assert len(timed) == 3 * first


def test_what_time_cut_short_serves_this_graph_alone(clock, monkeypatch):
    _, timed = clock
    ticks = count()
    monkeypatch.setattr(tuning.time, "monotonic", lambda: float(next(ticks)))
    _, _, choices = run(clock, seconds=4.0)
    cut = len(timed)
    assert choices.known and cut > 0
    run(clock, seconds=1000.0)
    assert len(timed) > 2 * cut


def test_the_budget_is_shown_on_a_terminal(clock, monkeypatch, capsys):
    monkeypatch.setattr(tuning.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(tuning.time, "monotonic", lambda: 0.0)
    run(clock)
    shown = capsys.readouterr().err
    assert "products measured: 0 of 2, 0 of 60 s" in shown and shown.endswith("2 of 2, 0 of 60 s\n")


def test_a_region_means_what_its_nodes_mean():
    torch.manual_seed(0)
    small = [torch.randn(shape, dtype=torch.bfloat16) for shape in ((6, 16), (8, 16), (8, 16))]
    graph = captured(lambda x, a, b: F.gelu(F.linear(x, a)) * F.linear(x, b) - 1, *small)
    before, after = formed(graph)
    (comp,) = comps(after.graph)
    nodes = nodes_behind(before.graph, comp)
    assert len(nodes) == 3
    region = region_of(nodes, before.graph, frozenset(comp.writes))
    (wanted,) = run_graph(graph, small)
    given = dict(zip(graph.inputs, small))
    (found,) = run_graph(region, [given[n] for n in region.inputs])
    assert torch.equal(found, wanted)


def test_sums_beside_a_product_replace_what_reduced():
    def block(g, w, a):
        y = (g @ w) * a
        return y, y.float().sum(0)

    graph = captured(block, meta(2 * M, K), meta(K, 3 * N), meta(2 * M, 3 * N))
    before, after = formed(graph, choose)
    comp = next(n for n in after.graph.nodes if any(s.combine for s in getattr(n, "stores", ())))
    assert nodes_behind(before.graph, comp) == list(before.graph.nodes)

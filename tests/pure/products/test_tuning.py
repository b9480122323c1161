"""Decisions by measurement, with a clock that the test sets: the fastest tiling is kept, what loses
is taken back, equal layers are measured once, and time runs out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nets import H100, calls, captured, comps, formed

from torchweld import tuning
from torchweld.core.options import Options
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp
from torchweld.kernels.products import form_products
from torchweld.plan.search import plan
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


@pytest.fixture
def clock(monkeypatch):
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
    monkeypatch.setattr(tuning, "load_kernels", lambda *args: {})
    monkeypatch.setattr(tuning, "open_cache", lambda options: None)
    monkeypatch.setattr(tuning.cuda, "generate", lambda comp, b, t, h, choose: choose())
    return rule, timed


def run(clock, seconds=60.0):
    planned = plan(graph_of_layers(), H100, Options())
    options, choices = Options(tune_seconds=seconds), Choices()
    tuner = Tuner(H100, options, choices, lambda graph: (graph, {}))
    after = tuner.tuned(planned, lambda p: form_products(p, H100, options, choices.choose))
    return planned, after, choices


def test_the_fastest_tiling_is_kept(clock):
    _, timed = clock
    _, after, choices = run(clock)
    tried = {tiles for _, tiles in timed if tiles is not None}
    (best,) = choices.known.values()
    assert len(tried) > 2 and best.block_n == min(t.block_n for t in tried)
    assert len(comps(after.graph)) == 2  # both layers stay fused


def test_equal_layers_are_measured_once(clock):
    _, timed = clock
    run(clock)
    assert len({name for name, tiles in timed if tiles is not None}) == 1
    assert len(timed) == len(set(timed))


def test_what_loses_is_taken_back(clock):
    rule, _ = clock
    rule["apart"] = 1e-9
    planned, after, _ = run(clock)
    assert calls(after.graph) == calls(planned.graph)
    reasons = [d.evidence for d in after.refusals if "measured" in d.evidence]
    assert len(reasons) == 2


def test_without_time_the_defaults_stand(clock):
    _, timed = clock
    planned, after, choices = run(clock, seconds=-1.0)
    plain = form_products(planned, H100, Options(), Choices().choose)
    assert not timed and not choices.known
    assert [n.name for n in after.graph.nodes] == [n.name for n in plain.graph.nodes]


def test_what_cannot_be_timed_is_left_alone(clock, monkeypatch):
    def fails(graph, bundles, options):
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(tuning, "graph_seconds", fails)
    _, after, choices = run(clock)
    assert not choices.known and len(comps(after.graph)) == 2


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

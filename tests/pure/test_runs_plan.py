"""Sums by index in a GPU's plan: what makes their terms is computed in their kernels, and the plan
means what the program does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from products.nets import captured, on

from torchweld.capture import lower as lowering
from torchweld.capture.lowering import call
from torchweld.capture.lowering.call import spec_of
from torchweld.core.options import Options
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.targets.gpus import H100
from torchweld.templates.generate import generate_all, kernels_of
from torchweld.templates.runs.form import walk_of

aten = torch.ops.aten
NODES, EDGES = 40, 600


def messages(x, w, at, to):
    """Sums by `to` in any order, gradients by `at` in theirs."""
    sent = torch.zeros_like(x).index_add(0, to, x.sin()[at] * w.exp())
    zeros = torch.zeros_like(x)
    return [sent.tanh(), aten.index_put(zeros, [at], sent[to] * w, True) + 1,
            aten.embedding_dense_backward((x * 2)[at] * w, to, NODES, -1, False)]  # fmt: skip


@pytest.fixture
def planned(monkeypatch):
    torch.manual_seed(0)
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device="cuda:0"))
    monkeypatch.setattr("torchweld.capture.lowering.scatter._FEW_INDICES", 0)
    args = [torch.randn(NODES, 24), torch.randn(EDGES, 1),
            *(torch.randint(0, NODES, (EDGES,)) for _ in range(2))]  # fmt: skip
    made = Plan(on(captured(messages, *args), "cuda:0"), ())
    for name in H100.passes:
        made = PASSES[name].run(made, Context(H100, Options()))
    return made.graph, args


def test_the_plan_means_the_program(planned):
    graph, args = planned
    exact = messages(*(a.double() if a.is_floating_point() else a for a in args))
    for found, wanted in zip(run_graph(on(graph, "cpu"), args), exact, strict=True):
        torch.testing.assert_close(found.double(), wanted)


def test_terms_are_made_in_the_kernels_of_sums(planned):
    graph, _ = planned
    kernels = kernels_of(graph, H100)
    assert {n for k in kernels for n, _ in k.uses} == {
        n.name for n in graph.nodes if isinstance(n, Comp)}  # fmt: skip
    sums = [n for n in graph.nodes if isinstance(n, Comp) and any(s.combine for s in n.stores)]
    assert sorted(n.stores[0].combine for n in sums) == ["add", "add_runs", "add_runs"]
    stored = {b for n in graph.nodes if isinstance(n, Comp) for b in n.writes}
    terms = {b for n in sums for b in n.reads if graph.buffers[b].shape[:1] == (EDGES,)}
    assert not any(graph.buffers[b].dtype.is_float for b in terms & stored)
    bundles = generate_all(kernels)
    assert [len(bundles[n.name].sources) for n in sums if n.stores[0].combine == "add_runs"] == [
        2, 2]  # fmt: skip


@pytest.mark.parametrize(("length", "width"), [
    (8000, 333), (8000, 1), (10000, 333), (100000, 64), (1 << 20, 1), (300007, 4), (300007, 60),
    (1 << 22, 2), (50000, 1024),
])  # fmt: skip
def test_there_are_programs_for_all_multiprocessors(length, width):
    """A warp walks over its points one after the other: 16 for each multiprocessor, or as short
    walks as there may be."""
    runs = SimpleNamespace(length=length, width=width)
    walk = walk_of(runs, 132)
    blocks = -(-width // walk.columns)
    programs = length * blocks / (walk.steps * walk.stretches)
    assert programs >= 16 * 132 or walk.steps == 16
    assert walk.stretches * walk.columns >= 32 or programs < 4 * 132

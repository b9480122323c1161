"""What is told of a plan is the plan that is compiled: its bytes add up, and opportunities are the
groups of the program."""

from __future__ import annotations

import math

import pytest
import torch

import torchweld
from torchweld.api import records
from torchweld.core.options import Options
from torchweld.observe.measure.recorder import record
from torchweld.observe.measure.subject import Subject
from torchweld.observe.profile.opportunities import planned_graphs
from torchweld.observe.report.parts import graph_part
from torchweld.observe.report.work import bytes_moved
from torchweld.pipeline import plan_graph
from torchweld.templates.traffic import node_bytes
from torchweld.zoo.models import load


class Mlp(torch.nn.Module):
    """Two products whose weights are read transposed; `written`: its gelu as models write it."""

    def __init__(self, written=False):
        super().__init__()
        self.up, self.down = torch.nn.Linear(256, 512), torch.nn.Linear(512, 256)
        self.norm, self.written = torch.nn.LayerNorm(256), written

    def forward(self, x):
        h = self.up(x)
        if self.written:
            inner = math.sqrt(2 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))
            h = 0.5 * h * (1.0 + torch.tanh(inner))
        else:
            h = torch.nn.functional.gelu(h)
        return self.norm(x + self.down(h))


def planned(model, x):
    (found,) = planned_graphs(Subject("mlp", model, (x,), model=model), plan_graph, Options())
    return found


def test_what_several_kernels_repeat_counts_once():
    """The embeddings of a small GPT-2, and their sum, are in two kernels here."""
    target = load("gpt2", "tiny", dtype=torch.float32, device="cpu", train=False, seed=0)
    subject = Subject("gpt2", target.model, target.args, target.kwargs or {}, model=target.model)
    (found,) = planned_graphs(subject, plan_graph, Options())
    fusions = found.plan.fusions
    saved = sum(f.bytes_before - f.bytes_after for f in fusions)
    assert total(found.before) - total(found.plan.graph) == saved


def total(graph) -> int:
    return sum(node_bytes(n, graph.buffers, graph.hints) for n in graph.nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("written", [False, True])
def test_bytes_of_groups_and_of_the_whole_add_up(dtype, written):
    """A gelu that a library call takes in is a group, too."""
    model, x = Mlp(written).to(dtype), torch.randn(128, 256, dtype=dtype)
    found = planned(model, x)
    graph, fusions = found.plan.graph, found.plan.fusions
    bytes_after = {n.name: node_bytes(n, graph.buffers, graph.hints) for n in graph.nodes}
    assert {f.kernel: f.bytes_after for f in fusions}.items() <= bytes_after.items()
    saved = sum(f.bytes_before - f.bytes_after for f in fusions)
    assert total(found.before) - total(graph) == saved > 0


def compiled(model, x):
    fused = torchweld.fuse(model, x)
    with torch.no_grad():
        fused(x)
    return fused, records(fused)


def test_a_report_moves_as_many_bytes_as_its_groups_say():
    model, x = Mlp(), torch.randn(128, 256)
    fused, made = compiled(model, x)
    with torch.no_grad():
        eager = sum(call.bytes_moved for call in record(lambda: model(x), {}).calls)
    groups = [g for r in made for g in graph_part(r).groups]
    saved = sum(g.repeats * (g.bytes_before - g.bytes_after) for g in groups)
    assert bytes_moved(made) == pytest.approx(eager - saved, rel=0.01)
    assert sum(k.bytes for k in torchweld.profile(fused, x).kernels) == bytes_moved(made)


def test_opportunities_are_the_groups_that_are_compiled():
    model, x = Mlp(), torch.randn(128, 256)
    found = torchweld.profile(model, x, opportunities=True).opportunities
    groups = [g for r in compiled(model, x)[1] for g in graph_part(r).groups]

    def told(places, saved):
        return tuple(sorted(place.op for place in places)), saved

    wanted = [told(g.operations, g.repeats * (g.bytes_before - g.bytes_after)) for g in groups]
    assert sorted(told(o.places, o.saved_bytes) for o in found) == sorted(wanted)
    assert all(o.measured_us is not None and o.kernels for o in found)

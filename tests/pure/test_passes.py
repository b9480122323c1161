"""The passes of each target: that they exist, that each keeps a graph's meaning and its checks, and
that every kernel of a plan has a template that its target has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from products.nets import captured, on

from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.targets.find import named_target, target_of
from torchweld.targets.gpus import KNOWN
from torchweld.templates.generate import kernels_of
from torchweld.templates.registry import TEMPLATES

TARGETS = {t.name: t for t in (*KNOWN, named_target("unknown"), target_of("cpu"))}


def geglu(x, gate, up, down):
    return F.linear(F.gelu(F.linear(x, gate)) * F.linear(x, up), down)


def graph_for(target):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if target.kind == "cuda" else torch.float32
    shapes = ((128, 64), (256, 64), (256, 64), (64, 256))
    args = [torch.randn(s, dtype=dtype) / 8 for s in shapes]
    return on(captured(geglu, *args), "cuda:0" if target.kind == "cuda" else "cpu"), args


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_names_are_known(target):
    assert set(target.passes) <= PASSES.keys()
    assert set(target.templates) <= TEMPLATES.keys()
    assert "plan" in target.passes


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_each_pass_keeps_the_meaning(target):
    graph, args = graph_for(target)
    exact = geglu(*(a.double() for a in args))
    made = Plan(graph, ())
    for name in target.passes:
        before, made = made, PASSES[name].run(made, Context(target, Options()))
        if made.graph is not before.graph:
            check_graph(made.graph)
    (result,) = run_graph(on(made.graph, "cpu"), [a for a in args])
    torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_kernel_has_a_template_of_its_target(target):
    graph, _ = graph_for(target)
    made = Plan(graph, ())
    for name in target.passes:
        made = PASSES[name].run(made, Context(target, Options()))
    kernels = kernels_of(made.graph, target)
    used = {name for k in kernels for name, _ in k.uses}
    assert used == {n.name for n in made.graph.nodes if isinstance(n, Comp)}
    assert {k.template for k in kernels} <= set(target.templates)
    assert all(k.predicted_s > 0 for k in kernels)

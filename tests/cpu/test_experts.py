"""Mixtures of experts on a CPU: one graph, whatever goes to which expert, forward and backward."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import experts_cases as cases
import torchweld
from torchweld.core import events

ONE_GRAPH = [cases.FixedLoop, cases.Masked, cases.Copied]


def results(module, original, x, train):
    """Of a call: y, and the gradients of x and of the parameters of `original`."""
    if not train:
        with torch.no_grad():
            return [module(x)]
    x = x.clone().requires_grad_()
    original.zero_grad()
    y = module(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in original.parameters()]
    return [y.detach(), x.grad, *(g.clone() for g in gradients)]


def check(fused, model, x, train):
    """Against float64, where eager's error is the measure."""
    exact = copy.deepcopy(model).double()
    wanted = results(exact, exact, x.double(), train)
    for want, eager, ours in zip(
        wanted, results(model, model, x, train), results(fused, model, x, train)
    ):
        allowed = 3 * (eager - want).norm() + 1e-6 * want.norm() + 1e-12
        assert (ours - want).norm() <= allowed


def tied(model):
    """Each token is as near to any expert."""
    nn.init.zeros_(model.gate.weight)
    nn.init.zeros_(model.gate.bias)


def one_sided(model):
    """No token goes to the last experts."""
    with torch.no_grad():
        model.gate.bias[2:] = -1e4


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", ONE_GRAPH)
def test_any_number_of_tokens(kind, train):
    torch.manual_seed(0)
    model = kind(experts=3).train(train)
    fused = torchweld.fuse(model)
    for tokens in (24, 17):
        check(fused, model, torch.randn(tokens, 32), train)
    graphs = len(torchweld.records(fused))
    for tokens in (5, 40, 2):
        check(fused, model, torch.randn(tokens, 32), train)
    for change in (one_sided, tied):
        change(model)
        check(fused, model, torch.randn(17, 32), train)
    assert len(torchweld.records(fused)) == graphs
    pieces = 2 if kind is cases.FixedLoop else 1  # before its sizes are known, and after
    assert graphs == 2 * (pieces + train)


def test_copies_of_matrices_are_groups():
    model = cases.Copied()
    fused = torchweld.fuse(model, dynamic=False)
    results(fused, model, torch.randn(24, 32), True)
    forward, backward = torchweld.records(fused)
    nodes = (*forward.graph.nodes, *backward.graph.nodes)
    calls = [n.target for n in nodes if hasattr(n, "target")]
    assert not any(".bmm" in target or "index_put" in target for target in calls)
    assert sum("grouped_mm" in target for target in calls) == 4
    assert sum("grouped_outer" in target for target in calls) == 2
    assert sum("group_rows" in target for target in calls) == 1
    assert all(b.dtype.bits == 64 or _elements(b) < 24 * 2 * 32 * 48 for b in _made(forward.graph))


def _made(graph):
    return [b for name, b in graph.buffers.items() if name not in graph.inputs]


def _elements(buffer):
    return torch.Size(buffer.shape).numel()


def test_a_wrong_expert_raises():
    def chosen(table, x, ids):
        return torch.bmm(table[ids], x[:, :, None])

    table, x = torch.randn(4, 6, 5), torch.randn(3, 5)
    fused = torchweld.fuse(chosen)
    ids = torch.tensor([3, -4, 0])
    torch.testing.assert_close(fused(table, x, ids), chosen(table, x, ids))
    with pytest.raises(IndexError):
        fused(table, x, torch.tensor([0, 4, 1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["batched_mm", "grouped_mm"])
def test_forms_of_transformers(form, dtype):
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    config = mixtral.MixtralConfig(
        hidden_size=32, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2
    )
    config._experts_implementation = form
    torch.manual_seed(0)
    model = mixtral.MixtralSparseMoeBlock(config)
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    model = model.to(dtype)
    fused = torchweld.fuse(model)
    graphs = []
    for tokens in (16, 9, 21, 3):
        x = torch.randn(1, tokens, 32, dtype=dtype)
        eager, ours = (results(m, model, x, True) for m in (model, fused))
        for want, got in zip(eager, ours):
            scale = 4 * torch.finfo(dtype).eps * want.float().norm() + 1e-6
            assert (got.float() - want.float()).norm() <= scale * 4
        graphs.append(len(torchweld.records(fused)))
    assert graphs == [2, 4, 4, 4]


def test_what_data_decides_is_told():
    events.clear()
    torch.manual_seed(0)
    model = cases.HitLoop()
    fused = torchweld.fuse(model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for tokens in (24, 24, 11):
            check(fused, model, torch.randn(tokens, 32), False)
    told = [str(w.message) for w in told if issubclass(w.category, torchweld.TorchweldWarning)]
    assert sum("HitLoop is cut" in message for message in told) == 1
    assert any("experts_cases.py" in e.message for e in events.events() if "cut" in e.key)


def test_an_operator_that_torch_cannot_trace_is_noted_without_a_warning(recwarn):
    events.clear()
    targets, lengths = torch.randint(1, 5, (2, 3)), torch.full((2,), 3)

    def loss(x):
        return F.ctc_loss(x.log_softmax(-1), targets, torch.full((2,), 7), lengths) * 2

    fused, x = torchweld.fuse(loss), torch.randn(7, 2, 5)
    torch.testing.assert_close(fused(x), loss(x))
    assert not [w for w in recwarn if issubclass(w.category, torchweld.TorchweldWarning)]
    assert any("no meta kernel" in e.message for e in events.events() if "cut" in e.key)

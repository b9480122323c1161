"""Recurrent layers and loops of cells inside a fused model on a CPU."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import torchweld
from experts_cases import Cells, Handed
from torchweld.capture import torch_private
from torchweld.core import events


class Tagger(nn.Module):
    def __init__(self, kind, **how) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.layer = kind(8, 7, batch_first=True, **how)
        self.out = nn.Linear(14 if how.get("bidirectional") else 7, 5)

    def forward(self, x):
        return torch.tanh(self.out(self.layer(torch.relu(self.embed(x)))[0]))


def results(module, original, x):
    x = x.clone().requires_grad_()
    original.zero_grad()
    y = module(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in original.parameters())]


def check(fused, model, x):
    exact = copy.deepcopy(model).double()
    wanted = results(exact, exact, x.double())
    for want, eager, ours in zip(wanted, results(model, model, x), results(fused, model, x)):
        allowed = 3 * (eager - want).norm() + 1e-6 * want.norm() + 1e-12
        assert (ours - want).norm() <= allowed


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (nn.LSTM, {}), (nn.GRU, {"bidirectional": True, "num_layers": 2}),
        (nn.RNN, {"nonlinearity": "relu", "bias": False}), (nn.LSTM, {"proj_size": 7}),
    ],
)  # fmt: skip
def test_layers_are_calls(kind, how):
    torch.manual_seed(0)
    if "proj_size" in how:
        how = {"proj_size": 7}
        model = Tagger(lambda *a, **k: kind(8, 9, **k), **how)
    else:
        model = Tagger(kind, **how)
    fused = torchweld.fuse(model)
    steps = 3 if "proj_size" in how else 9  # which is unrolled
    for batch in (4, 3):
        check(fused, model, torch.randn(batch, steps, 6))
    graphs = len(torchweld.records(fused))
    check(fused, model, torch.randn(5, steps, 6))
    with torch.no_grad():
        x = torch.randn(5, steps, 6)
        torch.testing.assert_close(fused(x), model(x))
    assert graphs == 4
    if "proj_size" not in how:
        nodes = [n for r in torchweld.records(fused)[:1] for n in r.graph.nodes]
        assert sum("recurrent" in getattr(n, "target", "") for n in nodes) == 1
        assert len(nodes) < 9


class Between(nn.Module):
    """What it is given is computed again in the backward, what it gives is written over."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.layer = kind(8, 8)

    def forward(self, x):
        y, _ = self.layer(torch.sigmoid(x * 3))
        return torch.exp(-torch.relu(y * 2)) * 0.5


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_memory_of_the_graph_is_not_kept(kind):
    torch.manual_seed(0)
    model = Between(kind)
    fused = torchweld.fuse(model)
    for _ in range(3):
        check(fused, model, torch.randn(7, 5, 8))


def test_gradients_may_come_late_and_twice():
    torch.manual_seed(0)
    model = Tagger(nn.GRU)
    fused = torchweld.fuse(model)
    x = torch.randn(3, 4, 6)
    ways = []
    for module in (model, fused):
        model.zero_grad()
        waiting = [module(x * k) for k in range(1, 6)]  # more than are kept
        for y in waiting:
            y.sum().backward(retain_graph=True)
        waiting[0].sum().backward()
        ways.append([p.grad.clone() for p in model.parameters()])
    for eager, ours in zip(*ways):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


def test_dropout_between_layers():
    torch.manual_seed(0)
    model = Tagger(nn.LSTM, num_layers=2, dropout=0.5)
    fused = torchweld.fuse(model)
    x = torch.randn(3, 4, 6)
    one, other = (results(fused, model, x) for _ in range(2))
    assert not torch.equal(one[0], other[0])
    model.layer.dropout = 0.0
    check(fused, model, x)
    model.layer.dropout = 1.0 - 1e-9
    assert results(fused, model, x)[0].isfinite().all()


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_products_of_inputs_are_one(kind):
    torch.manual_seed(0)
    model = Cells(kind, 6, 7)
    fused = torchweld.fuse(model, dynamic=False)
    x = torch.randn(3, 5, 6)
    check(fused, model, x)
    forward = torchweld.records(fused)[0].graph.nodes
    assert len(forward) <= 2 * 5 + 3  # a product and a kernel for each step, and what is before


class Feedback(nn.Module):
    """A step writes what the next one multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        inputs, made = x.new_zeros(x.shape[0], 4, 6), []
        inputs[:, 0] = x
        for t in range(4):
            made.append(self.linear(inputs[:, t]))
            inputs[:, (t + 1) % 4] = made[-1].tanh()
        return torch.stack(made, 1)


def test_a_step_that_writes_the_next_ones_input_stays_in_its_place():
    torch.manual_seed(0)
    model, x = Feedback(), torch.randn(3, 6)
    fused = torchweld.fuse(model, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x))


class Opaque(nn.Module):
    """Dynamo does not look into it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @torch.compiler.disable
    def forward(self, x):
        return self.linear(x)


def test_silence_is_told():
    events.clear()
    model = Opaque()
    fused = torchweld.fuse(model)
    x = torch.randn(2, 4)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(fused(x), model(x))
    told = [str(w.message) for w in told if issubclass(w.category, torchweld.TorchweldWarning)]
    assert len(told) == 1 and "nothing of Opaque is compiled" in told[0]
    assert any("Opaque" in e.message for e in events.events())
    assert not torch._dynamo.config.allow_rnn  # others' compilations see no change


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_first_call_has_the_bits_of_later_ones(kind):
    """AOTAutograd watches a first call by a mode, under which torch would take a layer apart."""
    torch.manual_seed(0)
    torch.compiler.reset()
    layer, x = kind(6, 8, batch_first=True).eval(), torch.randn(3, 7, 6)
    fused = torchweld.fuse(layer)
    with torch.no_grad():
        first, second = fused(x)[0].clone(), fused(x)[0]
        assert torch.equal(first, second) and torch.equal(first, layer(x)[0])


_ONE_LAYER = torch_private._ONE_LAYER


def _with_axis(inp, hidden, params, has_biases, reverse=False):
    """As in torch 2.11."""
    out, states = _ONE_LAYER(inp, hidden, params, has_biases, reverse)
    return out, tuple(state.view(1, *given.shape) for state, given in zip(states, hidden))


@pytest.fixture(params=["as here", "as in torch 2.11"])
def _states_of_lstm(request, monkeypatch):
    if request.param == "as in torch 2.11":
        monkeypatch.setattr(torch_private, "_ONE_LAYER", _with_axis)
        monkeypatch.setattr(torch_private.decompositions, "one_layer_lstm", _with_axis)


@pytest.mark.usefixtures("_states_of_lstm")
def test_states_have_their_shape():
    torch.manual_seed(0)
    model, x = Handed(6, 7), torch.randn(4, 9, 6)
    fused = torchweld.fuse(model)
    found = fused(x.requires_grad_())
    torch.testing.assert_close(found, model(x))
    found.sum().backward()
    assert len(torchweld.records(fused)) == 2  # one graph, and its backward


class Projected(nn.Module):
    """Not oneDNN's, on a CPU."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.LSTM(6, 9, proj_size=6) for _ in range(2))

    def forward(self, x):
        x, (h, c) = self.first(x)
        return self.second(x, (h * 2, torch.tanh(c)))


@pytest.mark.usefixtures("_states_of_lstm")
def test_states_have_their_shape_ahead_of_time(recwarn):
    torch.manual_seed(0)
    model, x = Projected().eval(), torch.randn(5, 3, 6)
    with torch.no_grad():
        fused = torchweld.fuse(model, x)
        torch.testing.assert_close(fused(x), model(x))
    assert not [w for w in recwarn if issubclass(w.category, torchweld.TorchweldWarning)]

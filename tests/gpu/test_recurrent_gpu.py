"""Recurrent layers and experts on a GPU: the library's calls in the graph, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchweld
from experts_cases import Handed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Layer(nn.Module):
    def __init__(self, kind) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(24, 32), kind(32, 40, batch_first=True)

    def forward(self, x):
        return torch.tanh(self.layer(torch.relu(self.first(x)))[0] * 2)


def results(module, original, x):
    x = x.clone().requires_grad_()
    original.zero_grad()
    y = module(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in original.parameters())]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind):
    torch.manual_seed(0)
    model = Layer(kind).cuda()
    fused = torchweld.fuse(model)
    for batch in (4, 3, 5):
        x = torch.randn(batch, 9, 24, device="cuda")
        for want, got in zip(results(model, model, x), results(fused, model, x)):
            assert (got - want).norm() <= 1e-3 * want.norm()  # cuDNN's TF32 differs from run to run
    assert len(torchweld.records(fused)) == 4


def test_states_are_handed_on_in_one_graph():
    torch.manual_seed(0)
    model, x = Handed(24, 40).cuda(), torch.randn(4, 9, 24, device="cuda")
    fused = torchweld.fuse(model)
    for want, got in zip(results(model, model, x), results(fused, model, x)):
        assert (got - want).norm() <= 1e-3 * want.norm()
    assert len(torchweld.records(fused)) == 2


def test_chosen_matrices_stay():
    def chosen(table, x, ids):
        return torch.bmm(table[ids], x[:, :, None])[:, :, 0].relu()

    table, x = torch.randn(4, 6, 5, device="cuda"), torch.randn(9, 5, device="cuda")
    ids = torch.arange(9, device="cuda") % 4
    torch.testing.assert_close(
        torchweld.fuse(chosen)(table, x, ids), chosen(table, x, ids), rtol=1e-4, atol=1e-4
    )

"""Training: fused models learn as eager ones do."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.core import events


class Attention(nn.Module):
    """A transformer block of width 16: norms, attention, a gated MLP."""

    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(16), nn.RMSNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def language_model():
    return nn.Sequential(nn.Embedding(11, 16), Attention(), nn.Linear(16, 11))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def mlp():
    return nn.Sequential(nn.Linear(13, 17), nn.GELU("tanh"), nn.Linear(17, 3))


CASES = {
    "language model": (language_model, lambda: torch.randint(0, 11, (3, 7)), (3, 7), 11),
    "convolutions": (convolutions, lambda: torch.randn(4, 3, 9, 9), (4,), 5),
    "mlp": (mlp, lambda: torch.randn(6, 13), (6,), 3),
}  # fmt: skip


pytestmark = pytest.mark.filterwarnings("error::torchweld.core.events.TorchweldWarning")


@pytest.fixture(autouse=True)
def _fresh():
    events.clear()
    torch._dynamo.reset()
    torch.manual_seed(0)


def steps(model, batches, optimizer):
    """The loss of each step."""
    losses = []
    opt = optimizer(model.parameters())
    for x, target in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), target.flatten())
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", CASES)
def test_learns_as_eager_does(name):
    make, inputs, shape, classes = CASES[name]
    reference = make().double()
    batches = [(inputs(), torch.randint(0, classes, shape)) for _ in range(4)]
    wide = [(x.double() if x.is_floating_point() else x, t) for x, t in batches]
    eager, fused = copy.deepcopy(reference).float(), copy.deepcopy(reference).float()
    sgd = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)  # noqa: E731
    exact = steps(reference, wide, sgd)
    error = [abs(a - b) for a, b in zip(steps(eager, batches, sgd), exact)]
    fused_error = [abs(a - b) for a, b in zip(steps(torchweld.fuse(fused), batches, sgd), exact)]
    assert max(fused_error) <= 3 * max(error) + 1e-6
    for (key, a), b, c in zip(
        reference.state_dict().items(), eager.state_dict().values(), fused.state_dict().values()
    ):
        bound = 3 * (b.double() - a.double()).abs().max() + 1e-6
        assert (c.double() - a.double()).abs().max() <= bound, key


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    make, inputs, _, _ = CASES[name]
    model, x = make(), inputs()
    fused = torchweld.fuse(copy.deepcopy(model))
    weight = torch.randn_like(model(x))
    model.zero_grad()
    (model(x) * weight).sum().backward()
    (fused(x) * weight).sum().backward()
    for (key, p), q in zip(model.named_parameters(), fused.parameters()):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5, msg=key)


def test_gradients_accumulate_and_inputs_get_theirs():
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
    fused = torchweld.fuse(copy.deepcopy(model))
    x, y = (torch.ones(2, 5, requires_grad=True) for _ in range(2))
    for _ in range(2):
        model(x).sum().backward()
        fused(y).sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
    torch.testing.assert_close(fused[0].weight.grad, model[0].weight.grad)


def test_frozen_parameters():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))
    model[0].requires_grad_(False)
    fused = torchweld.fuse(model)
    fused(torch.randn(3, 5)).sum().backward()
    assert model[0].weight.grad is None and model[2].weight.grad is not None


def test_dropout_repeats_with_the_seed():
    fused = torchweld.fuse(nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5)))
    x, runs = torch.randn(16, 32), []
    for _ in range(2):
        torch.manual_seed(5)
        fused.zero_grad()
        out = fused(x)
        out.sum().backward()
        runs.append((out.detach(), fused[0].bias.grad.clone()))
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)
    torch.testing.assert_close(runs[0][1], 2.0 * (runs[0][0] != 0).sum(0))


def test_retained_graph_and_two_losses():
    fused = torchweld.fuse(nn.Linear(4, 4))
    out = fused(torch.ones(2, 4))
    out.sum().backward(retain_graph=True)
    first = fused.weight.grad.clone()
    out.sum().backward()
    torch.testing.assert_close(fused.weight.grad, 2 * first)


def test_autocast_training():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))
    fused, x = torchweld.fuse(copy.deepcopy(model)), torch.randn(16, 8)
    for m in (model, fused):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = m(x).square().mean()
        loss.backward()
    for p, q in zip(model.parameters(), fused.parameters()):
        assert q.grad.dtype == torch.float32
        torch.testing.assert_close(q.grad, p.grad, rtol=0.05, atol=0.02)

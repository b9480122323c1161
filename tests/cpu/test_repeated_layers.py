"""Models of equal layers, which are planned once and put back, compute what eager does: from an
empty cache, and from a full one."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld

WIDTH = 32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x):
        split = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.into(x).chunk(3, -1))
        x = self.norms[0](x + F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


def small() -> nn.Module:
    """A kernel of the plan has the work of two."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())


def model(count: int, layer=Layer) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(*(layer() for _ in range(count)))
    for parameter in made.parameters():  # norms and biases of each layer unlike the others'
        nn.init.normal_(parameter, std=0.2)
    return made


def put_back(fused) -> list[bool]:
    return ["put layers back" in r.timings_s for r in torchweld.records(fused)]


@pytest.mark.parametrize("layer, count", [(Layer, 10), (small, 29)])
def test_inference_from_an_empty_and_from_a_full_cache(layer, count, tmp_path):
    made, x = model(count, layer), torch.randn(2, 7, WIDTH)
    expected = copy.deepcopy(made).double()(x.double())
    for cached in (False, True):
        torch.compiler.reset()
        with torch.no_grad():
            fused = torchweld.fuse(made, x, cache_dir=tmp_path, calibrate="off")
            torch.testing.assert_close(fused(x).double(), expected, rtol=1e-5, atol=1e-5)
            assert put_back(fused) == [True]
            assert [r.cached for r in torchweld.records(fused)] == [cached]
            for parameter in made.parameters():  # each layer reads its own
                parameter.add_(0.01)
            torch.testing.assert_close(fused(x), made(x), rtol=1e-5, atol=1e-5)
            for parameter in made.parameters():
                parameter.sub_(0.01)


def test_a_graph_that_would_lose_few_calls_is_planned_whole(tmp_path):
    """The whole is what is planned where a plan does not repeat as its layers do."""
    torch.compiler.reset()
    with torch.no_grad():
        x = torch.randn(2, 7, WIDTH)
        fused = torchweld.fuse(model(21, small), x, cache_dir=tmp_path, calibrate="off")
        fused(x)
    assert put_back(fused) == [False]


def test_gradients_are_those_of_each_layer(tmp_path):
    made, x = model(10), torch.randn(2, 7, WIDTH)
    wide = copy.deepcopy(made).double()
    wide(x.double()).square().sum().backward()
    fused = torchweld.fuse(made, cache_dir=tmp_path, calibrate="off")
    fused(x).square().sum().backward()
    assert put_back(fused) == [True, True]
    for one, other in zip(made.parameters(), wide.parameters()):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4, momentum=0.3)

    def forward(self, x):
        return torch.relu(x + self.norm(self.convolution(x)))


def test_running_statistics_of_each_layer_are_written_in_each_step(tmp_path):
    """Their writes are planned apart from the layers, for the cache of plans, too."""
    made, steps = model(18, Block).double(), torch.randn(3, 2, 4, 6, 6).double()
    wanted = copy.deepcopy(made)
    fused = torchweld.fuse(made, cache_dir=tmp_path, calibrate="off")
    for x in steps:
        (fused(x) + fused(x + 1)).square().sum().backward()
        (wanted(x) + wanted(x + 1)).square().sum().backward()
        torch.testing.assert_close(made.state_dict(), wanted.state_dict())
    assert all(put_back(fused))
    written = torchweld.records(fused)[0].graph.nodes[-2:]
    assert sorted(len(n.writes) for n in written) == [18, 36]
    for one, other in zip(made.parameters(), wanted.parameters()):
        torch.testing.assert_close(one.grad, other.grad)
    torch.compiler.reset()
    again = torchweld.fuse(copy.deepcopy(wanted), cache_dir=tmp_path, calibrate="off")
    torch.testing.assert_close(again(steps[0]), wanted(steps[0]))
    torch.testing.assert_close(torchweld.unfuse(again).state_dict(), wanted.state_dict())
    assert [r.cached for r in torchweld.records(again)] == [True]

"""Networks of convolutions in 16 bits on a GPU: what surrounds them, in both layouts, whole sizes
and odd ones, in training, with batches that vary."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.api import dynamo_backend
from torchweld.core.events import TorchweldWarning
from torchweld.exact.verify import verify

pytestmark = pytest.mark.hopper


class Normed(nn.Module):
    """A window, a norm, an activation."""

    def __init__(self, given, made, window, sides: int = 2, activation=F.relu, **how) -> None:
        super().__init__()
        self.convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[sides - 1](given, made, window, **how)
        self.norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[sides - 1](made)
        self.activation = activation

    def forward(self, x):
        return self.activation(self.norm(self.convolution(x)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = Normed(width, width, 3, padding=1, bias=False)
        self.other = Normed(width, width, 3, padding=1, bias=False, activation=nn.Identity())

    def forward(self, x):
        return F.relu(self.other(self.one(x)) + x)


class Branches(nn.Module):
    """Windows of several sizes on one image, side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Normed(width, 32, k, padding=k // 2) for k in (1, 3, 5))

    def forward(self, x):
        return torch.cat([part(x) for part in self.parts], 1)


class Halves(nn.Module):
    """Some channels of an image each, in windows of their own, and all of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = Normed(width, width, 3, padding=1)
        parts = (width // 2 + 8, width // 2 - 8)
        self.parts = nn.ModuleList(Normed(n, width, 3, padding=d, dilation=d)
                                   for n, d in zip(parts, (1, 2)))  # fmt: skip

    def forward(self, x):
        x = self.before(x)
        first, second = x.split([part.convolution.in_channels for part in self.parts], 1)
        return self.parts[0](first) + self.parts[1](second) + x


class Diffusion(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(2))
        self.same = nn.Conv2d(width, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, 2, 1)

    def forward(self, x):
        x = self.first(x)
        x = x + self.same(F.silu(self.norms[0](x)))
        return F.interpolate(self.down(F.silu(self.norms[1](x))), scale_factor=2.0)


CASES = {
    "colours": (Normed(3, 64, 7, stride=2, padding=3), (4, 3, 64, 48)),
    "colours, steps of four": (Normed(3, 96, 11, stride=4, padding=2), (3, 3, 64, 68)),
    "colours, short windows": (Normed(3, 48, 3, padding=1), (2, 3, 33, 31)),
    "grey": (Normed(1, 32, 5, padding=2), (2, 1, 40, 37)),
    "long windows": (Normed(2, 32, 16, sides=1, stride=4, padding=6), (3, 2, 400)),
    "one side": (Normed(40, 64, 5, sides=1, padding=2), (3, 40, 203)),
    "volumes": (Normed(32, 64, 3, sides=3, padding=1), (2, 32, 6, 10, 9)),
    "steps": (Normed(64, 128, 3, stride=2, padding=1), (3, 64, 28, 20)),
    "groups": (Normed(128, 128, 3, padding=1, groups=4), (3, 128, 15, 14)),
    "narrow groups": (Normed(128, 128, 3, padding=1, groups=32), (3, 128, 15, 14)),
    "narrow groups, steps": (Normed(120, 120, 3, stride=2, padding=1, groups=5), (3, 120, 16, 18)),
    "groups of no whole lines": (Normed(120, 180, 3, padding=1, groups=3), (4, 120, 75, 75)),
    "groups of pixels": (Normed(96, 144, 1, groups=6), (3, 96, 15, 14)),
    "halves": (Halves(64), (3, 64, 15, 14)),
    "holes": (Normed(64, 64, 3, padding=2, dilation=2, activation=F.gelu), (2, 64, 20, 23)),
    "block": (Block(64), (5, 64, 19, 21)),
    "branches": (Branches(64), (3, 64, 14, 14)),
    "diffusion": (Diffusion(64), (2, 4, 32, 32)),
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("name", CASES)
def test_networks(name: str, last: bool, train: bool):
    model, shape = CASES[name]
    dtype = torch.float16 if name == "steps" else torch.bfloat16
    how = torch.channels_last if last and len(shape) == 4 else torch.contiguous_format
    torch.manual_seed(0)
    model = model.to("cuda", dtype).train(train).to(memory_format=how)
    x = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=how)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TorchweldWarning)
        report = verify(model, torchweld.fuse(model), x, train=train)
    assert report.ok, str(report)


@pytest.mark.parametrize("turned", [False, True])
def test_rows_that_lie_in_another_order(turned: bool):
    """Steps outermost: what a recurrent layer works on."""
    torch.manual_seed(0)
    model = Normed(64, 96, 3, sides=1, padding=1).to("cuda", torch.bfloat16).eval()

    def run(x):
        y = model(x)
        return y.permute(2, 0, 1).contiguous() if turned else y

    x = torch.randn(50, 3, 64, device="cuda", dtype=torch.bfloat16).permute(1, 2, 0)
    with torch.no_grad():
        exact = Normed(64, 96, 3, sides=1, padding=1).to("cuda", torch.float64).eval()
        exact.load_state_dict(model.state_dict())
        wanted = exact(x.double())
        wanted = wanted.permute(2, 0, 1) if turned else wanted
        got = torch.compile(run, backend=dynamo_backend, dynamic=False)(x)
    torch.testing.assert_close(got.double(), wanted, atol=0.02, rtol=0.02)


def test_batches_that_vary():
    model = Block(64).to("cuda", torch.bfloat16).eval()
    fused = torchweld.fuse(model, dynamic=True)
    for batch in (3, 8, 5, 1):
        x = torch.randn(batch, 64, 20, 20, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            torch.testing.assert_close(fused(x), model(x), atol=0.05, rtol=0.05)

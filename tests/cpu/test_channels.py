"""Convolutions with channels last inside: exact, up to date, and laid out as in eager outside."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.core.dtypes import to_torch
from torchweld.exact.verify import verify
from torchweld.ir.nodes import Extern
from torchweld.plan.cpu_products import narrow_types


def _statistics(model: nn.Module) -> nn.Module:
    """BatchNorms as after training: variances far from one, scales negative, zero and small."""
    generator = torch.Generator().manual_seed(1)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.running_mean.normal_(generator=generator)
        norm.running_var.uniform_(0.01, 9.0, generator=generator)
        with torch.no_grad():
            norm.weight.normal_(generator=generator)[0] = 0
            norm.bias.normal_(generator=generator)
    return model


CONVOLUTION = "aten.convolution.default"
has_instructions = pytest.mark.skipif(
    torch.bfloat16 in map(to_torch, narrow_types()),
    reason="convolutions in bfloat16 are made in float32, without instructions for them",
)


class Block(nn.Module):
    """Residual: convolution, norm, relu, convolution, norm, pooled."""

    def __init__(self, channels: int = 6, width: int = 7, **how) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, **how)
        self.pool = nn.MaxPool2d(2, 1)
        self.up = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm_up = nn.BatchNorm2d(width)
        self.down = nn.Conv2d(width, channels, 1)
        self.norm_down = nn.BatchNorm2d(channels)

    def forward(self, x):
        x = self.pool(self.stem(x).relu())
        y = self.norm_down(self.down(self.norm_up(self.up(x)).relu()))
        return F.relu(x + y), y.mean((2, 3))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.inner = nn.Conv2d(5, 8, 3, stride=2, padding=1)
        self.back = nn.ConvTranspose2d(8, 5, 2, stride=2)
        self.last = nn.Conv2d(10, 3, 3, padding=1)

    def forward(self, x):
        wide = F.silu(self.first(x))
        deep = self.back(F.silu(self.inner(F.avg_pool2d(wide, 1))))
        up = F.interpolate(self.inner(wide), scale_factor=2)
        return self.last(torch.cat((wide, deep), 1)), up


class Diffusion(nn.Module):
    """GroupNorm and SiLU, depthwise and grouped convolutions, attention over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.grouped = nn.Conv2d(8, 12, 1, groups=2)

    def forward(self, x):
        h = self.depthwise(F.silu(self.norm(self.inp(x))))
        q = h.flatten(2).transpose(1, 2)
        h = h + F.scaled_dot_product_attention(q, q, q).transpose(1, 2).view_as(h)
        return self.grouped(h)


IMAGE = (2, 3, 12, 10)
HALF = (torch.bfloat16, torch.float16)


def _same_strides(model, fused, x) -> None:
    with torch.no_grad():
        expected, got = model(x), fused(x)
    if isinstance(expected, torch.Tensor):
        expected, got = (expected,), (got,)
    assert [t.stride() for t in got] == [t.stride() for t in expected]


def _check(model: nn.Module, x: torch.Tensor, train: bool = False):
    fused = torchweld.fuse(model)
    report = verify(model, fused, x, train=train)
    assert report.ok, str(report)
    _same_strides(model, fused, x)
    return fused


def _copied(fused) -> list[str]:
    return [e.text for r in torchweld.api.records(fused) for e in r.events if "copied" in e.kind]


def _nodes(fused) -> dict:
    return {n.name: n for r in torchweld.api.records(fused) for n in r.graph.nodes}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("make", [Block, UNet, Diffusion])
def test_inference(make, dtype):
    torch.manual_seed(0)
    model = _statistics(make()).to(dtype).eval()
    fused = _check(model, torch.randn(IMAGE, dtype=dtype))
    if make is Block and dtype in HALF:
        assert not _copied(fused)


@pytest.mark.parametrize("how", [dict(stride=2), dict(dilation=2), dict(padding=(2, 1))])
def test_geometries(how):
    torch.manual_seed(0)
    _check(_statistics(Block(**how)).bfloat16().eval(), torch.randn(IMAGE).bfloat16())


@pytest.mark.parametrize("shape", [(1, 3, 5, 5), (0, 3, 5, 5), (3, 3, 17, 1)])
def test_odd_images(shape):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, (3, 1)), nn.ReLU(), nn.Conv2d(5, 1, 1)).bfloat16()
    fused = torchweld.fuse(model.eval())
    x = torch.randn(shape).bfloat16()
    torch.testing.assert_close(fused(x), model(x))
    _same_strides(model, fused, x)


def test_a_channels_last_model_is_not_copied():
    torch.manual_seed(0)
    model = _statistics(Block()).bfloat16().eval().to(memory_format=torch.channels_last)
    x = torch.randn(IMAGE).bfloat16().to(memory_format=torch.channels_last)
    fused = _check(model, x)
    assert not _copied(fused)
    assert not any(name.endswith("_channels_last") for name in _nodes(fused))


@has_instructions
@pytest.mark.parametrize("make", [Block, UNet])
def test_a_batch_of_one(make):
    """Kernels write its images without a batch, and calls read them with channels last."""
    torch.manual_seed(0)
    fused = _check(_statistics(make()).bfloat16().eval(), torch.randn(1, *IMAGE[1:]).bfloat16())
    calls = [n for n in _nodes(fused).values() if getattr(n, "target", None) == CONVOLUTION]
    assert calls and all(node.args[0].strides[1] == 1 for node in calls)


def test_an_image_is_copied_once():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return (self.one(x).relu() + self.two(x)).sum(1)

    fused = _check(Twice().bfloat16().eval(), torch.randn(IMAGE).bfloat16())
    assert len([n for n in _nodes(fused) if n.startswith("copy_")]) <= 1


@has_instructions
def test_a_large_weight_is_turned_at_each_call():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(160, 192, 3, padding=1), nn.ReLU(), nn.Conv2d(192, 6, 3))
    fused = _check(model.bfloat16().eval(), torch.randn(2, 160, 5, 5).bfloat16())
    first, second = (n for n in _nodes(fused).values() if isinstance(n, Extern))
    assert (first.args[1].strides[1], second.args[1].strides[1]) == (1, 9)
    x = torch.randn(2, 160, 5, 5).bfloat16()
    with torch.no_grad():
        model[0].weight.mul_(-2)
        torch.testing.assert_close(fused(x), model(x), rtol=0.02, atol=0.02)


def test_training():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3)
    )
    _check(model.bfloat16(), torch.randn(IMAGE).bfloat16(), train=True)


class Dense(nn.Module):
    """Images that grow by what is convolved of them."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8 + 4 * k, 4, 3, padding=1) for k in range(3))

    def forward(self, x):
        for conv in self.convs:
            x = torch.cat([x, conv(x.relu())], 1)
        return x


@has_instructions
def test_gradients_of_joined_images_are_laid_out_as_the_library_does():
    """Each is of a part of a gradient, which lies as it did."""
    torch.manual_seed(0)
    model, x = Dense().bfloat16(), torch.randn(2, 8, 9, 9).bfloat16().requires_grad_()
    fused = torchweld.fuse(model)
    assert verify(model, fused, (x,), train=True).ok
    (backward,) = (r.graph for r in torchweld.records(fused) if r.kind == "backward")
    made = [backward.buffers[n.outputs[0]] for n in backward.nodes
            if isinstance(n, Extern) and "convolution_backward" in n.target]  # fmt: skip
    assert len(made) == 3 and all(b.strides[1] == 1 for b in made)


@has_instructions
def test_changes_between_calls_are_seen():
    torch.manual_seed(0)
    model = _statistics(Block()).bfloat16().eval()
    fused, x = torchweld.fuse(model), torch.randn(IMAGE).bfloat16()
    with torch.no_grad():
        fused(x)
        model.up.weight.mul_(2)
        model.norm_up.running_var.add_(1)
        torch.testing.assert_close(fused(x), model(x))
        model.train(), fused.train()
        twin = copy.deepcopy(model)
        torch.testing.assert_close(fused(x), twin(x), atol=0.05, rtol=0.05)
        torch.testing.assert_close(model.norm_up.running_mean, twin.norm_up.running_mean)
        model.eval(), fused.eval()
        torch.testing.assert_close(fused(x), model(x))


def test_an_image_that_changes_is_read_anew():
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x):
            y = self.one(x).relu()
            x.mul_(2)
            return (y + self.two(x)).sigmoid()

    torch.manual_seed(0)
    model = Changing().bfloat16().eval()
    x = torch.randn(IMAGE).bfloat16()
    a, b = x.clone(), x.clone()
    with torch.no_grad():
        torch.testing.assert_close(torchweld.fuse(model)(a), model(b))
    assert torch.equal(a, b)

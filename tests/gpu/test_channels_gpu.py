"""Convolutions on a GPU: channels innermost inside, no conversions around the calls."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.exact.verify import verify


class Residual(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.wide = nn.Conv2d(width, width, 3, padding=1, groups=groups)
        self.norm = nn.BatchNorm2d(width)
        self.down = nn.ConvTranspose2d(width, width, 2, stride=2)

    def forward(self, x):
        x = self.pool(self.stem(x).relu())
        x = (x + self.norm(self.wide(x))).relu()
        return self.down(x), x.mean((2, 3))


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("width,groups", [(16, 1), (17, 1), (24, 24), (24, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_convolutions(dtype, width, groups, last, train):
    torch.manual_seed(0)
    how = torch.channels_last if last else torch.contiguous_format
    model = Residual(width, groups).to("cuda", dtype).train(train).to(memory_format=how)
    x = torch.randn(3, 3, 37, 41, device="cuda", dtype=dtype).to(memory_format=how)
    fused = torchweld.fuse(model)
    report = verify(model, fused, x, train=train)
    assert report.ok, str(report)


class Dense(nn.Module):
    """Gradients that are slices, of biases, of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.norm, self.second = nn.GroupNorm(4, 24), nn.Conv2d(24, 16, 3, padding=1)

    def forward(self, x):
        y = torch.cat([x, self.first(x).relu()], 1)
        return torch.cat([y, self.second(self.norm(y))], 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_are_copied_and_summed_by_kernels(dtype):
    torch.manual_seed(0)
    model = Dense().to("cuda", dtype)
    x = torch.randn(3, 8, 37, 41, device="cuda", dtype=dtype, requires_grad=True)
    fused = torchweld.fuse(model)
    report = verify(model, fused, x, train=True)
    assert report.ok, str(report)
    notes = [e for r in torchweld.api.records(fused) for e in r.events if "copied" in e.kind]
    assert len(notes) <= 2  # the weights' gradients


@pytest.mark.parametrize("size,batch", [((64, 64), 64), ((32, 32), 32)])
@pytest.mark.parametrize("transposed", [False, True])
def test_tf32_is_rounded_where_eager_rounds(size, batch, transposed):
    """An H100's kernels for channels last drop bits of the factors of some weights' gradients."""
    torch.manual_seed(0)
    convolve = nn.ConvTranspose2d(32, 64, 4, 2) if transposed else nn.Conv2d(32, 64, 3)
    model = Composed(convolve, lambda y: torch.softmax(y, 1).tanh()).to("cuda")
    x = torch.randn(batch, 32, *size, device="cuda")
    report = verify(model, torchweld.fuse(model), x, train=True)
    assert report.ok, str(report)


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
def test_results_of_calls_are_not_copied(last):
    torch.manual_seed(0)
    how = torch.channels_last if last else torch.contiguous_format
    model = Residual(16, 1).to("cuda", torch.bfloat16).eval().to(memory_format=how)
    x = torch.randn(3, 3, 37, 41, device="cuda").bfloat16().to(memory_format=how)
    fused = torchweld.fuse(model)
    with torch.no_grad():
        torch.testing.assert_close(fused(x)[1], model(x)[1], atol=0.02, rtol=0.02)
    notes = [e for r in torchweld.api.records(fused) for e in r.events]
    assert len([e for e in notes if "copied" in e.kind]) <= 1  # the image that is returned


class Composed(nn.Module):
    def __init__(self, convolution: nn.Module, after, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.convolution, self.after, self.norm = convolution, after, norm or nn.Identity()

    def forward(self, x):
        return self.after(self.norm(self.convolution(x)))


def _residual_lse(y):
    return torch.logsumexp(y + y.tanh(), 1, keepdim=True)


COMPOSITIONS = {  # the module, the size of an image
    "volumes": (lambda: Composed(nn.Conv3d(8, 16, 3), F.gelu), (9, 10, 11)),
    "volumes, transposed": (
        lambda: Composed(nn.ConvTranspose3d(8, 16, 3, stride=2), F.silu, nn.GroupNorm(4, 16)),
        (14, 13, 15),
    ),
    "groups": (lambda: Composed(nn.Conv2d(8, 16, 3, groups=4), torch.tanh), (37, 41)),
    "depthwise, returned": (
        lambda: nn.Conv2d(8, 8, 3, groups=8, bias=False), (37, 41)),
    "returned": (lambda: nn.Conv2d(8, 16, 3), (37, 41)),
    "groups of channels": (
        lambda: Composed(nn.Conv2d(8, 16, 3), _residual_lse, nn.GroupNorm(4, 16)), (131, 133)),
    "single channels": (
        lambda: Composed(nn.Conv2d(8, 16, 3), F.silu, nn.InstanceNorm2d(16)), (67, 71)),
    "few results": (lambda: Composed(nn.Conv2d(8, 3, 3), torch.sigmoid), (37, 41)),
    "rows": (lambda: Composed(nn.Conv1d(8, 16, 3), F.relu), (129,)),
    "pooled": (lambda: Composed(nn.Conv3d(8, 16, 3), lambda y: F.max_pool3d(y, 2)), (9, 10, 11)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_alone_with_what_follows(name, dtype):
    torch.manual_seed(0)
    make, size = COMPOSITIONS[name]
    model = make().to("cuda", dtype).eval()
    x = torch.randn(3, 8, *size, device="cuda", dtype=dtype)
    fused = torchweld.fuse(model, x)
    report = verify(model, fused, x)
    assert report.ok, str(report)
    with torch.no_grad():
        assert fused(x).stride() == model(x).stride()


@pytest.mark.parametrize("given,made", [(8, 64), (3, 16), (17, 33), (16, 64), (64, 64)])
def test_float32_is_rounded_to_tf32_only_where_eager_rounds(given, made):
    torch.manual_seed(0)
    model = nn.Conv2d(given, made, 3).cuda().eval()
    x = torch.randn(8, given, 64, 64, device="cuda")
    fused = torchweld.fuse(lambda x: model(x).relu(), x)
    with torch.no_grad():
        exact = F.conv2d(x.double(), model.weight.double(), model.bias.double()).relu()
        eager, ours = ((y.double() - exact).norm() for y in (model(x).relu(), fused(x)))
    assert ours <= 1.5 * eager

"""Float32 convolutions as products of our own, on tensor cores without losing precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.observe.measure.tracing import trace_steps
from torchweld.templates.gemm.price import Prices

CUDA = "cuda:0"
CASES = [
    (F.conv2d, (3, 8, 40, 37), (64, 8, 3, 3), {}),
    (F.conv2d, (2, 3, 65, 63), (32, 3, 7, 7), dict(stride=2, padding=3)),
    (F.conv2d, (4, 64, 14, 14), (128, 64, 3, 3), dict(padding=1)),
    (F.conv2d, (5, 17, 21, 30), (19, 17, 5, 2), dict(stride=(1, 3), dilation=(2, 1), padding=1)),
    (F.conv1d, (7, 12, 301), (24, 12, 9), dict(padding=4)),
    (F.conv3d, (2, 8, 9, 12, 11), (16, 8, 3, 3, 3), dict(padding=(0, 1, 2), stride=(1, 1, 2))),
    (F.conv_transpose2d, (2, 24, 19, 17), (24, 40, 3, 3), {}),
    (F.conv_transpose2d, (2, 7, 19, 17), (7, 33, 4, 3), dict(padding=(1, 2), dilation=(1, 2))),
]


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """cuDNN keeps float32, and every size gains."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(Prices, "exact_s", lambda self, node: 1.0)
    torch.manual_seed(0)


def error(found, right) -> float:
    return ((found.double() - right).norm() / right.norm()).item()


@pytest.mark.parametrize("convolve, image, weight, how", CASES)
@pytest.mark.parametrize("after", [torch.relu, lambda y: F.gelu(y) * 2, lambda y: y.mean((-1, -2))])
def test_as_exact_as_eager_and_not_the_librarys(convolve, image, weight, how, after):
    if convolve is F.conv1d and after(torch.zeros(1, 1, 1, 1)).dim() < 4:
        return  # no two sides
    x, w = torch.randn(image, device=CUDA), torch.randn(weight, device=CUDA)

    def function(x, w):
        return after(convolve(x, w, **how))

    fused = torchweld.fuse(function)
    with torch.no_grad():
        right, theirs = function(x.double(), w.double()), function(x, w)
        for _ in range(4):
            assert error(fused(x, w), right) <= 1.5 * error(theirs, right) + 2e-7
        (step,) = trace_steps(lambda: fused(x, w), "cuda", 1).steps
    assert not any("xmma" in k.name or "cudnn" in k.name for k in step.kernels)


def test_channels_last_images_and_other_scales():
    x = torch.randn(2, 16, 20, 22, device=CUDA).to(memory_format=torch.channels_last)
    w = torch.randn(24, 16, 3, 3, device=CUDA)
    fused = torchweld.fuse(lambda x, w: F.conv2d(x, w, padding=1).relu())
    for scale in (1e-20, 1e-3, 1.0, 1e18):
        with torch.no_grad():
            found = fused(x * scale, w)
            right = F.conv2d((x * scale).double(), w.double(), padding=1).relu()
        assert found.stride() == F.conv2d(x, w, padding=1).stride()
        assert error(found / scale, right / scale) <= 1e-6


def test_infinities_and_nan_are_eager_s():
    x, w = torch.randn(2, 8, 12, 12, device=CUDA), torch.randn(16, 8, 3, 3, device=CUDA)
    x[0, 3, 4, 5], x[1, 2, 6, 6] = float("inf"), float("nan")
    with torch.no_grad():
        found, wanted = torchweld.fuse(F.conv2d)(x, w), F.conv2d(x, w)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_training_keeps_the_librarys_gradients():
    x = torch.randn(4, 8, 20, 20, device=CUDA, requires_grad=True)
    layer = torch.nn.Conv2d(8, 32, 3).to(CUDA)
    fused = torchweld.fuse(layer)
    wanted = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    for _ in range(4):
        found = torch.autograd.grad(fused(x).square().sum(), [x, *layer.parameters()])
        for f, w in zip(found, wanted):
            torch.testing.assert_close(f, w, rtol=1e-4, atol=1e-3)

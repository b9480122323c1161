"""Depthwise convolutions that are transposed or of volumes: sixteen channels in a vector."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld import pipeline
from torchweld.exact.verify import verify
from torchweld.targets.find import target_of
from torchweld.targets.rates import favouring_convolutions

pytestmark = pytest.mark.filterwarnings("error::torchweld.core.events.TorchweldWarning")
TRANSPOSED = {2: nn.ConvTranspose1d, 3: nn.ConvTranspose2d, 4: nn.ConvTranspose3d}
UP = dict(kernel_size=3, stride=2, padding=1, output_padding=1)


@pytest.fixture(autouse=True)
def _on_any_machine(monkeypatch):
    """They are right without masked loads too, and where they do not pay."""
    torch._dynamo.reset()  # sizes that differ between tests are no symbols
    cpu = target_of("cpu")
    rates = {**cpu.rates, **favouring_convolutions("own")}
    target = replace(cpu, features=("avx2", "avx512"), rates=rates)
    monkeypatch.setattr(pipeline, "target_of", lambda device: target)


def _transposed(shape, **how) -> nn.Module:
    """With its bias, or without, and a pointwise function behind it."""
    make = TRANSPOSED[len(shape)]
    return nn.Sequential(make(shape[0], shape[0], groups=shape[0], **how), nn.Hardswish()).eval()


def _loops(fused) -> str:
    (record,) = torchweld.records(fused)
    (text,) = [s.text for b in record.bundles.values() for s in b.sources]
    return next(name for name in ("tw_depthwise", "tw_convolve") if f"{name}(a, omp" in text)


def _check(model: nn.Module, x: torch.Tensor) -> None:
    """As exact as eager, beside float64, and by the loops that have channels along vectors."""
    fused = torchweld.fuse(model)
    report = verify(model, fused, x, train=False)
    assert report.ok, str(report)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    assert _loops(fused) == "tw_depthwise"


@pytest.mark.parametrize(
    "batch, shape, how",
    [
        (2, (40, 23, 21), dict(kernel_size=3, padding=1)),
        (1, (17, 15, 14), dict(kernel_size=7, padding=3, bias=False)),
        (3, (3, 9, 12), dict(kernel_size=(5, 1))),
        (2, (16, 28, 29), UP),
        (1, (17, 19, 33), dict(kernel_size=4, stride=2, padding=1)),
        (1, (40, 70, 67), UP),
        (1, (16, 90, 130), dict(kernel_size=(3, 5), padding=(1, 2))),
        (2, (3, 11, 7), dict(kernel_size=(5, 3), stride=(3, 2), dilation=(2, 3), padding=(3, 0))),
        (1, (17, 8, 9), dict(kernel_size=3, stride=3, dilation=(3, 2), output_padding=2)),
        (1, (16, 13, 1), dict(kernel_size=(1, 4), stride=(11, 8), output_padding=(10, 5))),
        (1, (16, 3, 1700), dict(kernel_size=3, stride=2, padding=1)),
        (2, (40, 77), dict(kernel_size=9, padding=4)),
        (1, (17, 1), dict(kernel_size=4, stride=2)),
        (3, (3, 50), dict(kernel_size=16, stride=8, padding=4)),
        (2, (16, 61), dict(kernel_size=3, stride=3, dilation=2, output_padding=1)),
        (2, (17, 5, 6, 7), dict(kernel_size=3, padding=1)),
        (1, (16, 6, 30, 31), dict(kernel_size=3, stride=2, padding=1, output_padding=1)),
        (1, (3, 4, 5, 9), dict(kernel_size=(1, 2, 3), stride=(2, 1, 3), dilation=(1, 3, 1))),
    ],
)
def test_transposed(batch, shape, how):
    torch.manual_seed(0)
    _check(_transposed(shape, **how), torch.randn(batch, *shape))


@pytest.mark.parametrize(
    "shape, how",
    [
        ((17, 20, 19), dict(kernel_size=2, stride=3)),
        ((16, 12, 40), dict(kernel_size=(1, 2), stride=(2, 4), output_padding=1)),
        ((3, 31), dict(kernel_size=2, stride=7, output_padding=4)),
    ],
)
def test_between_windows_is_what_follows_zero(shape, how):
    """Windows shorter than the stride leave places between them."""
    torch.manual_seed(0)
    layer = _transposed(shape, **how)[0]
    _check(nn.Sequential(layer, nn.Sigmoid()), torch.randn(2, *shape))


@pytest.mark.parametrize("stride, padding", [(1, 4), (1, 7), (2, 5), (3, 6)])
def test_windows_that_begin_inside_the_image(stride, padding):
    """Where padding is more than a window reaches, the edges of the image are not read."""
    torch.manual_seed(0)
    shape = (17, 24, 23)
    model = _transposed(shape, kernel_size=3, stride=stride, padding=padding)
    _check(model, torch.randn(2, *shape))


@pytest.mark.parametrize(
    "batch, shape, how",
    [
        (2, (17, 9, 8, 11), dict(kernel_size=3, padding=1)),
        (1, (16, 7, 40, 61), dict(kernel_size=(3, 5, 3), padding=(1, 2, 0))),
        (1, (40, 12, 7, 6), dict(kernel_size=3, stride=(2, 1, 3), dilation=(2, 1, 1), padding=2)),
    ],
)
def test_volumes(batch, shape, how):
    torch.manual_seed(0)
    layer = nn.Conv3d(shape[0], shape[0], groups=shape[0], **how)
    _check(nn.Sequential(layer, nn.Hardswish()).eval(), torch.randn(batch, *shape))


@pytest.mark.parametrize("shape", [(40, 50, 45), (300, 5, 7), (17, 4, 20, 25)])
def test_the_number_of_threads_changes_nothing(shape):
    torch.manual_seed(0)
    model, x = _transposed(shape, **UP), torch.randn(2, *shape)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with torch.no_grad():
                results.append(torchweld.fuse(model)(x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], r) for r in results[1:])


def test_what_follows_has_places_of_its_own():
    """A residual, and a factor for each channel of an image."""
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(19, 19, **UP, groups=19).eval()
    x, r, s = torch.randn(3, 19, 21, 17), torch.randn(3, 19, 42, 34), torch.randn(3, 19, 1, 1)
    fused = torchweld.fuse(lambda x, r, s: F.leaky_relu(layer(x) * s, 0.01) + r)
    with torch.no_grad():
        got = fused(x, r, s)
        expected = F.leaky_relu(layer.double()(x.double()) * s, 0.01) + r
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    assert _loops(fused) == "tw_depthwise"


def test_one_channel_with_several_results_is_not_depthwise():
    torch.manual_seed(0)
    model, x = nn.ConvTranspose2d(6, 12, 3, 2, groups=6).eval(), torch.randn(2, 6, 9, 11)
    fused = torchweld.fuse(model)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    assert _loops(fused) == "tw_convolve"


def test_special_values_stay_in_their_windows():
    torch.manual_seed(0)
    model, x = nn.ConvTranspose2d(17, 17, **UP, groups=17).eval(), torch.randn(2, 17, 25, 27)
    x[0, 3, 0, 0], x[1, 2, 24, 26], x[1, 16, 12, 0] = float("nan"), float("inf"), -float("inf")
    fused = torchweld.fuse(model)
    with torch.no_grad():
        expected, got = model(x), fused(x)
    assert torch.equal(got.isnan(), expected.isnan())
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)

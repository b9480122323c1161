"""Models of complex numbers in inference and training: as exact as eager, in kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchweld
from complex_models import C64, MODELS, check
from torchweld.exact.verify import verify

pytestmark = pytest.mark.filterwarnings("error::torchweld.core.events.TorchweldWarning")


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_as_exact_as_eager(name, train):
    check(name, train, "cpu")


def test_what_verify_compares_of_complex_numbers():
    class Scaled(nn.Module):
        def __init__(self, by: complex) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.full((4,), by))

        def forward(self, x):
            return x * self.by

    x, model = torch.randn(3, 4, dtype=C64), Scaled(1 + 2j)
    assert verify(model, Scaled(1 + 2j), x, train=True).ok
    assert not verify(model, Scaled(1 + 2.0001j), x, train=True).ok


ROOTS = torch.tensor([1 + 1j, 2 - 1j, 3j])


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_vary_and_constants(dynamic):
    def function(x, z):
        kept = torch.zeros_like(z)
        kept[:, :2] = z[:, :2] * ROOTS[:2]
        spectrum = torch.fft.rfft(x)
        spectrum = spectrum * torch.full_like(spectrum, 2 - 1j) + torch.ones(
            spectrum.shape, dtype=C64, device=x.device
        )
        odd = (z * 2).tan()  # no rule knows it
        return torch.fft.irfft(spectrum, n=x.shape[-1]), kept.abs(), odd * z + odd.tan()

    torch._dynamo.reset()
    fused = torchweld.fuse(function, dynamic=dynamic)
    for n in (4, 6, 9):
        x, z = torch.randn(3, n), torch.randn(n, n, dtype=C64)
        for one, other in zip(fused(x, z), function(x, z), strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("function", [
    lambda z: z * 2 + 1, lambda z: torch.fft.fft(z).abs(), lambda z: z @ z, lambda z: z.tan() + z,
])  # fmt: skip
def test_inputs_that_are_conjugates(function):
    """Of which memory has the other sign."""
    torch._dynamo.reset()
    z, fused = torch.randn(4, 4, dtype=C64), torchweld.fuse(function)
    for given in (z, z.conj(), z.mH):
        torch.testing.assert_close(fused(given), function(given))

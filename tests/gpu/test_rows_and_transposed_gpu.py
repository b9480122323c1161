"""Convolutions of rows and transposed ones in 16 bits, with what is around them, in inference: as
exact as eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchweld
from torchweld.exact.verify import verify

CASES = {
    "row": (lambda: nn.Conv1d(64, 96, 5, padding=2), (8, 64, 1000)),
    "dilated": (lambda: nn.Conv1d(64, 64, 3, padding=8, dilation=8), (8, 64, 1000)),
    "odd steps": (lambda: nn.Conv1d(64, 64, 3, 2), (8, 64, 1001)),
    "groups": (lambda: nn.Conv1d(128, 128, 3, padding=1, groups=4), (8, 128, 1000)),
    "windows of one": (lambda: nn.Sequential(nn.Conv1d(64, 128, 1), nn.ReLU(),
                                             nn.Conv1d(128, 64, 1)), (8, 64, 1000)),
    "transposed row": (lambda: nn.ConvTranspose1d(128, 64, 4, 2, 1), (8, 128, 1000)),
    "transposed": (lambda: nn.ConvTranspose2d(64, 128, 4, 2, 1), (8, 64, 40, 36)),
    "transposed, groups": (lambda: nn.ConvTranspose2d(64, 128, 4, 2, 1, groups=4), (8, 64, 40, 36)),
    "transposed, 3": (lambda: nn.ConvTranspose2d(64, 64, 3, 2, 1, 1), (8, 64, 40, 36)),
    "transposed volume": (lambda: nn.ConvTranspose3d(32, 16, 3, 2), (4, 32, 6, 12, 14)),
}  # fmt: skip


class Between(nn.Module):
    """Pointwise work on both sides; `sums`: a softmax over channels reads the results."""

    def __init__(self, convolution: nn.Module, sums: bool) -> None:
        super().__init__()
        self.convolution, self.sums = convolution, sums

    def forward(self, x):
        y = self.convolution(torch.tanh(x))
        return y.softmax(1) if self.sums else torch.relu(y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", CASES)
def test_as_exact_as_eager(name, last, sums, dtype):
    torch.manual_seed(0)
    make, shape = CASES[name]
    model = Between(make(), sums).to("cuda", dtype).eval()
    x = torch.randn(shape, device="cuda", dtype=dtype)
    if last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    with torch.no_grad():
        assert verify(model, torchweld.fuse(model), (x,), seeds=(0,)).ok

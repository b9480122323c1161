"""Attention of the library with masks of odd rows, which it takes only with gaps between them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.exact.verify import verify


class Biased(nn.Module):
    """A bias for each head and pair of positions, the same for all of the batch."""

    def __init__(self, length: int, learned: bool) -> None:
        super().__init__()
        self.projection = nn.Linear(32, 96)
        self.table = nn.Parameter(torch.randn(4, 2 * length)) if learned else None
        self.register_buffer("places", torch.randint(0, 2 * length, (length, length)))

    def forward(self, x):
        q, k, v = self.projection(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        seen = self.places % 5 > 0 if self.table is None else self.table[:, self.places]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_odd_lengths(dtype, learned, train):
    torch.manual_seed(0)
    model = Biased(13, learned).to("cuda", dtype).train(train)
    x = torch.randn(2, 13, 32, dtype=dtype, device="cuda")
    assert verify(model, torchweld.fuse(model), (x,), train=train, seeds=(0,)).ok


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_that_a_mask_from_memory_makes_large(dtype, train):
    """All that row 3 sees are scores of -1e9, which are alike. As a power of two, one of them less
    the other was 18: more than a float16 holds."""

    def attention(q, k, mask):
        s = (q @ k.mT * 0.2).masked_fill(mask, -float("inf"))
        s = s + torch.where(mask, 0.0, -1e9)
        return torch.softmax(s, -1, dtype=torch.float32).to(k.dtype) @ k * 2 + 1

    torch.manual_seed(0)
    made = torch.randn(2, 3, 7, 16), torch.randn(2, 3, 65, 16)
    q, k = (t.to("cuda", dtype).requires_grad_(train) for t in made)
    mask = torch.rand(2, 1, 1, 65, device="cuda") < 0.5
    torch.compiler.reset()
    found, eager = (f(q, k, mask) for f in (torchweld.fuse(attention), attention))
    assert torch.allclose(found, eager, atol=2e-3 if dtype is torch.float16 else 2e-2)

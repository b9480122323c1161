"""Logits of an odd vocabulary on a GPU: right, and not in memory twice."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchweld
from torchweld.api import records
from torchweld.observe.measure.memory import added_bytes
from torchweld.templates.library.odd_rows import ODD_ROWS

SCALES = (1, 2, -1)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(4096, 50257, torch.bfloat16), (6151, 50263, torch.bfloat16), (4096, 50263, torch.float16)],
)
def test_logits(rows, columns, dtype):
    """So many that the library's product and a move are predicted to be faster than our kernel."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(768), nn.Linear(768, columns, bias=False))
    head = head.to("cuda", dtype).eval()
    x = torch.randn(rows, 768, device="cuda", dtype=dtype)
    with torch.no_grad():
        fused = torchweld.fuse(head, x)
        outputs = [fused(x * scale) for scale in SCALES]  # as usual, recorded, replayed
        exact = copy.deepcopy(head).double()
        for found, scale in zip(outputs, SCALES):
            wanted = exact(x.double() * scale)
            assert (found - wanted).norm() <= 5e-3 * wanted.norm()
            assert (found - wanted).abs().max() <= 2e-2 * wanted.abs().max()
        del outputs, exact, wanted, found
        (record,) = records(fused)
        assert ODD_ROWS in [getattr(n, "target", "") for n in record.graph.nodes]
        size = rows * columns * 2
        assert added_bytes(lambda: fused(x), "cuda") <= size + 256 * (columns + 64) * 2 + (4 << 20)

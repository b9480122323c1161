"""Long scans of few rows on a GPU, in stretches: as exact as eager, forward and backward."""

from __future__ import annotations

import pytest
import torch

import torchweld
from scan_cases import CASES
from torchweld.exact.verify import verify

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("train", [False, True], ids=["", "train"])
@pytest.mark.parametrize("name", CASES)
def test_they_are_as_exact_as_eager(name, train):
    function, shape, dtype = CASES[name]
    if train and name == "slots":
        pytest.skip("of integers")
    torch.compiler.reset()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to("cuda", dtype)
    fused = torchweld.fuse(lambda x: function(x))
    report = verify(lambda x: function(x), fused, x, train=train)
    assert report.ok, str(report)
    sources = [s for r in torchweld.records(fused) for b in r.bundles.values() for s in b.sources]
    assert sum("associative_scan" in s.text for s in sources) >= 2

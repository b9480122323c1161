"""What a kernel computes again and compares has the bits that are in memory."""

from __future__ import annotations

import pytest
import torch

import torchweld
from compared_cases import CASES, K, squared_distances
from torchweld.exact.verify import verify

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_as_many_pass_as_were_chosen(name, seed):
    function, shapes = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    args = [torch.rand(shape, generator=generator).cuda() for shape in shapes]
    torch.compiler.reset()
    chosen, passing = torchweld.fuse(lambda *args: function(*args))(*args)
    wanted, _ = function(*args)
    torch.testing.assert_close(chosen, wanted, rtol=0, atol=0)
    assert (passing >= K).all()


@pytest.mark.parametrize("extreme", [torch.amin, torch.amax])
def test_gradients_find_the_extreme(extreme):
    """Each gradient goes to the elements that equal the extreme, divided by their number."""

    def chamfer(q, s):
        d = squared_distances(q, s)
        return extreme(d, 2).mean(1) + extreme(d, 1).mean(1), torch.topk(d, K, dim=2).values

    generator = torch.Generator().manual_seed(0)
    args = [torch.rand(2, n, 3, generator=generator).cuda() for n in (1001, 769)]
    torch.compiler.reset()
    report = verify(chamfer, torchweld.fuse(lambda *args: chamfer(*args)), args)
    assert report.ok, str(report)

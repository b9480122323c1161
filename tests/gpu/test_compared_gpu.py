"""What a kernel computes again and compares has the bits that are in memory."""

from __future__ import annotations

import pytest
import torch

import torchweld
from compared_cases import CASES, FEW, MANY, squared_distances
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
    torch.testing.assert_close(chosen, wanted)  # eager sums squares in another order
    assert (passing >= function.keywords["k"]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_sums_of_rounded_products(dtype):
    """Of which the compiler may make one operation of 16 bits, for one reader of two."""

    def extremes(x, s, q):
        y = x * s + q
        scaled = (y - y.mean(0, keepdim=True)) * torch.rsqrt(y.var((1, 3), keepdim=True) + 1e-3)
        return y.amax((1, 2)), y.amin(2), scaled

    generator = torch.Generator().manual_seed(0)
    shapes = (17, 3, 211, 9, 19), (17, 1, 211, 1, 1), (1, 3, 1, 1, 19)
    args = [torch.randn(shape, generator=generator).to("cuda", dtype) for shape in shapes]
    torch.compiler.reset()
    results = torchweld.fuse(lambda *args: extremes(*args))(*[x.requires_grad_() for x in args])
    sum(y.sum() for y in results).backward()
    assert all(x.grad.isfinite().all() for x in args)


OF_DISTANCES = {
    "distances": lambda d: d,
    "roots": lambda d: (d + 1e-3).sqrt(),
    "gauss": lambda d: (-2 * d).exp(),
    "inverse": lambda d: 1 / (d + 0.1),
    "gelu": lambda d: torch.nn.functional.gelu(d * 3 - 1),
    "power": lambda d: (d + 0.1) ** 1.7,
}


def points(dtype):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(2, n, 3, generator=generator).to("cuda", dtype) for n in (1001, 769)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OF_DISTANCES)
@pytest.mark.parametrize("k", [FEW, MANY])
def test_extremes_and_the_chosen_are_found_again(name, dtype, k):
    def counts(q, s):
        d = OF_DISTANCES[name](squared_distances(q, s))
        chosen = torch.topk(d, k, dim=2).values
        pairs = [(d, d.amax(dim, keepdim=True)) for dim in (1, 2)]
        return ((d >= chosen[..., -1:]).sum(2), *((x == m).sum(m.shape.index(1)) for x, m in pairs))

    torch.compiler.reset()
    chosen, first, second = torchweld.fuse(lambda *args: counts(*args))(*points(dtype))
    assert (chosen >= k).all() and (first >= 1).all() and (second >= 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OF_DISTANCES)
def test_gradients_find_the_extreme(name, dtype):
    """Each goes to the elements that equal the extreme, divided by their number."""

    def chamfer(q, s):
        d = OF_DISTANCES[name](squared_distances(q, s))
        return d.amin(2).mean(1) + d.amax(1).mean(1), torch.topk(d, MANY, dim=2).values

    args = [x.requires_grad_() for x in points(dtype)]
    torch.compiler.reset()
    first, chosen = torchweld.fuse(lambda *args: chamfer(*args))(*args)
    (first.sum() + chosen.sum()).backward()
    assert all(x.grad.isfinite().all() for x in args)
    if dtype == torch.float32:
        report = verify(chamfer, torchweld.fuse(lambda *args: chamfer(*args)), points(dtype))
        assert report.ok, str(report)

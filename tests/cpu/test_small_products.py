"""Batches of dot products, and products of one term, are kernels (capture/small_products.py)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torchweld
from torchweld.capture import small_products

aten = torch.ops.aten

CASES = {
    "dots": (lambda a, b: torch.bmm(a, b).sin(), (7, 1, 33), (7, 33, 1)),
    "einsum": (lambda a, b: torch.einsum("bij,bij->bi", a, b) * 2, (5, 6, 17), (5, 6, 17)),
    "one term": (lambda a, b: torch.bmm(a, b).sin(), (3, 1, 1), (3, 1, 9)),
    "one term of a matrix": (lambda a, b: (a @ b).sin(), (5, 1), (1, 9)),
    "one term of a batch": (lambda a, b: torch.bmm(a, b).sin(), (3, 5, 1), (3, 1, 9)),
    "one column": (lambda a, b: torch.bmm(a, b).sin(), (5, 7, 33), (5, 33, 1)),
    "one column, turned": (lambda a, b: (a.mT @ b).sin(), (5, 33, 7), (5, 33, 1)),
    "none": (lambda a, b: torch.bmm(a, b).sum(), (4, 1, 0), (4, 0, 1)),
}


def _step(model, a, b):
    result = model(a, b)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)
    return result, *torch.autograd.grad(result, (a, b), weights)


def _as_exact_as_eager(model, shapes, dtype):
    """The fused `model`, whose results and gradients are compared."""
    a, b = (torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes)
    made = torchweld.fuse(model)
    exact = _step(model, *(t.detach().double().requires_grad_() for t in (a, b)))
    for got, eager, true in zip(_step(made, a, b), _step(model, a, b), exact):
        assert got.dtype == eager.dtype and got.shape == eager.shape
        error, allowed = ((t.double() - true).norm() for t in (got, eager))
        assert error <= 1.5 * allowed + torch.finfo(dtype).eps * true.norm() / 2
    return made


@pytest.mark.parametrize(("name", "dtype"), [
    *((name, torch.float32) for name in CASES),
    *((name, (torch.bfloat16, torch.float16)[at % 2]) for at, name in enumerate(CASES)),
])  # fmt: skip
def test_they_are_as_exact_as_eager(name, dtype):
    torch.manual_seed(0)
    model, *shapes = CASES[name]
    made = _as_exact_as_eager(model, shapes, dtype)
    records = torchweld.records(made)[: 1 if "term" in name else 2]  # gradients of one term: sums
    nodes = (n for r in records for n in r.graph.nodes)
    called = [getattr(n, "target", "") for n in nodes]
    assert not any("mm" in c for c in called), called


def test_gradients_of_one_query_are_written_out():
    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v

    q, k, v = (torch.randn(2, 3, rows, 8, requires_grad=True) for rows in (1, 7, 7))
    made, tangent = torchweld.fuse(attention), torch.randn(2, 3, 1, 8)
    found = torch.autograd.grad(made(q, k, v), (q, k, v), tangent)
    wanted = torch.autograd.grad(attention(q, k, v), (q, k, v), tangent)
    torch.testing.assert_close(found, wanted)
    nodes = torchweld.records(made)[-1].graph.nodes
    assert sum(getattr(n, "target", "") == "aten.bmm.default" for n in nodes) == 2


def test_other_products_stay():
    a, b = torch.randn(3, 1, 5), torch.randn(3, 5, 2)
    made = torchweld.fuse(lambda a, b: torch.bmm(a, b))
    torch.testing.assert_close(made(a, b), torch.bmm(a, b))
    (record,) = torchweld.records(made)
    assert not any("mul" in n.name for n in record.graph.nodes)


FEW = {
    "points by one matrix": (lambda a, b: (a @ b).sin(), (37, 5, 3), (3, 3)),
    "points of each by its own": (lambda a, b: torch.bmm(a, b) * 2, (5, 33, 3), (5, 3, 4)),
    "matrices": (lambda a, b: (a @ b).sin(), (41, 3, 3), (41, 3, 3)),
    "turned": (lambda a, b: a.mT @ b, (7, 4, 3), (7, 4, 35)),
    "columns": (lambda a, b: (a @ b).exp(), (3, 2), (2, 101)),
    "with a bias": (lambda a, b: torch.addmm(b[0], a, b, alpha=2), (77, 4), (4, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FEW)
def test_products_of_few_terms_are_as_exact_as_eager(name, dtype):
    """Results are kernels; of their gradients those that add up many terms are products."""
    torch.manual_seed(0)
    model, *shapes = FEW[name]
    made = _as_exact_as_eager(model, shapes, dtype)
    forward = torchweld.records(made)[0].graph.nodes
    assert not any("mm" in getattr(n, "target", "") for n in forward)


def test_a_small_product_alone_stays():
    a, b = torch.randn(8, 4), torch.randn(4, 4)
    made = torchweld.fuse(lambda a, b: (a @ b).sin())
    torch.testing.assert_close(made(a, b), (a @ b).sin())
    (record,) = torchweld.records(made)
    assert any("mm" in getattr(n, "target", "") for n in record.graph.nodes)


FOLDED = {
    "rows of channels": (lambda x, w: F.linear(x.exp().transpose(1, 2), w), 0),
    "a computed image": (lambda x, w: F.linear(x.cos().movedim(1, -1)[:, 1:], w), 0),
    "as given": (lambda x, w: F.linear(x.transpose(1, 2), w), 1),
    "a weight of each": (lambda x, w: torch.bmm(x.exp().mT, w.T.expand(3, 6, 5) * 2), 1),
}


@pytest.mark.parametrize("name", FOLDED)
def test_batches_with_one_weight_are_one_product(name):
    """Where a copy would be needed of what the caller gives, they stay."""
    function, batches = FOLDED[name]
    args = torch.randn(3, 6, 7, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    gm = make_fx(function, tracing_mode="fake")(*args)
    small_products.write_out_batches(gm)
    gm.recompile()
    torch.testing.assert_close(gm(*args), function(*args))
    assert len(gm.graph.find_nodes(op="call_function", target=aten.bmm.default)) == batches


def test_keys_that_heads_share_stay_in_a_batch():
    def scores(q, k):
        return torch.bmm(q * 0.5, k[0].mT.expand(4, 8, 9))

    gm = make_fx(scores, tracing_mode="fake")(torch.randn(4, 7, 8), torch.randn(1, 9, 8))
    small_products.write_out_batches(gm)
    assert gm.graph.find_nodes(op="call_function", target=aten.bmm.default)


@pytest.mark.parametrize("place, batches", [("cpu", 1), ("cuda", 0)])
def test_a_batch_on_a_gpu_may_have_eight_terms(place, batches):
    """Streams of hyper-connections: 5 x 5 x 1024 for each token."""
    with FakeTensorMode():
        args = [torch.empty(s, device=place) for s in ((7, 5, 5), (7, 5, 33))]
        gm = make_fx(torch.bmm)(*args)
    small_products.write_out_batches(gm)
    assert len(gm.graph.find_nodes(op="call_function", target=aten.bmm.default)) == batches

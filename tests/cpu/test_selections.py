"""The first elements of rows in order."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import torchweld
from selection_cases import FLOATS, INTEGERS, check, check_all, routed
from torchweld.plan.decisions import Choice


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("d", [-1, 0, 1])
def test_they_are_those_of_eager(dtype, d):
    check_all(dtype, d)


def test_equals_come_by_their_places():
    x = torch.tensor([[2.0, 5, 5, 1, 5], [0.0, 0, 0, 0, 0]])
    torch.compiler.reset()
    assert torchweld.fuse(lambda x: x.topk(3)[1])(x).tolist() == [[1, 2, 4], [0, 1, 2]]
    torch.compiler.reset()
    assert torchweld.fuse(lambda x: x.topk(2, largest=False)[1])(x).tolist() == [[3, 0], [0, 1]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32], ids=str)
def test_of_equals_eagers_are_taken_where_there_are_many(dtype):
    torch.manual_seed(0)
    x = (torch.randn(500, 64) * 20).to(dtype)
    torch.compiler.reset()
    for function in (lambda x: x.topk(8)[1], lambda x: x.argsort(1), lambda x: x.sort(0)[1]):
        torch.compiler.reset()
        assert torch.equal(torchweld.fuse(function)(x), function(x))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (3, 0, 4)], ids=str)
def test_no_rows_and_no_elements(shape):
    x = torch.randn(shape)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)
        d, k = shape.index(0) ^ 1, 2
        found = torchweld.fuse(lambda x: (*x.topk(k, d), *x.sort(d), *x.kthvalue(k, d)))(x)
    assert [tuple(t.shape) for t in found] == [tuple(t.shape) for t in (
        *x.topk(k, d), *x.sort(d), *x.kthvalue(k, d))]  # fmt: skip


@pytest.mark.parametrize("name", ["strided", "one", "one element", "long", "many", "doubles"])
def test_rows_of_other_kinds(name):
    x = torch.randn(9, 70)
    x, k = {
        "strided": (x.t()[::2], 3), "one": (x[0], 3), "one element": (x[:, :1], 1),
        "long": (torch.randn(2, 40_000), 3), "many": (x, 60), "doubles": (x.double(), 3),
    }[name]  # fmt: skip
    check(lambda x: x.topk(k, -1), x, -1)


@pytest.mark.parametrize("rows", [1, 9, 64])
@pytest.mark.parametrize("length", [1, 2, 3, 64, 100, 2048, 2049])
def test_sorted_rows(length, rows):
    torch.manual_seed(0)
    x = torch.randint(0, 20, (length, rows)).float().t()
    check(lambda x: torch.sort(x, dim=-1, stable=True), x, -1, stable=True)
    check(lambda x: (x.sort(-1)[0], x.argsort(dim=-1, stable=True)), x, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_in_order_have_a_kernel_of_their_own(dtype):
    """Neither what makes them nor what reads them is in it."""
    torch.manual_seed(0)
    torch.compiler.reset()

    def program(x):
        return (x.exp() * 2).sort(1)[0].relu() + 1

    x = torch.randn(5, 37, 11).to(dtype)
    with torch.no_grad():
        fused = torchweld.fuse(program)
        torch.testing.assert_close(fused(x), program(x))
    (record,) = torchweld.records(fused)
    templates = [d.template for d in record.decisions if isinstance(d, Choice)]
    assert len(record.graph.nodes) == len(templates) == 3 and templates.count("sorting") == 1


def test_what_makes_the_rows_is_in_the_kernel():
    x, w = torch.randn(300, 40), torch.randn(40, 16)
    torch.compiler.reset()
    fused = torchweld.fuse(lambda x, w: routed(x, w, 2))
    with torch.no_grad():
        found = fused(x, w)
    for a, b in zip(found, routed(x, w, 2)):
        torch.testing.assert_close(a, b)
    (record,) = torchweld.records(fused)
    assert "fused_softmax_topk" in [node.name for node in record.graph.nodes]


def _in_place(x, y):
    z = x * 1
    z[:] = z.sort(1)[0]
    z += y
    return z


PROGRAMS = {
    "several": lambda x, y: (x.sort(1)[0], y.sort(1)[0], x.sort(1, descending=True)[0]),
    "both ways": lambda x, y: x.sort(1)[0].sort(2)[0],
    "reduced": lambda x, y: (x.sort(1)[0].sum(1), (x + y).sort(-1)[0].mean((0, 1))),
    "scanned": lambda x, y: y.sort(1)[0].cumsum(1),
    "picked": lambda x, y: (x.sort(1)[0][:, 3], x.sort(1)[0].diff(dim=1).amax(1)),
    "quantiles": lambda x, y: (x.quantile(0.3, dim=1), x.nanquantile(0.5, 2), x.msort()),
    "places": lambda x, y: (y.gather(1, x.argsort(dim=1, stable=True)), x.median(1)[1]),
    "in place": _in_place,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_rows_in_order(name):
    torch.manual_seed(0)
    torch.compiler.reset()
    x, y = torch.randn(9, 37, 8), torch.randn(9, 37, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)
        found, wanted = torchweld.fuse(PROGRAMS[name])(x, y), PROGRAMS[name](x, y)
    torch.testing.assert_close(found, wanted)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, 16))

    def forward(self, x):
        return routed(x, self.weight, 4)[0]


def test_gradients_go_to_what_was_taken():
    torch.manual_seed(0)
    torch.compiler.reset()
    model, x = Gate(), torch.randn(70, 40)
    given = torch.randn(70, 4)
    (wanted,) = torch.autograd.grad((model(x) * given).sum(), [model.weight])
    (found,) = torch.autograd.grad((torchweld.fuse(model)(x) * given).sum(), [model.weight])
    torch.testing.assert_close(found, wanted)


def test_gradients_of_rows_in_order():
    torch.manual_seed(0)
    torch.compiler.reset()
    x = torch.randn(9, 37, 8, requires_grad=True)
    weight = torch.arange(37.0).view(1, -1, 1)

    def loss(x):
        chosen = x.median(2)[0].sum() + x.kthvalue(2, 0)[0].square().sum()
        return (x.sort(1)[0] * weight).sum() + chosen

    (wanted,), (found,) = (torch.autograd.grad(f(x), x) for f in (loss, torchweld.fuse(loss)))
    torch.testing.assert_close(found, wanted)

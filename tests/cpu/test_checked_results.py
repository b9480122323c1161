"""Operations of `torch.linalg` that check their results are calls like others, and raise."""

from __future__ import annotations

import warnings

import pytest
import torch

import torchweld

FUNCTIONS = {
    "cholesky": lambda a: torch.linalg.cholesky(a.exp().diag() * 2) + a,
    "inv": lambda a: torch.linalg.inv(a.exp().diag() + 1) * a,
    "solve": lambda a: torch.linalg.solve(a.exp().diag(), a.sin()) * 2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("grad", "ahead"), [(False, False), (False, True), (True, False)])
def test_what_is_around_them_is_one_graph(name, grad, ahead):
    function, x = FUNCTIONS[name], torch.randn(5, requires_grad=grad)

    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)
        fused = torchweld.fuse(Model(), x) if ahead else torchweld.fuse(function)
        made = fused(x)
        torch.testing.assert_close(made, function(x))
        if grad:
            (ours,) = torch.autograd.grad(made.sum(), x)
            torch.testing.assert_close(ours, torch.autograd.grad(function(x).sum(), x)[0])
    kinds = [record.kind for record in torchweld.records(fused)]
    assert kinds == (["forward", "backward"] if grad else ["inference"])


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="torch has no token that keeps a check which nothing reads",
)
@pytest.mark.parametrize("name", ["cholesky", "inv"])
def test_errors_come_through(name):
    def function(a):
        return getattr(torch.linalg, name)(a * 2) + 1

    torch.compiler.reset()
    fused = torchweld.fuse(function)
    torch.testing.assert_close(fused(torch.eye(3)), function(torch.eye(3)))
    for bad in (torch.zeros(3, 3), torch.eye(3).neg().fill_diagonal_(0)):
        with pytest.raises(torch.linalg.LinAlgError) as expected:
            function(bad)
        with pytest.raises(torch.linalg.LinAlgError) as found:
            fused(bad)
        assert str(found.value) == str(expected.value)
    torch.testing.assert_close(fused(torch.eye(3)), function(torch.eye(3)))

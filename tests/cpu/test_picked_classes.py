"""Gradients of log probabilities that are gathered: nothing is added up over the classes."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.ir.nodes import Comp, Reduce


def rows(x, label):
    wide = x if x.dtype == torch.float64 else x.float()
    return wide.log_softmax(-1).gather(-1, label[..., None]).squeeze(-1)


def rows_of_their_own_type(x, label):
    return x.log_softmax(-1).gather(-1, label[..., None]).squeeze(-1)


def pixels(x, label):
    return x.movedim(-1, 1).log_softmax(1).gather(1, label[:, None]).sum((1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("call", [rows, rows_of_their_own_type, pixels])
def test_the_gradient_adds_up_nothing(call, dtype):
    torch.compiler.reset()
    torch.manual_seed(0)
    x = (torch.randn(3, 9, 301) * 3).to(dtype).requires_grad_()
    label = torch.randint(0, 301, (3, 9))
    fused = torchweld.fuse(call)
    loss, expected = fused(x, label), call(x, label)
    given = torch.randn_like(expected)
    (got,) = torch.autograd.grad(loss, x, given)
    (eager,) = torch.autograd.grad(expected, x, given)
    wide = x.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(call(wide, label), wide, given.double())
    assert (got - exact).abs().max() <= 1.5 * (eager - exact).abs().max() + 1e-7
    (backward,) = (r for r in torchweld.api.records(fused) if r.kind == "backward")
    comps = [n for n in backward.graph.nodes if isinstance(n, Comp)]
    assert comps and not any(isinstance(op, Reduce) for comp in comps for op in comp.body)

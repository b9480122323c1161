"""Steps of optimisers: the updates of all parameters in a few kernels, in place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchweld
from torchweld.ir.nodes import Comp, Extern

SHAPES = ((7, 13), (64, 65), (33,), (16,), (1,), (5, 3, 3, 3), (7, 13), ())
STEPS = 3
O = torch.optim
KINDS = {
    "adamw": lambda p, **k: O.AdamW(p, lr=1e-2, **k),
    "amsgrad": lambda p, **k: O.Adam(p, lr=1e-2, weight_decay=0.1, amsgrad=True, **k),
    "maximize": lambda p, **k: O.Adam(p, lr=1e-2, maximize=True, **k),
    "sgd": lambda p, **k: O.SGD(p, lr=1e-2, **k),
    "nesterov": lambda p, **k: O.SGD(
        p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.01, **k
    ),
    "rmsprop": lambda p, **k: O.RMSprop(p, lr=1e-2, momentum=0.9, centered=True, **k),
    "adagrad": lambda p, **k: O.Adagrad(p, lr=1e-2, **k),
}


def parameters(dtype=torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(s).to(dtype)) for s in SHAPES]


def trained(make, way, dtype=torch.float32) -> tuple[list[torch.Tensor], object]:
    """The parameters after some steps, and the step; `way`: a function of the step."""
    torch._dynamo.reset()
    given = parameters()
    weights = [nn.Parameter(p.detach().to(dtype)) for p in given]
    step = way(make(weights).step)
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=draw).to(dtype)
        step()
    return [w.detach() for w in weights], step


def compiled(step):
    return torch.compile(step, backend="torchweld")


def error(found, exact) -> float:
    pairs = zip(found, exact, strict=True)
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs)


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_as_exact_as_the_compiled_graph_in_eager(kind, foreach):
    def make(weights):
        return KINDS[kind](weights, foreach=foreach)

    exact, _ = trained(make, lambda step: step, torch.float64)
    captured, _ = trained(make, lambda step: torch.compile(step, backend="eager"))
    fused, _ = trained(make, compiled)
    assert error(fused, exact) <= 1.5 * error(captured, exact) + 1e-7


@pytest.mark.parametrize("kind", ["adamw", "sgd", "nesterov"])
def test_all_parameters_share_a_few_kernels(kind):
    _, step = trained(lambda w: KINDS[kind](w, foreach=True), compiled)
    graph = torchweld.records(step)[-1].graph
    assert not any(isinstance(n, Extern) for n in graph.nodes)
    kernels = [n for n in graph.nodes if isinstance(n, Comp)]
    assert len(kernels) <= 3  # tensors, single numbers, counts of steps
    theirs = {n for n in graph.inputs if n}
    assert {b for k in kernels for b in k.writes} <= theirs  # in place, nothing aside


def test_half_precision_parameters_with_wide_states():
    def lion(weights, states, grads):
        for w, m, g in zip(weights, states, grads):
            wide = g.float()
            w.copy_(w.float() * (1 - 1e-3) - 1e-2 * torch.sign(m * 0.9 + wide * 0.1))
            m.mul_(0.99).add_(wide, alpha=0.01)

    results = []
    for run in (lion, torch.compile(lion, backend="torchweld")):
        weights = [p.detach() for p in parameters(torch.bfloat16)]
        states = [torch.zeros(s) for s in SHAPES]
        for seed in range(STEPS):
            draw = torch.Generator().manual_seed(seed)
            grads = [torch.randn(s, generator=draw).bfloat16() for s in SHAPES]
            run(weights, states, grads)
        results.append((weights, states))
    for eager, fused in zip(*results):
        for a, b in zip(eager, fused):
            ulp = torch.finfo(a.dtype).eps  # products and sums are contracted, so one of a weight
            torch.testing.assert_close(b, a, rtol=ulp, atol=2**-20)


def test_gradients_clipped_before_the_step():
    def stepped(way):
        torch._dynamo.reset()
        weights = parameters()
        optimiser = O.AdamW(weights, lr=1e-2)

        def step():
            norm = nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            return norm

        run, norms = way(step), []
        for seed in range(STEPS):
            draw = torch.Generator().manual_seed(seed)
            for w in weights:
                w.grad = torch.randn(w.shape, generator=draw)
            norms.append(run())
        return weights, norms

    eager, fused = stepped(lambda step: step), stepped(compiled)
    for a, b in zip((*eager[0], *eager[1]), (*fused[0], *fused[1])):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


def test_a_rate_that_is_a_tensor_compiles_once():
    weights = parameters()
    for w in weights:
        w.grad = torch.ones_like(w)
    rate = torch.tensor(1e-2)
    optimiser = O.AdamW(weights, lr=rate, foreach=False)
    step = compiled(optimiser.step)
    step()
    count = len(torchweld.records(step))
    for value in (1e-3, 1e-4):
        rate.fill_(value)
        step()
    assert len(torchweld.records(step)) == count


def test_a_swap_reads_before_it_writes():
    def swap(a, b):
        t = a.clone()
        a.copy_(b)
        b.copy_(t)

    a, b = torch.randn(33, 70), torch.randn(33, 70)
    first, second = a.clone(), b.clone()
    torch.compile(swap, backend="torchweld")(a, b)
    assert torch.equal(a, second) and torch.equal(b, first)


def test_what_is_written_elsewhere_is_not_updated_in_place():
    def turned(x):
        x.copy_(x.t() * 2)

    def shifted(x):
        x.copy_(x - x[0])

    for function in (turned, shifted):
        x = torch.randn(65, 65)
        expected = x.clone()
        function(expected)
        torch.compile(function, backend="torchweld")(x)
        assert torch.equal(x, expected)

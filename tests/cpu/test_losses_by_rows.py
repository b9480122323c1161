"""Losses on a linear layer whose logits are never whole in memory: values, gradients, bytes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
import torch.nn.functional as F

import torchweld
from loss_cases import AGAIN, AHEAD, CLASSES, DEPTH, ROWS, cross_entropy, dpo, inputs, summed
from torchweld.core.errors import IndexOutOfRange
from torchweld.exact.budget import compare
from torchweld.ir import row_price
from torchweld.runtime.placement import peak_bytes
from torchweld.targets import cpu
from torchweld.targets.rates import favouring

WHOLE = ROWS * CLASSES


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Results are in chunks whatever share of the device's memory they are, and products are the
    library's, whichever is faster on this processor."""
    monkeypatch.setattr(row_price, "_SHARE", 0.0)
    monkeypatch.setattr(cpu, "prior_rates", lambda threads: favouring("aten"))
    cpu.cpu_target.cache_clear()
    yield
    cpu.cpu_target.cache_clear()


def fresh(function: Callable) -> Callable:
    torch.compiler.reset()
    return torchweld.fuse(function)


def step(function: Callable, args, scale: float = 1.0) -> list[torch.Tensor]:
    """The loss, and the gradients of those that have one."""
    args = [a.detach().requires_grad_(a.requires_grad) for a in args]
    loss = function(*args)
    (loss * scale).backward()
    return [loss.detach(), *(a.grad for a in args if a.requires_grad)]


def wide(args) -> list[torch.Tensor]:
    made = [a.detach().double() if a.is_floating_point() else a for a in args]
    return [m.requires_grad_(a.requires_grad) for m, a in zip(made, args)]


def check(fused: Callable, function: Callable, args, scale: float = 1.0) -> None:
    found, eager = step(fused, args, scale), step(function, args, scale)
    exact = step(function, wide(args), scale)
    for name, *three in zip(("loss", "first", "second"), found, eager, exact):
        error = compare(name, *three)
        assert error.ok, error


def largest(fused: Callable) -> int:
    """Elements of the largest buffer of any graph."""
    graphs = [r.graph for r in torchweld.records(fused)]
    return max(prod(b.shape) for g in graphs for b in g.buffers.values())


def products(fused: Callable) -> int:
    """Of all rows, each chunk a part."""
    calls = [n for r in torchweld.records(fused) for n in r.graph.nodes if "_rows_0" in n.name]
    return sum(hasattr(n, "target") for n in calls)


@pytest.mark.parametrize("function", AHEAD, ids=lambda f: f.__name__)
def test_gradients_are_made_with_the_loss(function):
    args = inputs()
    fused = fresh(function)
    check(fused, function, args)
    assert largest(fused) < WHOLE
    assert products(fused) == (4 if function.__name__ in ("kl", "jsd") else 3)


@pytest.mark.parametrize("function", AGAIN, ids=lambda f: f.__name__)
def test_logits_are_made_again_where_all_rows_come_first(function):
    args = inputs()
    fused = fresh(function)
    check(fused, function, args)
    assert largest(fused) < WHOLE


@pytest.mark.parametrize("function", [*AHEAD, *AGAIN], ids=lambda f: f.__name__)
def test_losses_alone(function):
    args = inputs()
    fused = fresh(function)
    with torch.no_grad():
        error = compare("loss", fused(*args), function(*args), function(*wide(args)))
    assert error.ok, error
    assert largest(fused) < WHOLE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [summed, cross_entropy, dpo], ids=lambda f: f.__name__)
def test_half_precision(function, dtype):
    args = inputs(dtype)
    fused = fresh(function)
    check(fused, function, args)
    assert largest(fused) < WHOLE or dtype == torch.float16  # too small


@pytest.mark.parametrize("rows", [1023, 997])
def test_odd_rows(rows):
    args = inputs(rows=rows)
    fused = fresh(cross_entropy)
    check(fused, cross_entropy, args)
    assert largest(fused) < rows * CLASSES


def test_all_rows_ignored():
    x, weight, labels = inputs()
    fused = fresh(cross_entropy)
    found, eager = (step(f, (x, weight, torch.full_like(labels, -100)))
                    for f in (fused, cross_entropy))  # fmt: skip
    assert found[0].isnan()
    for ours, theirs in zip(found, eager):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_labels_out_of_range():
    x, weight, labels = inputs()
    fused = fresh(cross_entropy)
    step(fused, (x, weight, labels))
    labels[700] = CLASSES
    with pytest.raises(IndexOutOfRange):
        fused(x, weight, labels)


@pytest.mark.parametrize("frozen", [0, 1])
def test_one_gradient_is_not_asked_for(frozen):
    args = inputs()
    args[frozen].requires_grad_(False)
    fused = fresh(cross_entropy)
    check(fused, cross_entropy, args)
    assert products(fused) == 2


def test_a_scaled_loss():
    check(fresh(cross_entropy), cross_entropy, inputs(), scale=2.0**16 / 3)


def test_backward_twice():
    args = inputs()
    found, eager = [], []
    for function, into in ((fresh(cross_entropy), found), (cross_entropy, eager)):
        args = [a.detach().requires_grad_(a.requires_grad) for a in args]
        loss = function(*args)
        loss.backward(retain_graph=True)
        loss.backward()
        into += [a.grad for a in args[:2]]
    for ours, theirs in zip(found, eager):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_loss_for_each_row():
    def each(x, weight, labels):
        return F.cross_entropy(F.linear(x, weight), labels, reduction="none")

    def halved(x, weight, labels):
        factors = torch.arange(ROWS, dtype=x.dtype) / ROWS
        return (fused(x, weight, labels) * factors).sum()

    def eager(x, weight, labels):
        factors = torch.arange(ROWS, dtype=x.dtype) / ROWS
        return (each(x, weight, labels) * factors).sum()

    fused = fresh(each)
    check(halved, eager, inputs())
    assert largest(fused) < WHOLE


def test_logits_that_the_model_returns():
    def model(x, weight, labels):
        logits = F.linear(x, weight)
        return F.cross_entropy(logits, labels), logits

    fused = fresh(model)
    args = inputs()
    check(lambda *a: fused(*a)[0], lambda *a: model(*a)[0], args)
    check(lambda *a: fused(*a)[1].sum(), lambda *a: model(*a)[1].sum(), args)
    record = next(r for r in torchweld.records(fused) if r.kind == "backward")
    own = {w for n in record.graph.nodes for w in n.writes}
    assert max(prod(record.graph.buffers[b].shape) for b in own) < WHOLE


def test_explain_names_the_region():
    fused = fresh(cross_entropy)
    step(fused, inputs())
    text = str(torchweld.explain(fused))
    assert "by row chunks" in text and "large results in memory at once" in text


def test_hidden_layers_are_kept():
    def layer(x, up, down):
        return (F.relu(x @ up) @ down).sum()

    x, up, down = (torch.randn(*s, requires_grad=True)
                   for s in ((2048, 256), (256, 1024), (1024, 256)))  # fmt: skip
    fused = fresh(layer)
    check(fused, layer, (x, up, down))
    backward = next(r for r in torchweld.records(fused) if r.kind == "backward")
    assert sum(prod(backward.graph.buffers[b].shape) == 2048 * 1024
               for b in backward.graph.inputs if b) >= 1  # fmt: skip
    assert "row chunks" not in str(torchweld.explain(fused))


def test_peak():
    """The arena, the results and what is kept: less than half of what the logits would take."""
    fused = fresh(cross_entropy)
    step(fused, inputs())
    gradients = 4 * DEPTH * (ROWS + CLASSES)
    for record in torchweld.records(fused):
        peak = peak_bytes(record.graph, (), {}, record.kind == "backward")
        assert peak < 4 * WHOLE / 2 + 2 * gradients


def test_a_small_share_of_the_memory_stays_whole(monkeypatch):
    monkeypatch.setattr(row_price, "_SHARE", 1.0)
    args, fused = inputs(), fresh(cross_entropy)
    check(fused, cross_entropy, args)
    assert largest(fused) >= WHOLE

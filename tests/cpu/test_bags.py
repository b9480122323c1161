"""Bags of embeddings of one length: one kernel, equal to eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.ir.nodes import Comp


def fused_bag(bag: nn.EmbeddingBag, *args):
    """What the fused bag gives without gradients, and the nodes of its plan."""
    torch._dynamo.reset()
    fused = torchweld.fuse(bag)
    with torch.no_grad():
        result = fused(*args)
    return result, [n for r in torchweld.records(fused) for n in r.graph.nodes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("shape", [(7, 3), (1, 1), (64, 20)])
def test_bags_of_one_length_are_one_kernel(shape, mode, dtype):
    torch.manual_seed(0)
    bag, index = nn.EmbeddingBag(50, 33, mode=mode, dtype=dtype), torch.randint(0, 50, shape)
    result, nodes = fused_bag(bag, index)
    rows = F.embedding(index, bag.weight.double())
    expected = rows.amax(1) if mode == "max" else rows.sum(1) / (shape[1] if mode == "mean" else 1)
    with torch.no_grad():
        mine, eagers = ((x.double() - expected).abs().max() for x in (result, bag(index)))
    assert mine <= 1.01 * eagers + 1e-6
    assert any(isinstance(n, Comp) and "embedding" in n.name for n in nodes)


def test_factors_of_single_entries():
    torch.manual_seed(0)
    bag, index = nn.EmbeddingBag(50, 33, mode="sum"), torch.randint(0, 50, (9, 5))
    factors = torch.randn(9, 5)
    result, nodes = fused_bag(bag, index, None, factors)
    torch.testing.assert_close(result, bag(index, None, factors))
    assert any("embedding" in n.name for n in nodes if isinstance(n, Comp))


@pytest.mark.parametrize(
    "bag, args",
    [
        (nn.EmbeddingBag(50, 8, mode="sum", padding_idx=0), (torch.randint(0, 3, (6, 4)),)),
        (nn.EmbeddingBag(50, 8, max_norm=0.5), (torch.randint(0, 50, (6, 4)),)),
        (nn.EmbeddingBag(50, 8), (torch.randint(0, 50, (24,)), torch.tensor([0, 3, 3, 20]))),
    ],
)
def test_other_bags_are_left_to_aten(bag, args):
    torch.manual_seed(0)
    result, _ = fused_bag(bag, *args)
    with torch.no_grad():
        torch.testing.assert_close(result, bag(*args))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [0, 2])
def test_entries_that_only_fill_bags_up_do_not_count(mode, padding):
    """Also entry 0, which is equal to False in Python."""
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(5, 8, mode=mode, padding_idx=padding)
    bag.weight.data.normal_()
    index = torch.randint(0, 5, (9, 3))
    torch._dynamo.reset()
    with torch.no_grad():
        result = torch.compile(bag, backend="torchweld")(index)
        torch.testing.assert_close(result, bag(index))
        torch.testing.assert_close(fused_bag(bag, index)[0], bag(index))


def test_a_row_that_is_not_there_is_an_error():
    bag = nn.EmbeddingBag(50, 8, mode="sum")
    with pytest.raises((IndexError, RuntimeError)):
        fused_bag(bag, torch.full((3, 2), 50))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("offsets", [None, torch.tensor([0, 3, 3, 20])])
def test_sums_of_bfloat16_are_learned(mode, offsets, recwarn):
    """ATen's fast way returns less than torch's shape function says."""
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(50, 8, mode=mode, dtype=torch.bfloat16)
    index = torch.randint(0, 50, (24,) if offsets is not None else (6, 4))
    torch._dynamo.reset()
    got, wanted = (f(index, offsets).sin() for f in (torchweld.fuse(bag), bag))
    torch.testing.assert_close(got, wanted)
    (mine,), (its,) = (torch.autograd.grad(y.sum(), bag.weight) for y in (got, wanted))
    torch.testing.assert_close(mine, its)
    assert not [w for w in recwarn if issubclass(w.category, torchweld.TorchweldWarning)]

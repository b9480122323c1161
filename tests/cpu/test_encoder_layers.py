"""Encoder layers that torch calls in one piece for inference, taken apart: as exact as before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchweld
from torchweld.ir.nodes import Extern


def calls(fused) -> set[str]:
    nodes = (n for r in torchweld.records(fused) for n in r.graph.nodes)
    return {n.target for n in nodes if isinstance(n, Extern)}


def error(value, exact):
    return float((value.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_layer_is_taken_apart_and_as_exact(norm_first, activation):
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = nn.TransformerEncoderLayer(
        48, 3, 80, 0.1, activation, batch_first=True, norm_first=norm_first
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    fused, x = torchweld.fuse(model), torch.randn(3, 17, 48)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        assert error(fused(x), exact) <= 1.5 * error(model(x), exact)
    assert not any("encoder_layer" in target for target in calls(fused))


def test_a_masked_layer_stays_whole():
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval()
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 5:] = True
    fused, x = torchweld.fuse(model), torch.randn(2, 9, 32)
    with torch.no_grad():
        found, expected = (m(x, src_key_padding_mask=padding) for m in (fused, model))
    torch.testing.assert_close(found, expected)


def test_attention_of_inference():
    torch.manual_seed(0)
    torch._dynamo.reset()
    whole = torch.ops.aten._native_multi_head_attention
    weights = [torch.randn(s) / 6 for s in ((96, 32), (96,), (32, 32), (32,))]

    def attend(x):
        return whole(x, x, x, 32, 4, *weights, need_weights=False)[0]

    fused, x = torchweld.fuse(attend), torch.randn(2, 9, 32)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), attend(x))
    assert not any("native_multi_head" in target for target in calls(fused))

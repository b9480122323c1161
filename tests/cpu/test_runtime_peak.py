"""Peak memory of a call is not above eager's, in inference and in training. test_report_zoo.py asks
that of the zoo, of models that it has compiled."""

from __future__ import annotations

import copy
from math import prod

import pytest
import torch
from torch import nn

import torchweld
from torchweld.observe.measure.memory import added_bytes
from torchweld.runtime.memory import POOL
from torchweld.targets.find import target_of
from torchweld.templates.generate import generate_all, kernels_of

# Alignment of many small buffers; and of a training step, gradients that a fused kernel has alive
# together where eager makes them one by one (measured: 3 % for ResNet).
SLACK_BYTES, SLACK = 1 << 16, {False: 0.0, True: 0.04}


def assert_peak_is_not_above(eager: nn.Module, fused: nn.Module, args: tuple, train: bool) -> None:
    """Of one call, after two that warm up. What the largest of our own products packs is not
    counted: nor is what a library's does, within."""
    found = []
    for model in (eager, fused):
        step = _step(model, args, train)
        for _ in range(2):
            step()
        eager.zero_grad(set_to_none=True)
        POOL.release()
        found.append(added_bytes(step, "cpu"))
        eager.zero_grad(set_to_none=True)
    ours = found[1] - packed_bytes(fused)
    assert ours <= found[0] * (1 + SLACK[train]) + SLACK_BYTES, f"{ours / found[0]:.3f} of eager's"


def packed_bytes(fused: nn.Module) -> int:
    """Of the largest factor that a kernel of ours packs."""
    target = target_of("cpu")
    bundles = (generate_all(kernels_of(r.graph, target)) for r in torchweld.records(fused))
    scratch = (s for of_graph in bundles for b in of_graph.values() for s in b.scratch)
    return max((prod(s.shape) * s.dtype.bytes for s in scratch if "packed" in s.name), default=0)


def _step(model: nn.Module, args: tuple, train: bool):
    def step() -> None:
        with torch.set_grad_enabled(train):
            result = model(*args)
            if train:
                result.backward()

    return step


class Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).square().mean()


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_transformer(train):
    """Wide enough for products in pieces, whose workspaces count; tensors of up to 4 MB."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True)
    model = Loss(nn.Sequential(layer, copy.deepcopy(layer))).train()
    args = (torch.randn(8, 128, 256),)
    assert_peak_is_not_above(model, torchweld.fuse(model), args, train)

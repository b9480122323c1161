"""Each zoo model, cut small, fused: within the error contract, and needing no more memory than
eager, in inference and in training."""
from __future__ import annotations

import warnings

import pytest
import torch
from test_runtime_peak import assert_peak_is_not_above

import torchweld
from torchweld.exact.budget import Budget
from torchweld.observe.report.build import MEANINGLESS
from torchweld.observe.views.explain import explain
from torchweld.zoo import models

pytest.importorskip("transformers")
ALL = sorted(models.TABLE)
BATCH = {"resnet50": 32, "vit-b16": 32, "whisper-encoder": 32}  # enough for memory to count
LONGEST_SUM = 32 * 17 * 17  # over batch and pixels, in the tiny resnet50's first normalisation


@pytest.fixture(autouse=True)
def no_fallback():
    """A warning of torchweld means that something runs in eager."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ALL)
def test_ahead_of_time(name, dtype):
    batch = BATCH.get(name, 64) if dtype is torch.float32 else None
    target = models.load(name, "tiny", dtype=dtype, batch=batch)
    fused = torchweld.fuse(target.model, target.example_inputs)
    found = torchweld.verify(target.model, fused, target.example_inputs)
    assert found.ok, str(found)
    assert _fused_groups(fused) > 0
    if batch is not None:
        assert_peak_is_not_above(target.model, fused, _args(target), False)


@pytest.mark.parametrize("name", ALL)
def test_training(name):
    target = models.load(name, "tiny", train=True, batch=BATCH.get(name, 64))
    fused = torchweld.fuse(target.model)
    found = torchweld.verify(target.model, fused, target.example_inputs, train=True, seeds=(0,),
                             budget=Budget(terms=LONGEST_SUM))
    assert not [e for e in found.errors if e.reason and e.eager_l2 < MEANINGLESS], str(found)
    kinds = {record.kind for record in torchweld.records(fused)}
    assert kinds == {"forward", "backward"} and _fused_groups(fused) > 0
    assert_peak_is_not_above(target.model, fused, _args(target), True)


def _args(target) -> tuple:
    return tuple(target.args) or tuple((target.kwargs or {}).values())


def test_weights_changed_in_place_are_followed():
    target = models.load("bert-base", "tiny")
    fused = torchweld.fuse(target.model, target.example_inputs)
    with torch.no_grad():
        before = fused(*target.args)[0].clone()
        for parameter in target.model.parameters():
            parameter.mul_(1.5)
        after = fused(*target.args)[0]
    assert not torch.allclose(before, after)
    assert torchweld.verify(target.model, fused, target.example_inputs, seeds=(0,)).ok


def _fused_groups(fused) -> int:
    return sum(len(part.groups) for part in explain(fused).graphs)

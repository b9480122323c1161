"""Every zoo model in its tiny size: the architecture, its inputs and its loss fit together,
without a download."""
from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from torchweld.core.errors import EnvironmentProblem, UsageError
from torchweld.zoo import models
from torchweld.zoo.targets import check_fits, tensors

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
ALL = sorted(models.TABLE)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", ALL)
def test_inference_is_finite_and_repeats(name):
    target = models.load(name, "tiny")
    with torch.no_grad():
        first, second = (tensors(target.model(*target.args)) for _ in range(2))
    assert not target.model.training
    for a, b in zip(first, second):
        assert a.isfinite().all() and torch.equal(a, b)


@pytest.mark.parametrize("name", ALL)
def test_training_loss_reaches_the_first_layer(name):
    target = models.load(name, "tiny", train=True)
    loss = target.model(*target.args)
    loss.backward()
    first = next(p for p in target.model.parameters() if p.requires_grad)
    assert loss.shape == () and loss.dtype == torch.float32 and loss.isfinite()
    assert first.grad.abs().max() > 0


@pytest.mark.parametrize("name", ALL)
def test_bfloat16_keeps_integer_inputs(name):
    target = models.load(name, "tiny", dtype=torch.bfloat16)
    check_fits(target)
    assert all(p.dtype == torch.bfloat16 for p in target.model.parameters())
    assert all(a.dtype in (torch.bfloat16, torch.int64) for a in target.args)


def test_seed_decides_weights_and_inputs():
    one, same, other = (models.load("geglu-mlp", "tiny", seed=s) for s in (1, 1, 2))
    assert torch.equal(one.args[0], same.args[0]) and not torch.equal(one.args[0], other.args[0])
    assert torch.equal(one.model.up.weight, same.model.up.weight)


def test_loading_leaves_the_global_random_state():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    models.load("geglu-mlp", "tiny")
    assert torch.equal(torch.rand(2), expected)


def test_batch_and_length_replace_those_of_the_size():
    target = models.load("gpt2", "tiny", batch=3, length=11)
    assert target.args[0].shape == (3, 11)


@pytest.mark.parametrize("name, parameters", [("llama-1b", 1.236e9), ("bert-base", 109.5e6),
                                              ("gpt2", 124.4e6), ("vit-b16", 86.6e6),
                                              ("resnet50", 25.6e6)])
def test_full_architectures_have_the_published_size(name, parameters):
    entry = models.TABLE[name]
    with torch.device("meta"):
        model = entry.build(entry.config)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, rel=1e-2)


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no 'bert'.*bert-base"):
        models.load("bert")


def test_a_missing_transformers_is_told(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EnvironmentProblem, match="transformers: pip install"):
        models.load("bert-base", "tiny")

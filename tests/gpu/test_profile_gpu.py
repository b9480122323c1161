"""Profiles on a GPU: kernels tied to operations in eager, in our programs and in CUDA graphs."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.zoo.models import load


@pytest.fixture(scope="module")
def mlp():
    return load("geglu-mlp", "tiny", dtype=torch.bfloat16, device="cuda")


def test_every_eager_kernel_is_tied_to_a_line(mlp):
    found = torchweld.profile(mlp.model, mlp.args)
    assert found.totals.tied_share == 1.0
    modules = [k.places[0].module for k in found.kernels]
    assert {"gate", "up", "down", ""} <= set(modules)
    assert all(k.places[0].source.rpartition(":")[0].endswith("models.py") for k in found.kernels)
    assert sum(k.product for k in found.kernels) == 3
    assert "aten.mul.Tensor" in [p.op for p in found.opportunities[0].places]


def test_replayed_kernels_are_those_of_the_graph_s_nodes(mlp):
    fused = torchweld.fuse(mlp.model, mlp.args)
    found = torchweld.profile(fused, mlp.args)
    assert found.way == "torchweld"
    generated = [k for k in found.kernels if k.kind == "generated"]
    ops = {p.op for k in generated for p in k.places}
    assert {"aten.gelu.default", "aten.mul.Tensor"} <= ops
    untied = [k.name for k in found.kernels if not k.places]
    assert all(name.startswith("copy") for name in untied)  # inputs and outputs of the recording
    assert 0 < found.totals.tied_share < 1


def test_training_is_tied_in_both_directions():
    target = load("bert-base", "tiny", dtype=torch.bfloat16, device="cuda", train=True)
    found = torchweld.profile(target.model, target.args, train=True)
    assert {k.phase for k in found.kernels} == {"forward", "backward"}
    assert found.totals.tied_share > 0.95
    assert found.memory.peak_bytes > 0 and found.memory.alive


def test_energy_is_counted_or_its_absence_told(mlp):
    energy = torchweld.profile(mlp.model, mlp.args).energy
    assert (energy.joules is None) == (energy.problem is not None)
    if energy.joules is not None:
        assert energy.watts > 1 and energy.window_s > 1

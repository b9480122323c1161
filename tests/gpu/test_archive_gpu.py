"""Archives with kernels of a GPU: the fused model's numbers, bit for bit, in a process without
Triton, a compiler, Dynamo or a cache; in calls before and after a CUDA graph is recorded."""

from __future__ import annotations

import pytest
import torch

import torchweld
from archive_models import Case, cases, exported, on_gpu, run_elsewhere


def _chosen() -> dict[str, Case]:
    """Half precision too: there products are torchweld's own kernels, some of them with TMA."""
    made = {name: on_gpu(case) for name, case in cases().items() if name != "packed"}
    layers = torch.nn.Linear(768, 3072), torch.nn.GELU(), torch.nn.Linear(3072, 768)
    large = torch.nn.Sequential(*layers).eval().bfloat16()
    x = torch.randn(512, 768, dtype=torch.bfloat16)
    return made | {"product": on_gpu(Case(large, (x,)))}


NAMES = sorted([*(cases().keys() - {"packed"}), "product"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return exported(_chosen(), tmp_path_factory.mktemp("archives"), repeat=4)


@pytest.fixture(scope="module")
def ran(folder, tmp_path_factory):
    return run_elsewhere(folder, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", NAMES)
def test_same_numbers_where_nothing_can_be_compiled(ran, name):
    assert ran[name] == "same"


def test_an_input_at_an_odd_address(folder):
    model = torchweld.load(folder / "mlp.tw")
    flat = torch.randn(7 * 64 + 1, device="cuda")
    odd = flat[1:].view(7, 64)
    assert torch.equal(model(odd), model(odd.clone()))


def test_it_needs_this_kind_of_gpu(folder):
    major, minor = torch.cuda.get_device_capability()
    assert torchweld.load(folder / "mlp.tw").manifest.needs.gpu == f"{major}.{minor}"

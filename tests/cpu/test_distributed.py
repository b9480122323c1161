"""Training on two processes over gloo: DDP, FSDP2 and tensor parallel give the losses that eager
gives, whichever of fusing and distributing comes first."""

from __future__ import annotations

import pytest
import torch

from distributed_run import train
from forked import Forked

VARIANTS = ["DDP of a fused model", "a fused DDP model", "FSDP2 of fused blocks",
            "a fused FSDP2 model", "fused tensor parallel"]

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch has no gloo")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("two")
    (found,), _ = [process.rest() for process in [Forked(train, rank, folder) for rank in (0, 1)]]
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_are_those_of_eager(found, variant):
    one = found[variant]
    assert one["fused"] == pytest.approx(one["eager"], rel=1e-5)
    assert one["eager"][-1] < one["eager"][0]  # it does train


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_forward_and_the_backward_are_compiled(found, variant):
    assert found[variant]["kinds"] == ["backward", "forward"], found[variant]

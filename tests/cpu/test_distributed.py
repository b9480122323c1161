"""Training on two processes over gloo: DDP, FSDP2 and tensor parallel give the losses that eager
gives, whichever of fusing and distributing comes first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

RUN = Path(__file__).parents[1] / "distributed_run.py"
VARIANTS = ["DDP of a fused model", "a fused DDP model", "FSDP2 of fused blocks",
            "a fused FSDP2 model", "fused tensor parallel"]

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch has no gloo")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("two")
    both = [subprocess.Popen([sys.executable, str(RUN), str(rank), str(folder)],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in (0, 1)]
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [p.returncode for p in both] == [0, 0], "\n".join(said)[-4000:]
    return json.loads((folder / "losses.json").read_text())


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_are_those_of_eager(found, variant):
    one = found[variant]
    assert one["fused"] == pytest.approx(one["eager"], rel=1e-5)
    assert one["eager"][-1] < one["eager"][0]  # it does train


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_forward_and_the_backward_are_compiled(found, variant):
    assert found[variant]["kinds"] == ["backward", "forward"], found[variant]

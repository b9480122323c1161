"""Which private names of torch every layer depends on, and why; the file fails on a release that
moves one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from torchweld.core import torch_private

WHY = {
    "pytree": "inputs and outputs as torch.export arranges them",
    "_disable_current_modes": "constants are computed on real tensors inside a trace",
}


@pytest.mark.parametrize("name", sorted(WHY))
def test_name_is_there(name):
    assert hasattr(torch_private, name)


def test_a_structure_goes_through_json():
    tree = {"x": torch.ones(1), "rest": (None, [torch.ones(2)])}
    leaves, spec = torch_private.pytree.tree_flatten(tree)
    assert torch_private.pytree.treespec_loads(torch_private.pytree.treespec_dumps(spec)) == spec
    assert len(leaves) == 3


_WITHOUT_DYNAMO = """
import sys
sys.modules["torch._dynamo"] = None
import torchweld.deploy.load
"""


def test_an_archive_is_loaded_without_dynamo():
    subprocess.run([sys.executable, "-c", _WITHOUT_DYNAMO], check=True, timeout=120)

"""Which private names of torch every layer depends on, and why; the file fails on a release that
moves one."""

from __future__ import annotations

import pytest
import torch

from torchweld.core import torch_private

WHY = {
    "pytree": "inputs and outputs as torch.export arranges them",
    "_disable_current_modes": "constants are computed on real tensors inside a trace",
    "_INCLUDED": "dispatch keys of a user's code, for `above_autograd` (torch._C._dispatch_tls...)",
    "_EXCLUDED": "the same, those left out",
    "forward_ad": "its _current_level says whether tensors may carry derivatives",
}


@pytest.mark.parametrize("name", sorted(WHY))
def test_name_is_there(name):
    assert hasattr(torch_private, name)


def test_calls_are_recorded_where_a_graph_had_gone_below_autograd():
    x = torch.ones(2, requires_grad=True)
    with torch._C._AutoDispatchBelowAutograd():
        assert (x * 2).grad_fn is None
        with torch_private.above_autograd():
            assert (x * 2).grad_fn is not None


def test_forward_derivatives_are_seen():
    assert not torch_private.in_forward_ad()
    with torch.autograd.forward_ad.dual_level():
        assert torch_private.in_forward_ad()
    assert not torch_private.in_forward_ad()


def test_a_structure_goes_through_json():
    tree = {"x": torch.ones(1), "rest": (None, [torch.ones(2)])}
    leaves, spec = torch_private.pytree.tree_flatten(tree)
    assert torch_private.pytree.treespec_loads(torch_private.pytree.treespec_dumps(spec)) == spec
    assert len(leaves) == 3

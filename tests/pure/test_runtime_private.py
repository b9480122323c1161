"""The private parts of torch that the runtime uses are where it expects them: a release that moves
one fails here first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from torchweld.runtime import torch_private

# name -> why the public interface does not do
NAMES = {
    "torch._C._AutoDispatchBelowAutograd": "no_grad still dispatches to autograd",
    "torch._C._cuda_getCurrentRawStream": "a Stream object costs as much as a launch",
    "torch._C._cuda_isCurrentStreamCapturing": "the public one asks whether CUDA is there first",
    "torch._C._cuda_getDevice": "the same",
    "torch.ops.mkldnn._reorder_linear_weight": "no public packing of weights",
    "torch.ops.mkldnn._linear_pointwise": "F.linear leaves float32 to MKL, 2.4x slower on Zen",
    "torch.ops.mkldnn._linear_pointwise.binary": "the same, added to a tensor",
    "torch.utils._python_dispatch.TorchDispatchMode": "profile counts ATen calls and bytes",
    "torch.autograd._get_sequence_nr": "ties a backward operation to its forward one",
    "torch._C._current_autograd_node": "the same, in the backward",
    "torch._C._profiler._RecordFunctionFast": "record_function costs ten times as much",
    "torch._foreach_copy_": "no public grouped copy",
    "torch._C._cuda_clearCublasWorkspaces": "a recording would keep a second workspace",
    "torch._C._cuda_endAllocateToPool": "a recording that fails leaves the allocator in it",
    "torch._C._cuda_releasePool": "a recording that fails keeps its pool",
    "torch._C._aoti.unsafe_alloc_void_ptr_from_tensor": "what torch's C interface takes",
    "torch._C._dynamo.guards._empty_strided_cpu": "empty_strided takes twice as long",
    "torch._C._dynamo.guards._empty_strided_cuda": "empty_strided takes twice as long",
    "torch._C._dynamo.guards._reinterpret_tensor": "as_strided takes twice as long",
}
_CUDA_ONLY = frozenset(n for n in NAMES if n.startswith("torch._C._cuda_"))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_name_exists(name):
    if name in _CUDA_ONLY and not torch.version.cuda:
        pytest.skip("a build without CUDA")
    found = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert callable(found)


def test_every_private_name_is_listed():
    text = Path(torch_private.__file__).read_text()
    used = set(re.findall(r"torch(?:\.\w+)*\._(?!_)\w+(?:\.\w+)*", text))
    assert {u for u in used if u != "torch._C"} == set(NAMES)


def test_below_autograd_records_no_gradient():
    weight = torch.nn.Parameter(torch.ones(3))
    with torch_private.below_autograd():
        assert not (weight * 2).requires_grad
    assert (weight * 2).requires_grad

"""Every private name of torch that capture uses, so that a new release is checked in one place.

`tests/pure/test_capture_private.py` says which names and why; it fails on a release that moves one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
import torch._functorch.config as functorch_config
from torch._C._dynamo.guards import TensorGuards
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

OpOverload = torch._ops.OpOverload
pytree = torch.utils._pytree

_NORMALISATIONS = [
    torch.ops.aten.native_batch_norm,
    torch.ops.aten._batch_norm_with_update,
    torch.ops.aten._batch_norm_with_update_functional,
    torch.ops.aten._batch_norm_no_update,
    torch.ops.aten.batch_norm_backward,
]

Compiler = Callable[[torch.fx.GraphModule, Sequence], Callable]

# Dynamo's own control flow (restart the analysis, skip the frame): never ours to swallow.
DynamoControl = TorchDynamoException


def core_decompositions() -> dict:
    """A fresh {OpOverload: function}: torch's core ATen table, and the normalisations that it
    leaves out."""
    return {**core_aten_decompositions(), **get_decompositions(_NORMALISATIONS)}


def trace_with_autograd(
    forward: Compiler,
    backward: Compiler,
    inference: Compiler,
    partition: Callable,
    decompositions: dict,
) -> Callable:
    """A Dynamo backend that traces forward and backward together, functionalises them and hands
    each part to its compiler.

    Where autograd need not see a mutation of an input, it is a `copy_` at the end of the graph.
    Views are recomputed in the backward rather than saved, so that parameters reach it as
    themselves.
    """
    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )

    def traced(gm: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
        with functorch_config.patch(recompute_views=True):
            return backend(gm, example_inputs)

    return traced


def min_cut_partition(joint: torch.fx.GraphModule, inputs, **kwargs):
    """(forward, backward): what is cheap is computed again in the backward, by a minimum cut over
    the bytes saved."""
    return min_cut_rematerialization_partition(joint, inputs, **kwargs)


def static_input_positions() -> frozenset[int]:
    """During a compiler's call: positions of the forward's inputs that are parameters or
    buffers."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    return frozenset(context.fw_metadata.static_input_indices)


def number_of_results() -> int | None:
    """During the forward compiler's call: how many of its outputs autograd or the user sees; those
    after them are kept for the backward. None if it is not known."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return None
    return context.fw_metadata.num_forward


def is_view(node: torch.fx.Node) -> bool:
    """The operation's result may share memory with an argument."""
    return isinstance(node.target, OpOverload) and any(
        r.alias_info is not None for r in node.target._schema.returns
    )


def without_modes() -> contextlib.AbstractContextManager:
    """Real tensors inside a trace: no fake mode, no functionalisation, no proxies."""
    return _disable_current_modes()


def fake_tensors() -> contextlib.AbstractContextManager:
    """Tensors made inside have shapes, types and devices but no data; real ones become such."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def plain_surroundings() -> bool:
    """No autocast, no functorch transform, no dispatch mode: a graph captured without them may be
    called."""
    return not (
        torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack()
    )


class TensorCheck:
    """One C++ call, 40 ns a tensor, that compares class, dtype, device, sizes, strides, dispatch
    keys and which are one object with the tensors that it was made from. Stricter than need be,
    never laxer."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        first = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        self._unique = sorted(first.values())
        self._tied = [(i, first[id(t)]) for i, t in enumerate(tensors) if first[id(t)] != i]
        unique = [tensors[i] for i in self._unique]
        self._check = TensorGuards(  # it refuses to see a tensor twice
            *unique,
            dynamic_dims_sizes=[list(t.shape) for t in unique],
            dynamic_dims_strides=[list(t.stride()) for t in unique],
        ).check

    def passes(self, values: Sequence) -> bool:
        if not self._tied:
            return self._check(*values)
        return all(values[i] is values[j] for i, j in self._tied) and self._check(
            *[values[i] for i in self._unique]
        )


def onednn_multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN has instructions of this CPU for products in a 16-bit type."""
    name = "fp16" if dtype == torch.float16 else "bf16"
    known = getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")
    return torch.backends.mkldnn.is_available() and known()

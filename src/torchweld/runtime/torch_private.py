"""The private parts of torch that the runtime uses, all of them, each for one reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

# Sees each ATen call, those of the backward pass too; the profiler names only operators.
DispatchMode = torch.utils._python_dispatch.TorchDispatchMode


# A context manager: ATen calls go past autograd's dispatch keys. The public `no_grad` still pays
# for them, and refuses `out=` where an argument requires a gradient.
below_autograd = torch._C._AutoDispatchBelowAutograd

# None in a build of torch without CUDA. CUDA is in use already where they are called, which the
# public functions ask first.
_HAS_CUDA = torch.version.cuda is not None
# (the device's number) -> the current stream's handle; building a `torch.cuda.Stream` object costs
# as much as a launch.
raw_stream = torch._C._cuda_getCurrentRawStream if _HAS_CUDA else None
# () -> whether the current stream is being recorded
is_capturing = torch._C._cuda_isCurrentStreamCapturing if _HAS_CUDA else None
# () -> the number of the current device
current_gpu = torch._C._cuda_getDevice if _HAS_CUDA else None


def pack_linear_weight(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [out, in], contiguous, in the layout that oneDNN prefers; there is no public
    packing."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


def onednn_linear(x, weight, bias, activation: str, algorithm: str | None) -> torch.Tensor:
    """activation(x @ weight.T + bias) by oneDNN, on a plain or packed weight; `F.linear` leaves
    float32 to MKL, and takes neither activations nor packed weights."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], algorithm)


def onednn_linear_add(x, total, weight) -> torch.Tensor:
    """x @ weight.T + total, as one oneDNN call."""
    return torch.ops.mkldnn._linear_pointwise.binary(x, total, weight, None, "add")


def end_failed_allocation(device_index: int, pool: tuple[int, int]) -> None:
    """After a CUDA graph whose recording failed: torch leaves the allocator believing that the
    recording goes on, so that memory is never given back again. The allocator of pinned memory
    cannot be told, so `pool` is not to be recorded to again."""
    torch._C._cuda_endAllocateToPool(device_index, pool)
    torch._C._cuda_releasePool(device_index, pool)


def free_cublas_workspaces() -> None:
    """cuBLAS has a workspace of 32 MiB on each stream that it has run on, kept for ever; one that
    is needed again is made again. No call of cuBLAS may be under way in another thread."""
    torch._C._cuda_clearCublasWorkspaces()


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Each source into its target, in as few launches as torch can; there is no public grouped
    copy."""
    if targets:
        torch._foreach_copy_(targets, sources)


def next_sequence_number() -> int:
    """Of autograd nodes: an operation called just after a node was made sees that node's plus
    one."""
    return torch.autograd._get_sequence_nr()


def sequence_number_in_backward() -> int | None:
    """That of the node whose backward runs now: the profiler tells it, but only afterwards."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


# A named range in traces; `torch.profiler.record_function` costs ten times as much.
RecordRange = torch._C._profiler._RecordFunctionFast


def handle_of(tensor: torch.Tensor):
    """For torch's C interface; whoever takes it must delete it there."""
    return torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)


def exchange_table():
    """The capsule by which C code looks at a tensor without owning it."""
    return torch.Tensor.__dlpack_c_exchange_api__


def strided_maker(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor]:
    """A function that makes new tensors, on a CPU or on the current GPU, which `device` must be;
    the public `empty_strided` takes twice as long to read its arguments."""
    empty = torch._C._dynamo.guards._empty_strided_cpu
    if device.type == "cuda":
        empty = torch._C._dynamo.guards._empty_strided_cuda
    return partial(empty, tuple(shape), tuple(strides), dtype)


# (tensor, shape, strides, elements after its first) -> a tensor over the same memory, which to
# autograd is no view, and has a version counter of its own; `as_strided` takes twice as long.
bare_window = torch._C._dynamo.guards._reinterpret_tensor


def graph_handle(graph: torch.cuda.CUDAGraph) -> int | None:
    """What the driver calls the recorded graph; torch's own replay also hands out random numbers,
    two launches more."""
    return graph.raw_cuda_graph_exec()


def library_path() -> str:
    """The library with torch's C interface."""
    return str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")

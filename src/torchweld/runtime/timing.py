"""How long a small program takes on a GPU, its data not in the cache."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import torch

from torchweld.codegen.source import KernelBundle
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import Buffer, Graph
from torchweld.ir.size import evaluate
from torchweld.runtime.load import load

_ROTATED_BYTES = 256 << 20  # of inputs: several times the L2 of any GPU
_MOST_SETS = 16
_SPARE_BYTES = 128 << 20  # workspaces of libraries and the recording itself
_REPLAYS = 7


def graph_seconds(graph: Graph, bundles: Mapping[str, KernelBundle], options: Options) -> float:
    """The median over replays of one CUDA graph, which holds a call for each of several sets of
    inputs. Floats are normal, indices zero. Symbols have their hints.

    Raises OutOfMemoryError before it records what may not fit (a failed recording spoils later
    ones), RuntimeError where the program cannot run or cannot be recorded."""
    device = torch.device(next(iter(graph.buffers.values())).device)
    program = load(graph, bundles, {}, options.with_(cuda_graphs=False), kind="inference")
    names = [n for n in graph.inputs if n is not None]
    size = sum(_bytes(graph.buffers[n], graph.hints) for n in names)
    sets = max(1, min(_MOST_SETS, _ROTATED_BYTES // max(1, size)))
    with torch.cuda.device(device), torch.no_grad():
        given = [[_filled(graph.buffers[n], graph.hints) for n in names] for _ in range(sets)]
        kept = [program(list(args)) for args in given]
        torch.cuda.synchronize()
        _check_room_for(kept, device)
        recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording, capture_error_mode="thread_local"):
            kept += [program(list(args)) for args in given]
        return statistics.median(_replay_s(recording) for _ in range(_REPLAYS)) / sets


def _check_room_for(results: list[list[torch.Tensor]], device: torch.device) -> None:
    """A recording has memory of its own: what is cached for others is given back to the system
    first."""
    torch.cuda.empty_cache()
    wanted = _SPARE_BYTES + sum(t.nbytes for tensors in results for t in tensors)
    free, _ = torch.cuda.mem_get_info(device)
    if free < wanted:
        raise torch.OutOfMemoryError(f"{wanted} bytes are wanted for a recording, {free} are free")


def _replay_s(recording: torch.cuda.CUDAGraph) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    recording.replay()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) * 1e-3


def _bytes(buffer: Buffer, hints: Mapping[str, int]) -> int:
    extents = [evaluate(s, hints) for s in buffer.shape]
    return torch.Size(extents).numel() * buffer.dtype.bytes


def _filled(buffer: Buffer, hints: Mapping[str, int]) -> torch.Tensor:
    shape, strides = ([evaluate(s, hints) for s in part] for part in (buffer.shape, buffer.strides))
    made = torch.empty_strided(
        shape, strides, dtype=dtypes.to_torch(buffer.dtype), device=buffer.device
    )
    return made.zero_() if not buffer.dtype.is_float or buffer.dtype.is_float8 else made.normal_()

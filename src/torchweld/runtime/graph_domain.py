"""What CUDA graphs of one device share: the order of their replays, arenas, and pools of memory.

All graphs of a device share one arena. That is safe because replays follow one another: a lock
orders threads, and a stream waits for the one used before it. Those of inference share one pool of
library results too; those of training have one each, because what they hand out outlives a replay.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from weakref import WeakSet

import torch

from torchweld.runtime.memory import Arena, ArenaPool
from torchweld.runtime.torch_private import (
    end_failed_allocation,
    free_cublas_workspaces,
    raw_stream,
)


@dataclass(frozen=True)
class Domain:
    """`stream`: where graphs are recorded. `last`: the handle and the stream of the latest replay.
    `anchor`: the first graph of inference in the shared pool, kept, because a memory pool without a
    graph cannot be used again. `failed`: graphs whose recording failed, kept for ever: torch's
    allocator of pinned memory goes on asking them. `recordings`: all that are in use. `training`:
    the programs of training steps."""

    device: torch.device
    stream: torch.cuda.Stream | None
    lock: threading.RLock = field(default_factory=threading.RLock)
    arenas: ArenaPool = field(default_factory=ArenaPool)
    last: list = field(default_factory=list)
    anchor: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    recordings: WeakSet = field(default_factory=WeakSet)
    training: WeakSet = field(default_factory=WeakSet)

    def shared_pool(self):
        """The handle of the memory that graphs of inference take library results from."""
        return self.anchor[0].pool() if self.anchor else torch.cuda.graph_pool_handle()

    def give_up(self, graph: torch.cuda.CUDAGraph, shared: bool) -> None:
        """After a failed recording. Its pool cannot be recorded to again: torch tells the allocator
        of pinned memory that a recording begins, but not that it failed. So later graphs share a
        new pool."""
        self.failed.append(graph)
        if shared:
            self.anchor.clear()

    def fixed_addresses(self) -> set[int]:
        """Where graphs keep what they hand out."""
        return {address for recording in self.recordings for address in recording.addresses}

    def largest_arena(self, device: torch.device) -> int:
        """The bytes that any program of training needs: they are to share one arena, not to hold
        one each."""
        needs = [need for program in self.training for need in program.needs]
        return max((size for d, size in needs if d == device), default=0)

    def current_stream(self) -> int:
        """The handle of the current stream, which now waits for the one that replayed last."""
        stream = raw_stream(self.device.index)
        if not self.last or self.last[0] != stream:
            current = torch.cuda.current_stream(self.device)
            if self.last:
                current.wait_stream(self.last[1])
            self.last[:] = stream, current
        return stream


@cache
def domain_of(device: torch.device) -> Domain:
    return Domain(device, torch.cuda.Stream(device))


@contextmanager
def arenas_for(
    domain: Domain, needs: list[tuple[torch.device, int]]
) -> Iterator[tuple[Arena, ...]]:
    """Allocated outside the recording, so that graphs can share them."""
    arenas = tuple(domain.arenas.take(device, device, size) for device, size in needs)
    try:
        yield arenas
    finally:
        for (device, _), arena in zip(needs, arenas):
            domain.arenas.give(device, arena)


@contextmanager
def capture(
    graph: torch.cuda.CUDAGraph, domain: Domain, draws: bool, shared: bool
) -> Iterator[None]:
    """Records what is launched inside, in the memory pool that graphs share or one of its own. A
    recording that fails leaves its random generator, its stream and its pool unusable. So the
    stream is put back, the allocator is told, later graphs share another pool, and a graph that
    draws no random numbers gets a generator state of its own: other threads may draw meanwhile. One
    that does (`draws`) must have the user's, whose numbers go on at each replay; if it fails, a
    copy from before takes the place of that state, and graphs recorded with it draw on from the old
    one. cuBLAS gets its workspace from the graph's pool and gives it back there at the end, for
    later graphs of the pool; the one of the calls that have warmed up is freed."""
    generator = torch.cuda.default_generators[domain.stream.device.index]
    state, spare = generator.graphsafe_get_state(), generator.clone_state()
    pool = domain.shared_pool() if shared else torch.cuda.graph_pool_handle()
    recording = torch.cuda.graph(
        graph,
        pool=pool,
        stream=domain.stream,
        capture_error_mode="thread_local",  # other threads may go on using the GPU
    )
    recorded_with, goes_on_with = (state, spare) if draws else (spare, state)
    generator.graphsafe_set_state(recorded_with)
    free_cublas_workspaces()
    try:
        with torch.cuda.stream(torch.cuda.current_stream()), recording:
            generator.graphsafe_set_state(state)
            yield
        goes_on_with = state
    except BaseException:
        with suppress(RuntimeError):  # if it never began
            end_failed_allocation(domain.stream.device.index, pool)
        domain.give_up(graph, shared)
        raise
    finally:
        free_cublas_workspaces()
        generator.graphsafe_set_state(goes_on_with)
    if shared and not domain.anchor:
        domain.anchor.append(graph)

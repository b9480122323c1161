"""CUDA graphs: a program of known sizes, recorded once and replayed with one call.

The first call runs as usual, which loads kernels and lets libraries choose their algorithms; the
second is recorded. Inputs whose storage is fixed (parameters) are read where they are; others are
copied into buffers that the graph reads. Outputs are copied out, so a caller may keep them; large
ones that the last calls make (logits) are made after the replay instead, in memory of their own.

A training step copies nothing large: what a forward keeps for its backward, and the gradients, are
handed out where they are (`handout.py`), and the backward reads them there. While one of them is in
use (a gradient that is added to, a second forward before the backward) calls run without the graph,
which is dropped and recorded again some calls later, a few times.

All graphs of a device share one arena. That is safe because replays follow one another: a lock
orders threads, and a stream waits for the one used before it. Those of inference share one pool of
library results too; those of training have one each, because what they hand out outlives a replay.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from weakref import WeakSet

import torch
from torch.autograd.graph import increment_version

from torchweld.ir.nodes import Extern, View
from torchweld.runtime import regions
from torchweld.runtime.externs import is_random
from torchweld.runtime.handout import HandedOut
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.memory import Arena, ArenaPool
from torchweld.runtime.placement import LARGE_OUTPUT_BYTES
from torchweld.runtime.program import Paused, Program
from torchweld.runtime.record import note
from torchweld.runtime.recordable import recorded_buffers, view_bytes, why_not_recorded
from torchweld.runtime.steps import window
from torchweld.runtime.torch_private import (
    copy_all,
    end_failed_allocation,
    free_cublas_workspaces,
)

_MOST_COPIED_BYTES = 32 << 20  # inputs of a training graph, which are then in memory twice
_MAX_RECORDINGS = 8  # a program whose parameters keep moving is not worth recording again
_WARM_CALLS = {"inference": 1, "forward": 2, "backward": 2}
_data_ptr = torch.Tensor.data_ptr


@dataclass(frozen=True)
class _Domain:
    """What the graphs of one device share. `last`: the stream of the latest replay. `anchor`: the
    first graph of inference in the shared pool, kept, because a memory pool without a graph cannot
    be used again. `failed`: graphs whose recording failed, kept for ever: torch's allocator of
    pinned memory goes on asking them. `recordings`: all that are in use. `training`: the programs
    of training steps."""

    lock: threading.RLock
    arenas: ArenaPool
    stream: torch.cuda.Stream
    last: list
    anchor: list
    failed: list
    recordings: WeakSet
    training: WeakSet

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

    def follow(self, stream: torch.cuda.Stream) -> None:
        """`stream` waits for the one that replayed last."""
        if self.last and self.last[0] != stream:
            stream.wait_stream(self.last[0])
        self.last[:] = [stream]


@cache
def _domain(device: torch.device) -> _Domain:
    stream = torch.cuda.Stream(device)
    return _Domain(threading.RLock(), ArenaPool(), stream, [], [], [], WeakSet(), WeakSet())


@dataclass(frozen=True, eq=False)
class _Recording:
    """`fixed`: positions of inputs that the graph reads where they are, at `pointers`. `inputs`:
    the buffers that it reads instead of others, by position. `arenas`: kept for as long as the
    graph may write to them. `addresses`: of what it hands out."""

    graph: torch.cuda.CUDAGraph
    fixed: tuple[int, ...]
    pointers: tuple[int, ...]
    inputs: dict[int, torch.Tensor]
    left: _Left
    arenas: tuple[Arena, ...]
    addresses: frozenset[int]


@dataclass(frozen=True)
class _Left:
    """What a replay leaves: the outputs, or where a program with a tail goes on."""

    outputs: list | None
    paused: Paused | None

    def results(self) -> list:
        return self.paused.run_tail() if self.outputs is None else self.outputs


class GraphedProgram:
    """A Program that replays itself. Same calling convention. `kind`: inference, forward or
    backward. `loose`: positions of outputs that only the backward sees."""

    def __init__(
        self, program: Program, kind: str = "inference", loose: frozenset[int] = frozenset()
    ) -> None:
        self.record = program.record
        self._program, self._kind = program, kind
        self._device = torch.device(next(iter(program.loaded.graph.buffers.values())).device)
        self._recording: _Recording | None = None
        self._handed_out = HandedOut()
        graph, kinds = self.loaded.graph, self.loaded.placement.kinds
        outputs = [(p, v) for p, v in enumerate(graph.outputs) if isinstance(v, View)]
        given = {n: p for p, n in enumerate(graph.inputs) if kinds.get(n) == "input"}
        recorded = recorded_buffers(self.loaded)
        made = [p for p, v in outputs if v.buffer in recorded]
        self._draws = any(isinstance(n, Extern) and _draws(n.target) for n in graph.nodes)
        self._given_away = _given_away(self.loaded, kind, loose, made)
        self._copied = [p for p in made if p not in self._given_away]
        self._windows = [(p, given[v.buffer], v) for p, v in outputs if v.buffer in given]
        self._calls, self._recordings = 0, 0
        self.needs: list[tuple[torch.device, int]] = []  # bytes of arenas

    @property
    def loaded(self) -> Loaded:
        return self._program.loaded

    def __call__(self, args: list) -> list:
        if torch.cuda.is_current_stream_capturing() or regions.wanted():
            return self._program(args)
        self._program.index_flags.raise_if_set()
        domain = _domain(self._device)
        with domain.lock, torch.cuda.device(self._device):
            ready = self._ready(args, domain)
            if ready is None or not _fits(ready, args):
                return self._program(args)
            return self._replay(ready, args, domain)

    def _ready(self, args: list, domain: _Domain) -> _Recording | None:
        """The recording for these arguments, made now if the program is warm; None: run as
        usual. One that does not suit is dropped, so that its memory is free for that call."""
        recording = self._recording
        if recording is not None:
            moved = _pointers(args, recording.fixed) != recording.pointers
            if not moved and not self._handed_out.in_use():
                return recording
            self._drop()
        self._calls += 1
        if self._kind != "inference":
            self.needs = self._program.arena_needs(args)
            domain.training.add(self)
        if self._calls > _WARM_CALLS[self._kind] and self._recordings < _MAX_RECORDINGS:
            self._recording = self._try_record(args, domain)
        return self._recording

    def _drop(self) -> None:
        self._recording, self._calls = None, 0
        if self._recordings == _MAX_RECORDINGS:
            text = f"dropped {_MAX_RECORDINGS} times: inputs moved, or its outputs were in use"
            note(self.record, "no_graph", self.loaded.graph.name, text)

    def _try_record(self, args: list, domain: _Domain) -> _Recording | None:
        """None too where another call may suit: a backward of a forward that ran without graph."""
        fixed = self._fixed_positions(args, domain)
        if self._kind != "inference" and self._copied_bytes(args, fixed) > _MOST_COPIED_BYTES:
            return None
        self._recordings += 1
        try:
            recording = self._make_recording(args, fixed, domain)
        except RuntimeError as error:
            self._recordings = _MAX_RECORDINGS
            note(self.record, "no_graph", self.loaded.graph.name, str(error).partition("\n")[0])
            return None
        text, kept = "recorded as a CUDA graph", self._kept_bytes(recording)
        note(self.record, "graph", self.loaded.graph.name, text, kept, "bytes")
        return recording

    def _fixed_positions(self, args: list, domain: _Domain) -> tuple[int, ...]:
        """Parameters, and what other graphs hand out."""
        static = self._program.static_positions
        if self._kind == "inference":
            return static
        known, moving = domain.fixed_addresses(), self._program.moving_positions
        return (*static, *(p for p in moving if args[p].data_ptr() in known))

    def _kept_bytes(self, recording: _Recording) -> int:
        """What it holds between calls, beside the arena that graphs share and temporaries of
        library calls."""
        given = [recording.left.outputs[p] for p in self._given_away]
        return sum(t.nbytes for t in (*recording.inputs.values(), *given))

    def _copied_bytes(self, args: list, fixed: tuple[int, ...]) -> int:
        return sum(args[p].nbytes for p in self._program.moving_positions if p not in fixed)

    def _make_recording(self, args: list, fixed, domain: _Domain) -> _Recording:
        inputs = {p: _like(args[p]) for p in self._program.moving_positions if p not in fixed}
        copy_all(list(inputs.values()), [args[p] for p in inputs])
        given = [inputs.get(p, a) for p, a in enumerate(args)]
        graph = torch.cuda.CUDAGraph()
        needs = self._program.arena_needs(given)
        if self._kind != "inference":
            needs = [(d, max(size, domain.largest_arena(d))) for d, size in needs]
        shared = self._kind == "inference"
        with (
            _arenas(domain.arenas, needs) as arenas,
            _capture(graph, domain, self._draws, shared),
        ):
            paused = self._program.run_head(arenas, given)
        left = self._left(paused)
        addresses = {left.outputs[p].data_ptr() for p in self._given_away}
        pointers = _pointers(args, fixed)
        recording = _Recording(
            graph, fixed, pointers, inputs, left, arenas, frozenset(addresses - {0})
        )
        domain.recordings.add(recording)
        return recording

    def _left(self, paused: Paused) -> _Left:
        """In training only the outputs that the graph makes: it must not keep its inputs alive,
        which other graphs have handed out."""
        if self._kind == "inference":
            return _Left(None, paused)
        outputs, made = paused.run_tail(), (*self._copied, *self._given_away)
        return _Left([t if p in made else None for p, t in enumerate(outputs)], None)

    def _outputs(self, results: list, args: list) -> list:
        """The outputs, from what a replay and the tail have left: what is given away, copies of
        what the next replay overwrites, windows on the caller's own inputs, and the rest as it
        is."""
        outputs = list(results)
        for place, position, view in self._windows:
            outputs[place] = window(args[position], view.shape, view.strides, view.offset)
        for place in self._copied:
            outputs[place] = _like(results[place])
        copy_all([outputs[p] for p in self._copied], [results[p] for p in self._copied])
        given = self._handed_out.give([results[p] for p in self._given_away])
        for place, tensor in zip(self._given_away, given):
            outputs[place] = tensor
        return outputs

    def _replay(self, recording: _Recording, args: list, domain: _Domain) -> list:
        domain.follow(torch.cuda.current_stream(self._device))
        copy_all(list(recording.inputs.values()), [args[p] for p in recording.inputs])
        recording.graph.replay()
        increment_version([args[p] for p in self._program.written_positions])
        outputs = self._outputs(recording.left.results(), args)
        args.clear()
        return outputs


def _given_away(loaded: Loaded, kind: str, loose: frozenset[int], made: list[int]) -> list[int]:
    """Of the outputs at positions `made`, those that are not copied: gradients, what is kept for
    the backward, and what is too large to be in memory twice."""
    if kind == "inference":
        return []
    views, buffers = loaded.graph.outputs, loaded.graph.buffers
    kept = {views[p].buffer for p in made if kind == "backward" or p in loose}
    large = {
        views[p].buffer
        for p in made
        if view_bytes(views[p].shape, buffers[views[p].buffer].dtype) >= LARGE_OUTPUT_BYTES
    }
    return [p for p in made if views[p].buffer in kept | large]


def _pointers(args: list, positions: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(_data_ptr, [args[p] for p in positions]))


@contextmanager
def _arenas(pool: ArenaPool, needs: list[tuple[torch.device, int]]):
    """Allocated outside the recording, so that graphs can share them."""
    arenas = tuple(pool.take(device, device, size) for device, size in needs)
    try:
        yield arenas
    finally:
        for (device, _), arena in zip(needs, arenas):
            pool.give(device, arena)


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, domain: _Domain, draws: bool, shared: bool):
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


def _draws(target: str) -> bool:
    """Attention is marked as random for its dropout, which models hardly use in a graph that is
    recorded: with it, the recording fails and the program runs without."""
    return is_random(target) and "scaled_dot_product" not in target


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def _fits(recording: _Recording, args: list) -> bool:
    """Other shapes and types are for the program to refuse."""
    pairs = [(buffer, args[p]) for p, buffer in recording.inputs.items()]
    return all(b.shape == a.shape and b.dtype == a.dtype for b, a in pairs)


def with_graph(
    program: Program, kind: str, wanted: bool, loose: frozenset[int] = frozenset()
) -> Program | GraphedProgram:
    """`program`, as a CUDA graph where that is wanted, possible and worth it; the record says why
    not. `loose`: positions of outputs that only the backward sees."""
    graph = program.loaded.graph
    if not wanted or not any(b.device.startswith("cuda") for b in graph.buffers.values()):
        return program
    reason = why_not_recorded(program.loaded, kind)
    if reason is None:
        return GraphedProgram(program, kind, loose)
    note(program.record, "no_graph", graph.name, reason)
    return program

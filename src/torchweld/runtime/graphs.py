"""CUDA graphs: a program, recorded once for each set of sizes and replayed with one call.

The first call runs as usual, which loads kernels and lets libraries choose their algorithms; the
second is recorded. Inputs whose storage is fixed (parameters) are read where they are; others are
copied into buffers that the graph reads. Outputs are copied out, so a caller may keep them; large
ones that the last calls make (logits) are made after the replay instead, in memory of their own.

Where sizes vary, a set of sizes is recorded when it was seen twice before, not long ago
(`warmth.py`).

A training step copies nothing large: what a forward keeps for its backward, and the gradients, are
handed out where they are (`handout.py`), and the backward reads them there. While one of them is in
use (a gradient that is added to, a second forward before the backward) calls run without the graph,
which is dropped and recorded again some calls later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch.autograd.graph import increment_version

from torchweld.ir.nodes import Extern
from torchweld.runtime import graph_domain, regions
from torchweld.runtime.externs import is_random
from torchweld.runtime.graph_domain import Domain
from torchweld.runtime.handout import HandedOut
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.moved import Moved, moved_in
from torchweld.runtime.program import Program
from torchweld.runtime.record import note
from torchweld.runtime.recordable import why_not_copied, why_not_recorded, why_not_worth_it
from torchweld.runtime.recording import Reads, Recording, Refused, outputs_of
from torchweld.runtime.torch_private import current_gpu, is_capturing
from torchweld.runtime.warmth import Warmth
from torchweld.targets.find import target_of

_MOST_COPIED_BYTES = 32 << 20  # inputs of a training graph, which are then in memory twice
_WARM_CALLS = {"inference": 1, "forward": 2, "backward": 2}
_WARM_CALLS_OF_SIZES = 2
_MOST_RECORDED = 16  # sets of sizes; then the one that was not used for longest goes
_MOST_KEPT_BYTES = 64 << 20  # by all recordings of a program of varying sizes


class GraphedProgram:
    """A Program that replays itself. Same calling convention. `kind`: inference, forward or
    backward. `loose`: positions of outputs that only the backward sees."""

    def __init__(
        self, program: Program, kind: str = "inference", loose: frozenset[int] = frozenset()
    ) -> None:
        self.record = program.record
        self._program, self._kind, self._loose = program, kind, loose
        self._device = torch.device(next(iter(program.loaded.graph.buffers.values())).device)
        graph = program.loaded.graph
        self._draws = any(isinstance(n, Extern) and _draws(n.target) for n in graph.nodes)
        self._varies = bool(graph.symbols)
        self._recordings: OrderedDict[tuple, Recording] = OrderedDict()
        self._warmth = Warmth(_WARM_CALLS_OF_SIZES if self._varies else _WARM_CALLS[kind])
        self._handed_out = HandedOut(program.loaded.native)
        self.needs: list[tuple[torch.device, int]] = []  # bytes of arenas
        self._is_known = False  # to the domain, with its needs
        self._worth: dict[tuple[int, ...], bool] = {}  # of recording, by what it would copy
        self._domain: Domain | None = None
        self._moves = True
        self._flags = program.index_flags or None

    @property
    def loaded(self) -> Loaded:
        return self._program.loaded

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        return self._program.constants

    def __call__(self, args: list, steady: bool = False) -> list:
        """`steady`: static inputs are where they were at the call before."""
        if regions.wanted() or is_capturing():
            return self._program(args)
        if self._flags is not None:
            self._flags.raise_if_set()
        domain = self._domain = self._domain or graph_domain.domain_of(self._device)
        with domain.lock:
            if current_gpu() == self._device.index:
                return self._call(args, steady, domain)
            with torch.cuda.device(self._device):
                return self._call(args, steady, domain)

    def again(self, args: list) -> list:
        """A call whose static inputs are where they were at the call before."""
        return self(args, steady=True)

    def _call(self, args: list, steady: bool, domain: Domain) -> list:
        key = self._program.sizes_key(args) if self._varies else ()
        recording = self._ready(key, args, steady, domain)
        outputs = recording and recording.replay(args, domain.current_stream())
        if outputs is None:
            return self._program(args)
        self._warmth.replays += 1
        written = self._program.written_positions
        if written:
            increment_version([args[p] for p in written])
        if recording.lent:
            made = self._handed_out.give(recording.lent)
            for place, number in recording.lent_at:
                outputs[place] = made[number]
        args.clear()
        return outputs

    def _ready(self, key: tuple, args: list, steady: bool, domain: Domain) -> Recording | None:
        """The recording for these arguments, made now if the program is warm; None: run as
        usual. One that does not suit is dropped, so that its memory is free for that call."""
        recording = self._recordings.get(key)
        if recording is not None:
            if (steady or recording.reads.hold(args)) and not self._handed_out.in_use():
                self._recordings.move_to_end(key)
                return recording
            self._drop()
        if self._kind != "inference" and not self._is_known:  # the sizes of training are fixed
            self.needs, self._is_known = self._program.arena_needs(args), True
            domain.training.add(self)
        if self._warmth.is_due(key):
            self._try_record(key, args, domain)
        return self._recordings.get(key)

    def _drop(self) -> None:
        """All: what has moved has moved for all."""
        self._recordings.clear()
        self._warmth.cool()
        if not self._warmth.may_record():
            times = self._warmth.recordings
            text = f"dropped {times} times: inputs had moved, or outputs were still in use"
            note(self.record, "no_graph", self.loaded.graph.name, text)

    def _try_record(self, key: tuple, args: list, domain: Domain) -> None:
        """Not where another call may suit: a backward of a forward that ran without graph."""
        handed = self._handed_positions(args, domain)
        if not self._is_worth_it(args, handed):
            self._warmth.forget(key)
            return
        self._warmth.recorded(key)
        try:
            with torch.inference_mode(False), torch.no_grad():  # later calls may be of any mode
                recording = self._recorded(args, handed, domain)
        except RuntimeError as error:
            self._warmth.fail()
            note(self.record, "no_graph", self.loaded.graph.name, str(error).partition("\n")[0])
            return
        domain.recordings.add(recording)
        self._recordings[key] = recording
        self._shrink()
        if self._kind == "inference":
            self._program.release_arenas(self._device)  # the recording has its own
        text, name = "recorded as a CUDA graph", self.loaded.graph.name
        note(self.record, "graph", name, text, self._kept_bytes(), "bytes")

    def _is_worth_it(self, args: list, handed: tuple[int, ...]) -> bool:
        if self._kind != "inference":
            copied = tuple(p for p in self._program.moving_positions if p not in handed)
            if copied not in self._worth:
                self._worth[copied] = self._is_copied_cheaply([args[p] for p in copied])
            return self._worth[copied]
        if not self._varies:
            return True
        sizes = self._program.sizes(args)
        return why_not_worth_it(self.loaded, sizes, target_of(self._device)) is None

    def _is_copied_cheaply(self, tensors: list[torch.Tensor]) -> bool:
        copied, table = sum(t.nbytes for t in tensors), target_of(self._device)
        return copied <= _MOST_COPIED_BYTES and not why_not_copied(self.loaded, copied, table)

    def _shrink(self) -> None:
        """The oldest recordings of other sizes go."""
        while len(self._recordings) > 1 and (
            len(self._recordings) > _MOST_RECORDED or self._kept_bytes() > _MOST_KEPT_BYTES
        ):
            self._recordings.popitem(last=False)

    def _kept_bytes(self) -> int:
        return sum(recording.kept_bytes for recording in self._recordings.values())

    def _handed_positions(self, args: list, domain: Domain) -> tuple[int, ...]:
        """Inputs that other graphs hand out."""
        if self._kind == "inference":
            return ()
        known = domain.fixed_addresses()
        return tuple(p for p in self._program.moving_positions if args[p].data_ptr() in known)

    def _recorded(self, args: list, handed: tuple[int, ...], domain: Domain) -> Recording:
        try:
            return self._make_recording(args, handed, domain, self._moves)
        except Refused:
            self._moves = False
            return self._make_recording(args, handed, domain, False)

    def _make_recording(
        self, args: list, handed: tuple[int, ...], domain: Domain, moves: bool
    ) -> Recording:
        """`moves`: its kernels are to read inputs and write outputs where a caller has them, as far
        as nothing else does."""
        program, native = self._program, None if self._draws else self.loaded.native
        static, moving = program.static_positions, program.moving_positions
        reads = Reads(args, static, moving, handed, self.loaded.native)
        given = reads.recorded(args)
        graph = torch.cuda.CUDAGraph(keep_graph=native is not None)
        shared = self._kind == "inference"
        with (
            graph_domain.arenas_for(domain, self._arena_needs(given, domain)) as arenas,
            graph_domain.capture(graph, domain, self._draws, shared),
        ):
            paused = program.run_head(arenas, given)
        outputs = outputs_of(self.loaded, paused.shaped.sizes, self._kind, self._loose)
        moved = Moved()
        if moves and native is not None:
            told = paused, (reads.positions, outputs.copied), native, target_of(self._device)
            moved = moved_in(graph.raw_cuda_graph(), self.loaded, *told)
        return Recording(graph, reads, paused, outputs, arenas, native, moved)

    def _arena_needs(self, args: list, domain: Domain) -> list[tuple[torch.device, int]]:
        """As much as others need that are to share it: programs of training, recordings of other
        sizes."""
        needs = self._program.arena_needs(args)
        if self._kind != "inference":
            return [(d, max(size, domain.largest_arena(d))) for d, size in needs]
        if self._varies:
            needs = self.needs = [
                (d, max(size, other)) for (d, size), (_, other) in zip(needs, self.needs or needs)
            ]
        return needs


def _draws(target: str) -> bool:
    """Attention is marked as random for its dropout, which models hardly use in a graph that is
    recorded: with it, the recording fails and the program runs without."""
    return is_random(target) and "scaled_dot_product" not in target


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

"""A recorded CUDA graph: what it reads, and what it leaves."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from torchweld.ir.nodes import View
from torchweld.ir.size import evaluate
from torchweld.runtime.copies import copy_table
from torchweld.runtime.fixed import Fixed, addresses
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.memory import Arena
from torchweld.runtime.moved import Moved
from torchweld.runtime.placement import LARGE_OUTPUT_BYTES
from torchweld.runtime.program import Paused
from torchweld.runtime.recordable import recorded_buffers, view_bytes
from torchweld.runtime.steps import in_layout, window
from torchweld.runtime.torch_private import copy_all, graph_handle, strided_maker


@dataclass(frozen=True)
class Outputs:
    """Positions among a program's outputs. `copied`: what the next replay overwrites; `given`: what
    is handed out where the graph makes it; `windows`: (position, input, shape, strides, offset) of
    views of the caller's own inputs. The rest goes to the caller as it is."""

    copied: tuple[int, ...]
    given: tuple[int, ...]
    windows: tuple[tuple, ...]


def outputs_of(
    loaded: Loaded, sizes: Mapping[str, int], kind: str, loose: frozenset[int]
) -> Outputs:
    """`kind`: inference, forward or backward; `loose`: positions that only the backward sees."""
    graph, kinds = loaded.graph, loaded.placement.kinds
    views = [(p, v) for p, v in enumerate(graph.outputs) if isinstance(v, View)]
    inputs = {n: p for p, n in enumerate(graph.inputs) if kinds.get(n) == "input"}
    recorded = recorded_buffers(loaded, sizes)
    made = [p for p, v in views if v.buffer in recorded]
    given = _given_away(loaded, sizes, kind, loose, made)
    windows = tuple(
        (p, inputs[v.buffer], _known(v.shape, sizes), _known(v.strides, sizes),
         evaluate(v.offset, sizes))
        for p, v in views if v.buffer in inputs
    )  # fmt: skip
    return Outputs(tuple(p for p in made if p not in given), given, windows)


def _given_away(
    loaded: Loaded, sizes, kind: str, loose: frozenset[int], made: Sequence[int]
) -> tuple[int, ...]:
    """Of the outputs at positions `made`, those that are not copied: gradients, what is kept for
    the backward, and what is too large to be in memory twice."""
    if kind == "inference":
        return ()
    views, buffers = loaded.graph.outputs, loaded.graph.buffers
    kept = {views[p].buffer for p in made if kind == "backward" or p in loose}
    large = {
        views[p].buffer
        for p in made
        if view_bytes(views[p].shape, buffers[views[p].buffer].dtype, sizes) >= LARGE_OUTPUT_BYTES
    }
    return tuple(p for p in made if views[p].buffer in kept | large)


def _known(part: tuple, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(s, sizes) for s in part)


class Reads:
    """What a graph reads: parameters where they are (`fixed`), what other graphs hand out at the
    positions `handed`, which is not to be kept alive, and buffers in place of other inputs."""

    def __init__(
        self, args: list, static: Sequence[int], moving: Sequence[int], handed: Sequence[int],
        native: ModuleType | None,
    ) -> None:  # fmt: skip
        self._fixed = Fixed(args, static, native)
        self._handed, self._pointers = tuple(handed), addresses(args, handed)
        self.positions = tuple(p for p in moving if p not in handed)
        self.buffers = [_maker(args[p])() for p in self.positions]
        copy_all(self.buffers, [args[p] for p in self.positions])

    def set_apart(self, moved: Iterable[int]) -> list[torch.Tensor]:
        """From now on the inputs at the positions `moved` come last, and have no buffers; those
        that they had."""
        buffers = dict(zip(self.positions, self.buffers))
        copied, last = [p for p in self.positions if p not in set(moved)], tuple(moved)
        self.positions = (*copied, *last)
        self.buffers = [buffers[p] for p in copied]
        return [buffers[p] for p in last]

    def recorded(self, args: list) -> list:
        """The inputs as the graph is to see them."""
        given = dict(zip(self.positions, self.buffers))
        return [given.get(p, a) for p, a in enumerate(args)]

    def hold(self, args: list) -> bool:
        """Whether what it reads where it is has stayed there."""
        handed = self._handed
        return self._fixed.hold(args) and (not handed or addresses(args, handed) == self._pointers)


class Refused(RuntimeError):
    """The driver does not take other addresses for recorded kernels."""


class Launch:
    """A graph, the copies into `buffers` before it, and those of what it `made` after it. By
    `native` all at once, the copies as nodes of the graph, unless it draws random numbers, whose
    seed torch hands to it."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, buffers: list[torch.Tensor], made: list[torch.Tensor],
        native: ModuleType | None,
    ) -> None:  # fmt: skip
        self._graph, self._buffers, self._made, self._native = graph, buffers, made, native
        self._layouts = [_layout(b) for b in buffers]
        if native is not None:
            self._tables = [copy_table(tensors, native) for tensors in (buffers, made)]
            rows = [0 if t is None else t.address for t in self._tables]
            nodes = native.join(graph.raw_cuda_graph(), *rows)
            graph.instantiate()
            before, after = zip(rows, nodes)
            self._recorded = native.recorded(graph_handle(graph), buffers, *before, made, *after)

    def move(self, moved: Moved, bases: array, buffers: list[torch.Tensor]) -> None:
        """More sources and results come with each call, which its kernels read and write where they
        are: sources laid out like `buffers`. `bases`: as recorded. Errors: Refused."""
        slots = (*moved.inputs.values(), *moved.outputs.values())
        told = moved.kernels, tuple(bases), slots, tuple(buffers)
        if not self._native.move(self._recorded, *told):
            raise Refused("the driver does not take other addresses for recorded kernels")
        self._layouts += map(_layout, buffers)

    def __call__(self, stream: int, sources: list, results: list) -> bool:
        """On `stream`, the current one. False, with nothing done, if sources have other shapes or
        types than buffers."""
        native = self._native
        if native is not None and native.replay(self._recorded, stream, sources, results):
            return True
        pairs = list(zip(sources, self._layouts))
        if not all(s.shape == shape and s.dtype == dtype for s, (shape, _, dtype) in pairs):
            return False
        if native is not None:
            alike = [in_layout(s, shape, strides) for s, (shape, strides, _) in pairs]
            return native.replay(self._recorded, stream, alike, results)
        copy_all(self._buffers, sources)
        self._graph.replay()
        copy_all(results, self._made)
        return True


def _layout(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return tensor.shape, tensor.stride(), tensor.dtype


class Recording:
    """`lent`: the tensors that it gives away, `lent_at`: (position among the outputs, number among
    these); what is one tensor stays one, for autograd copies a gradient that is given to two
    parameters. `paused`: the recorded call, before its tail. `arenas`: kept for as long as the
    graph may write to them. `native`: see Launch. Errors: Refused, if `moved` has something."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, reads: Reads, paused: Paused, outputs: Outputs,
        arenas: tuple[Arena, ...], native: ModuleType | None, moved: Moved,
    ) -> None:  # fmt: skip
        self.reads, self._arenas = reads, arenas
        self._outputs = outputs
        self._results, self._tail = _left(paused, outputs)
        self._given = [self._results[p] for p in outputs.given]
        self.lent = list({id(t): t for t in self._given}.values())
        numbers = {id(t): n for n, t in enumerate(self.lent)}
        self.lent_at = tuple((p, numbers[id(t)]) for p, t in zip(outputs.given, self._given))
        copied = [p for p in outputs.copied if p not in moved.outputs]
        self._fresh = (*copied, *moved.outputs)
        self._makers = [_maker(self._results[p]) for p in self._fresh]
        self._made = [self._results[p] for p in copied]
        moving = reads.set_apart(moved.inputs)
        self._launch = Launch(graph, reads.buffers, self._made, native)
        if moved.kernels:
            self._launch.move(moved, paused.bases, moving)
        for place in moved.outputs:
            self._results[place] = None
        for slot in (*moved.inputs.values(), *moved.outputs.values()):
            paused.tensors[slot] = None  # what the graph was recorded with; a tail does not read it
        self.addresses = frozenset(t.data_ptr() for t in self._given) - {0}

    @property
    def kept_bytes(self) -> int:
        """What it holds between calls, beside the arena that graphs share and temporaries of
        library calls."""
        return sum(t.nbytes for t in (*self.reads.buffers, *self._made, *self._given))

    def replay(self, args: list, stream: int) -> list | None:
        """The outputs, with what the graph gives away where it lies; None, with nothing done, if
        the inputs have other shapes or types, which are for the program to refuse. `stream`: the
        handle of the current one."""
        made = [make() for make in self._makers]
        if not self._launch(stream, [args[p] for p in self.reads.positions], made):
            return None
        results = self._results.copy() if self._tail is None else self._tail.run_tail()
        for place, tensor in zip(self._fresh, made):
            results[place] = tensor
        for place, position, shape, strides, offset in self._outputs.windows:
            tensor = args[position]
            if offset or tensor.shape != shape or tensor.stride() != strides:
                tensor = window(tensor, shape, strides, offset)
            results[place] = tensor
        return results


def _left(paused: Paused, outputs: Outputs) -> tuple[list, Paused | None]:
    """What a replay leaves: the outputs, and where a program with a tail goes on. No inputs: they
    are not to be kept alive, since other graphs may have handed them out."""
    fetches, tail = paused.shaped.outputs, paused.shaped.tail
    skipped = {place for place, *_ in outputs.windows}
    if tail:
        skipped |= set(range(len(fetches))) - set(outputs.copied)
    left = [None if p in skipped else fetch(paused.tensors) for p, fetch in enumerate(fetches)]
    return left, paused if tail else None


def _maker(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Of new tensors laid out as this one, on the current GPU."""
    return strided_maker(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

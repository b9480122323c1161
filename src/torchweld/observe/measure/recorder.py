"""Each operation that a step asks of ATen: what it works on, where it comes from, and the memory
that it leaves.

A dispatch mode sees the calls below autograd, so those of the backward too; global hooks say which
module is running; the stack says which line. Backward operations take the place of the forward
operation that made their autograd node.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as hooks

from torchweld.observe.measure.metas import Meta, distinct_bytes, meta_of, metas_in
from torchweld.observe.measure.traffic import allocates, is_view, tensors_in
from torchweld.observe.record.profile import Place
from torchweld.runtime import torch_private

_TORCH = str(Path(torch.__file__).parent)
_TORCHWELD = str(Path(__file__).parents[2])
_LAYERS = str(Path("nn", "modules"))
_ZOO = str(Path(__file__).parents[2] / "zoo")  # models like a user's


@dataclass(frozen=True)
class Call:
    """`args`, `kwargs` and `results` hold a Meta where a tensor was. `op`: an OpOverload.
    `sequence`: of the autograd node, to find the forward operation by."""

    op: Callable
    place: Place
    backward: bool
    args: tuple
    kwargs: tuple
    results: object
    sequence: int

    @property
    def name(self) -> str:
        """As the profiler calls it: aten::addmm."""
        return self.op.name().partition(".")[0]

    @property
    def tensors(self) -> list[Meta]:
        """Those that it is given, then those that it makes."""
        return metas_in((self.args, self.kwargs, self.results))

    @property
    def bytes_moved(self) -> int:
        """The sizes of its tensor arguments and results, an expanded dimension counted once."""
        return sum(map(distinct_bytes, self.tensors))


@dataclass
class Block:
    """Memory that a call made (by position). `freed`: the number of calls made when it was gone,
    None if it lives on."""

    call: int
    bytes: int
    meta: Meta
    freed: int | None = None


@dataclass(frozen=True)
class Recording:
    """`calls`: those that do work, in order."""

    calls: tuple[Call, ...]
    blocks: tuple[Block, ...]


def record(step: Callable[[], object], names: Mapping[int, str]) -> Recording:
    """Runs `step` once. `names`: the path of each module, by its id."""
    modules = _ModuleStack(names)
    with modules, _Recorder(modules) as recorder:
        kept = step()
        recorder.look_for_freed()
    del kept
    placed = [_at_forward(call, recorder.forward.get(call.sequence)) for call in recorder.calls]
    return Recording(tuple(placed), tuple(recorder.blocks))


class _Recorder(torch_private.DispatchMode):
    def __init__(self, modules: _ModuleStack) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.blocks: list[Block] = []
        self.forward: dict[int, Place] = {}  # by the number of the autograd node that it made
        self._modules = modules
        self._storages: dict[int, tuple[StorageWeakRef, Block | None]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given, made = tensors_in((args, kwargs)), tensors_in(result)
        place, sequence, backward = self._place(func)
        if made and not is_view(func, given, made):
            self.look_for_freed()
            for tensor in given:
                self._see(tensor, None)
            for tensor in made:
                block = Block(len(self.calls), _storage_bytes(tensor), meta_of(tensor))
                self._see(tensor, block)
            if not allocates(func.name()):
                keywords = tuple((name, meta_of(value)) for name, value in kwargs.items())
                self.calls.append(Call(func, place, backward, meta_of(tuple(args)), keywords,
                                       meta_of(result), sequence))
        return result

    def _place(self, func) -> tuple[Place, int, bool]:
        """Where a call comes from, the number of its autograd node, and whether that runs
        backward."""
        sequence = torch_private.sequence_number_in_backward()
        if sequence is not None:
            return Place(str(func)), sequence, True
        place = Place(str(func), self._modules.current, _users_line())
        sequence = torch_private.next_sequence_number() - 1
        self.forward.setdefault(sequence, place)
        return place, sequence, False

    def _see(self, tensor: torch.Tensor, block: Block | None) -> None:
        """Keeps an eye on the storage, if it is a new one; a `block` is what a call has made."""
        if tensor.layout != torch.strided:
            return
        ref = StorageWeakRef(tensor.untyped_storage())
        if ref.cdata not in self._storages:
            self._storages[ref.cdata] = ref, block
            if block:
                self.blocks.append(block)

    def look_for_freed(self) -> None:
        """Marks what is gone since the last call."""
        gone = [key for key, (ref, _) in self._storages.items() if ref.expired()]
        for key in gone:
            _, block = self._storages.pop(key)
            if block:
                block.freed = len(self.calls)


class _ModuleStack:
    """The path of the module whose forward runs, while in force."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names, self._stack, self._handles = names, [""], []

    @property
    def current(self) -> str:
        return self._stack[-1]

    def __enter__(self) -> _ModuleStack:
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *_error) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module, _args) -> None:
        self._stack.append(self._names.get(id(module), self._stack[-1]))

    def _leave(self, _module, _args, _result) -> None:
        if len(self._stack) > 1:
            self._stack.pop()


def _at_forward(call: Call, forward: Place | None) -> Call:
    """A backward call at the module and line of the forward one."""
    if not call.backward or forward is None:
        return call
    return replace(call, place=Place(call.place.op, forward.module, forward.source))


def _users_line() -> str:
    """file:line of the innermost frame outside torch; if there is none below our own, of the
    module of torch that calls."""
    frame, fallback = sys._getframe(3), ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TORCH):
            if not fallback and _LAYERS in file:
                fallback = f"{file}:{frame.f_lineno}"
        elif file.startswith(_TORCHWELD) and not file.startswith(_ZOO):
            break
        elif not file.startswith("<"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return fallback


def _storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout == torch.strided else 0

"""A loaded graph: called with the flat inputs, gives the flat outputs.

Sizes are bound at the call; everything that follows from them (offsets, addresses, argument lists)
is worked out once for each set of sizes and kept. Threads may call one program at the same time:
each call has its own arena and tables.

Kernels use OpenMP, as torch does: after a fork in a process that has run parallel regions, call
`torch.set_num_threads(1)` in the child first, which PyTorch's own operators need just as much.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch.autograd.graph import increment_version

from torchweld.core import dtypes
from torchweld.core.errors import UsageError
from torchweld.core.events import warn_once
from torchweld.core.torch_private import without_modes
from torchweld.ir.bind import bind
from torchweld.ir.nodes import Comp
from torchweld.ir.size import evaluate
from torchweld.runtime import regions
from torchweld.runtime.binding import Binding, arena_views, bind_arenas, bind_steady
from torchweld.runtime.fixed import Fixed
from torchweld.runtime.index_flags import flags_of
from torchweld.runtime.loaded import Loaded, Shaped, Step
from torchweld.runtime.memory import POOL, Arena, ArenaPool, is_out_of_memory
from torchweld.runtime.record import note
from torchweld.runtime.shape import shape_program
from torchweld.runtime.steps import has_layout, in_layout
from torchweld.runtime.torch_private import (
    below_autograd,
    current_gpu,
    is_capturing,
    raw_stream,
)

MAX_SHAPES = 64  # sets of sizes that are kept ready; then the oldest goes


class Program:
    """`program(args: list) -> list`: boxed, `args` is emptied so that inputs can be freed early."""

    def __init__(
        self, loaded: Loaded, constants: Mapping[str, torch.Tensor], pool: ArenaPool = POOL
    ) -> None:
        self.record = loaded.record
        self.index_flags = flags_of(loaded.graph)
        self._flags = self.index_flags or None
        self.constants = dict(constants)
        self._constants = self.constants | self.index_flags.tensors
        self._loaded, self._pool = loaded, pool
        self._shapes: OrderedDict[tuple, _ForShape] = OrderedDict()
        self._lock = threading.Lock()
        self._devices = tuple(torch.device(d) for d in loaded.placement.devices)
        self._gpu = _gpu_of(loaded)
        self._symbol_sources = tuple(
            s for s in loaded.graph.symbols if s.source[0] in ("size", "stride", "int")
        )
        self._written = _written_by_kernels(loaded)
        self._may_repeat = loaded.may_repeat
        self._set_static(loaded.static_buffers)

    @property
    def loaded(self) -> Loaded:
        return self._loaded

    @property
    def static_positions(self) -> tuple[int, ...]:
        """Inputs that are read where they are, as long as they stay there."""
        return tuple(self._static)

    @property
    def written_positions(self) -> tuple[int, ...]:
        """Inputs that kernels write to."""
        return self._written

    @property
    def moving_positions(self) -> tuple[int, ...]:
        """Inputs that may be elsewhere at each call."""
        kinds, inputs = self._loaded.placement.kinds, self._loaded.graph.inputs
        given = [p for p, n in enumerate(inputs) if kinds.get(n) == "input"]
        return tuple(p for p in given if p not in self._static)

    def __call__(self, args: list) -> list:
        if self._flags is not None:
            self._flags.raise_if_set()
        if self._gpu is not None and current_gpu() != self._gpu:
            with torch.cuda.device(self._gpu):
                return self(args)
        kept = list(args) if self._may_repeat else None
        try:
            return self._run(args)
        except RuntimeError as error:
            if kept is None or not is_out_of_memory(error):
                raise
            message = str(error).partition("\n")[0]
        return self._run_again(kept, message)

    def _run_again(self, kept: list, message: str) -> list:
        """Where memory was short: idle arenas are freed and the call is made once more. Not one
        that changes its inputs or was given them to free."""
        again = f"{self._loaded.graph.name} ran out of memory, and is called again"
        warn_once("out of memory", f"{again}: {message}")
        note(self.record, "out_of_memory", self._loaded.graph.name, message)
        self._pool.release()
        return self._run(kept)

    def _run(self, args: list) -> list:
        prepared = self._prepared(args) if self._symbol_sources else self._shapes.get(())
        if prepared is None:
            prepared = self._prepared(args)
        if not self._devices:
            return self._run_in(prepared, (), args)
        needs, pool = prepared.shaped.needs, self._pool
        if self._gpu is not None and is_capturing():  # the graph's memory, as long as it lives
            return self._run_in(prepared, tuple(map(Arena, self._devices, needs)), args)
        places = self._devices if self._gpu is None else tuple(map(_place, self._devices))
        arenas = tuple(map(pool.take, places, self._devices, needs))
        try:
            return self._run_in(prepared, arenas, args)
        finally:
            for place, arena in zip(places, arenas):
                if self._loaded.keeps_arena or arena.is_small:
                    pool.give(place, arena)

    def arena_needs(self, args: list) -> list[tuple[torch.device, int]]:
        """The bytes for temporaries on each device, with inputs like these."""
        return list(zip(self._devices, self._prepared(args).shaped.needs))

    def release_arenas(self, device: torch.device) -> None:
        """Frees the idle ones there; a call that needs one makes it anew."""
        self._pool.release(device)

    def _run_in(self, prepared: _ForShape, arenas: tuple[Arena, ...], args: list) -> list:
        """A call whose temporaries live in `arenas`, which nothing else uses meanwhile."""
        binding = arenas[0].bindings.get(prepared) if arenas else prepared.without_arena
        if binding is not None and binding.whole is not None and not regions.wanted():
            found = self._run_whole(binding.whole, prepared.shaped.calls_torch, args)
            if found is not None:
                return found
        binding = self._binding(prepared, arenas, args)
        if binding is None:
            return self._run_in(self._prepared(args), arenas, args)
        fixed = self._fixed  # which another thread may have set to its own
        if binding.fixed is not fixed and len(arenas) < 2 and binding.is_for(fixed.pointers):
            binding.fixed, binding.whole = fixed, prepared.whole(binding, fixed)
        if not prepared.shaped.calls_torch:
            return self._execute(prepared, binding, args)
        with below_autograd():
            return self._execute(prepared, binding, args)

    def _run_whole(self, whole: Callable, calls_torch: bool, args: list) -> list | None:
        """A call as one function of C; None if its static or moving inputs are not as that
        expects."""
        written = [args[p] for p in self._written] if self._written else None
        if calls_torch:
            with below_autograd():
                found = whole(args)
        else:
            found = whole(args)
        if written and found is not None:
            increment_version(written)  # kernels change memory behind torch's back
        return found

    def run_head(self, arenas: tuple[Arena, ...], args: list) -> Paused:
        """A call up to its tail; `args` has every input in the layout that the graph says."""
        prepared = self._prepared(args)
        binding = self._binding(prepared, arenas, args)
        if binding is None:
            return self.run_head(arenas, args)
        tensors, bases = binding.tensors.copy(), binding.bases[:]
        address = bases.buffer_info()[0]
        prepared.place_inputs(args, tensors, bases, address, self.record)
        with below_autograd():
            _take(prepared.shaped.steps, tensors, bases, address)
        return Paused(prepared.shaped, tensors, bases)

    def _execute(self, prepared: _ForShape, binding: Binding, args: list) -> list:
        tensors, bases = binding.tensors.copy(), binding.bases[:]
        address = bases.buffer_info()[0]
        restore = prepared.place_inputs(args, tensors, bases, address, self.record)
        written = [args[p] for p in self._written] if self._written else None
        args.clear()
        shaped = prepared.named() if regions.wanted() else prepared.shaped
        _take(shaped.steps, tensors, bases, address)
        if shaped.tail:
            _take(shaped.tail, tensors, bases, address)
        if written:
            increment_version(written)  # kernels change memory behind torch's back
        for original, used in restore:
            original.copy_(used)
        return [output(tensors) for output in shaped.outputs]

    def sizes_key(self, args: list) -> tuple:
        """What tells one set of sizes from another."""
        if not self._symbol_sources:
            return ()
        return tuple([_symbol_value(s.source, args) for s in self._symbol_sources])

    def sizes(self, args: list) -> Mapping[str, int]:
        """Of inputs like these, by symbol."""
        return self._prepared(args).shaped.sizes

    def _prepared(self, args: list) -> _ForShape:
        key = self.sizes_key(args) if self._symbol_sources else ()
        found = self._shapes.get(key)
        if found is None:
            sizes = bind(self._loaded.graph.symbols, args)
            found = _ForShape(self._loaded, shape_program(self._loaded, sizes))
            with self._lock:
                self._shapes[key] = found
                while len(self._shapes) > MAX_SHAPES:
                    self._shapes.popitem(last=False)
        return found

    def _binding(self, prepared: _ForShape, arenas: tuple[Arena, ...], args) -> Binding | None:
        """What was prepared for these arenas and static inputs. None if a static input has come in
        another layout: it counts as moving from now on."""
        pointers = self._static_pointers(args)
        binding = arenas[0].bindings.get(prepared) if arenas else prepared.without_arena
        if binding is not None and len(arenas) < 2 and binding.is_for(pointers):
            return binding
        steady = self._steady(prepared, pointers, args)
        if steady is None:
            return None
        binding = bind_arenas(steady, prepared.arena_views, arenas)
        if arenas:
            arenas[0].bindings[prepared] = binding
        else:
            prepared.without_arena = binding
        return binding

    def _static_pointers(self, args: list) -> tuple[int, ...]:
        """Where the static inputs are."""
        fixed = self._fixed
        if fixed is None or not fixed.hold(args):
            fixed = self._fixed = Fixed(args, tuple(self._static), self._loaded.native)
        return fixed.pointers

    def _steady(self, prepared: _ForShape, pointers: tuple[int, ...], args) -> Binding | None:
        """The part of a binding that no arena changes."""
        if prepared.steady is not None and prepared.steady.pointers == pointers:
            return prepared.steady
        odd = [n for p, n in self._static.items() if not prepared.expects(n, args[p])]
        if odd:
            self._set_static(self._loaded.static_buffers - frozenset(odd))
            return None
        steady = self._constants | {n: args[p] for p, n in self._static.items()}
        with torch.no_grad():  # not below autograd: views must share their base's version counter
            prepared.steady = bind_steady(self._loaded, prepared.shaped, steady, pointers)
        return prepared.steady

    def _set_static(self, names: frozenset[str]) -> None:
        self._loaded = replace(self._loaded, static_buffers=names)
        inputs = self._loaded.graph.inputs
        self._static = {p: n for p, n in enumerate(inputs) if n in names}
        self._fixed: Fixed | None = None
        self._shapes.clear()


@dataclass(frozen=True)
class Paused:
    """A call before its tail."""

    shaped: Shaped
    tensors: list
    bases: array

    def run_tail(self) -> list:
        """The outputs. It may be called any number of times."""
        tensors, bases = self.tensors.copy(), self.bases[:]
        with below_autograd():
            _take(self.shaped.tail, tensors, bases, bases.buffer_info()[0])
        return [output(tensors) for output in self.shaped.outputs]


def _take(steps: tuple[Step, ...], tensors: list, bases: array, address: int) -> None:
    for step in steps:
        step(tensors, bases, address)


class _ForShape:
    """A program at known sizes, and what it expects of its moving inputs."""

    def __init__(self, loaded: Loaded, shaped: Shaped) -> None:
        self.shaped, self._loaded = shaped, loaded
        self.arena_views = arena_views(loaded, shaped)
        self.without_arena: Binding | None = None
        self.steady: Binding | None = None
        self._named: Shaped | None = None
        mutated = frozenset(n for node in loaded.graph.nodes for n in node.writes)
        self._inputs = tuple(
            (position, name, loaded.placement.slots[name], *self._layout(name), name in mutated)
            for position, name in enumerate(loaded.graph.inputs)
            if loaded.placement.kinds.get(name) == "input" and name not in loaded.static_buffers
        )
        self._native, self._expected = loaded.native, None
        if self._inputs and self._native is not None:
            self._expected = self._native.expect(*_told(self._inputs))

    def named(self) -> Shaped:
        """The same steps in ranges with their nodes' names, on the same memory."""
        if self._named is None:
            self._named = shape_program(self._loaded, self.shaped.sizes, named=True)
        return self._named

    def whole(self, binding: Binding, fixed: Fixed) -> Callable[[list], list | None] | None:
        """A call with this binding, as one function (`call_of` in native.py)."""
        if self._native is None:
            return None
        told = fixed.positions, fixed.tensors, fixed.watched, self._expected
        steps = self.shaped.steps + self.shaped.tail
        return self._native.call_of(
            *told, binding.tensors, binding.bases, steps, self.shaped.outputs
        )

    def expects(self, name: str, tensor: torch.Tensor) -> bool:
        shape, strides, dtype = self._layout(name)
        return tensor.dtype == dtype and has_layout(tensor, shape, strides)

    def place_inputs(self, args: list, tensors: list, bases, address: int, record) -> list:
        """Fills in the moving inputs. Returns (caller's tensor, copy) of those that the program
        changes but that had to be copied. `address`: of `bases`."""
        expected = self._expected
        if expected is not None and self._native.place(expected, args, tensors, address):
            return []
        with below_autograd():
            return self._place_slowly(args, tensors, bases, record)

    def _place_slowly(self, args: list, tensors: list, bases, record) -> list:
        restore = []
        for position, name, slot, shape, strides, dtype, mutated in self._inputs:
            tensor = args[position]
            if tensor.stride() != strides or tensor.shape != shape or tensor.dtype != dtype:
                tensor = _conformed(tensor, name, shape, strides, dtype, record)
                if mutated and tensor is not args[position]:
                    restore.append((args[position], tensor))
            tensors[slot] = tensor
            bases[slot] = tensor.data_ptr()
        return restore

    def _layout(self, name: str) -> tuple:
        buffer, sizes = self._loaded.graph.buffers[name], self.shaped.sizes
        shape, strides = (
            tuple(evaluate(s, sizes) for s in part) for part in (buffer.shape, buffer.strides)
        )
        return shape, strides, dtypes.to_torch(buffer.dtype)


def _told(inputs: tuple) -> tuple[tuple, tuple, tuple]:
    """Positions, slots, and tensors without memory that are laid out alike."""
    with without_modes():
        examples = [
            torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            for _, _, _, shape, strides, dtype, _ in inputs
        ]
    return tuple(i[0] for i in inputs), tuple(i[2] for i in inputs), tuple(examples)


def _written_by_kernels(loaded: Loaded) -> tuple[int, ...]:
    comps = [n for n in loaded.graph.nodes if isinstance(n, Comp)]
    written = {name for comp in comps for name in comp.writes}
    return tuple(p for p, n in enumerate(loaded.graph.inputs) if n in written)


def _conformed(tensor: torch.Tensor, name: str, shape, strides, dtype, record) -> torch.Tensor:
    """`tensor` itself, if only irrelevant strides differ, or a copy in the layout that kernels were
    made for."""
    if tensor.shape != shape or tensor.dtype != dtype:
        raise UsageError(
            f"input {name} is {tensor.dtype} {list(tensor.shape)}, not {dtype} {list(shape)}",
            do="fuse with this input, or with dynamic=True",
        )
    if has_layout(tensor, shape, strides):
        return tensor
    note(record, "copied_input", name, f"strides {tensor.stride()}, compiled for {strides}")
    return in_layout(tensor, shape, strides)


def _symbol_value(source: tuple, args: list) -> int:
    kind, position, *dim = source
    if kind == "size":
        return args[position].shape[dim[0]]
    return args[position].stride(dim[0]) if kind == "stride" else args[position]


def _gpu_of(loaded: Loaded) -> int | None:
    """The GPU whose streams kernels are launched on."""
    devices = {torch.device(b.device) for b in loaded.graph.buffers.values()}
    return next((d.index or 0 for d in devices if d.type == "cuda"), None)


def _place(device: torch.device):
    """Arenas are shared along one stream of work."""
    return (device, raw_stream(device.index or 0)) if device.type == "cuda" else device

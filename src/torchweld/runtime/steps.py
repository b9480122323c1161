"""What a program does for one set of sizes: a list of steps, each a function of the call's tensors
and addresses.

Consecutive C++ kernels become one walk over a table; memory is allocated before the walk that first
writes it and dropped after the one that last reads it.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

import torch

from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource
from torchweld.core import dtypes
from torchweld.core.errors import InvalidIR
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, View
from torchweld.ir.size import evaluate
from torchweld.runtime.dispatch import Helpers, NativeCall, Pointer, table
from torchweld.runtime.externs import Arguments, Fetch, out_form, results_list
from torchweld.runtime.launcher import launch_plan
from torchweld.runtime.memory import Arena, Layout, Lifetime, assign
from torchweld.runtime.placement import Placement, buffer_bytes, scratch_name, span
from torchweld.runtime.record import note
from torchweld.runtime.torch_private import raw_stream

Step = Callable[
    [list, array, int], None
]  # (tensors by slot, addresses by slot, address of the addresses)


@dataclass(frozen=True)
class Loaded:
    """All that does not depend on sizes. `functions`: of each source's text, an address (C++) or a
    launch function (Triton); a Comp with a source that is missing there is interpreted. `calls`:
    the function of each Extern, by node name."""

    graph: Graph
    bundles: Mapping[str, KernelBundle]
    placement: Placement
    functions: Mapping[KernelSource, object]
    calls: Mapping[str, Callable]
    helpers: Helpers | None
    static_buffers: frozenset[str]
    record: object = None

    def is_compiled(self, comp: Comp) -> bool:
        """Whether `comp` runs as its kernels; else it is interpreted."""
        bundle = self.bundles.get(comp.name)
        return bundle is not None and all(s in self.functions for s in bundle.sources)


@dataclass(frozen=True, slots=True)
class FixedView:
    """A tensor that stays the same while arenas and static inputs do: a window on `buffer`."""

    buffer: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Shaped:
    """The steps for one set of sizes. `layouts`: the arena of each device. `fixed`: the views that
    a Binding prepares, for the slots from `first_fixed` on. `keep_alive`: memory that the steps
    refer to by address."""

    sizes: Mapping[str, int]
    layouts: tuple[Layout, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Fetch, ...]
    fixed: tuple[FixedView, ...]
    first_fixed: int
    keep_alive: tuple = field(repr=False, default=())


def shape_program(loaded: Loaded, sizes: Mapping[str, int]) -> Shaped:
    """Everything that can be worked out before a call with these sizes."""
    return _Shaper(loaded, sizes).run()


class _Shaper:
    def __init__(self, loaded: Loaded, sizes: Mapping[str, int]) -> None:
        self.loaded, self.sizes = loaded, sizes
        self.placement, self.buffers = loaded.placement, loaded.graph.buffers
        self.layouts = tuple(self._layout(d) for d in self.placement.devices)
        self.first_fixed = len(self.placement.devices) + len(self.placement.slots)
        self.fixed: dict[FixedView, int] = {}
        self.steps: list[Step] = []
        self.pending: list[NativeCall] = []
        self.dying: list[int] = []
        self.keep_alive: list = []

    def run(self) -> Shaped:
        for position, node in enumerate(self.loaded.graph.nodes):
            self._allocate(position)
            if isinstance(node, Extern):
                self._extern(node)
            elif self.loaded.is_compiled(node):
                self._kernels(node)
            else:
                self._interpreted(node)
            self._mark_dead(position)
        self._flush()
        outputs = tuple(self._output(o) for o in self.loaded.graph.outputs)
        return Shaped(
            self.sizes,
            self.layouts,
            tuple(self.steps),
            outputs,
            tuple(self.fixed),
            self.first_fixed,
            tuple(self.keep_alive),
        )

    # -- memory --

    def _layout(self, device: str) -> Layout:
        lives = [
            Lifetime(n, buffer_bytes(self.buffers[n], self.sizes), *self.placement.uses[n])
            for n, kind in self.placement.kinds.items()
            if kind == "arena" and self.buffers[n].device == device
        ]
        lives += [
            Lifetime(n, buffer_bytes(b, self.sizes), position, position)
            for n, (b, position) in self.placement.scratch.items()
            if b.device == device
        ]
        return assign(lives)

    def _allocate(self, position: int) -> None:
        """New tensors for the outputs that this node is the first to write."""
        for name in self.loaded.graph.nodes[position].writes:
            if self.placement.kinds[name] == "output" and self.placement.uses[name][0] == position:
                self.steps.append(
                    _new_tensor(self.placement.slots[name], *self._concrete(self.buffers[name]))
                )

    def _mark_dead(self, position: int) -> None:
        for name in dict.fromkeys(
            self.loaded.graph.nodes[position].reads + self.loaded.graph.nodes[position].writes
        ):
            moving = (
                self.placement.kinds[name] in ("input", "extern")
                and name not in self.loaded.static_buffers
            )
            if moving and self.placement.uses[name][1] == position:
                self.dying.append(self.placement.slots[name])
        if not self.pending:
            self._drop()

    def _drop(self) -> None:
        if self.dying:
            self.steps.append(_dropper(tuple(self.dying)))
            self.dying = []

    def _flush(self) -> None:
        """Pending kernels become a step."""
        if self.pending:
            rows = table(self.pending)
            self.keep_alive.append(rows)
            self.steps.append(_walker(self.loaded.helpers.walk, rows, len(self.pending)))
            self.pending = []
        self._drop()

    def _concrete(self, layout: Buffer | View) -> tuple:
        """(shape, strides, dtype, device)"""
        buffer = layout if isinstance(layout, Buffer) else self.buffers[layout.buffer]
        shape, strides = (
            tuple(evaluate(s, self.sizes) for s in part) for part in (layout.shape, layout.strides)
        )
        return shape, strides, dtypes.to_torch(buffer.dtype), torch.device(buffer.device)

    def _where(self, comp: str) -> Callable[[str], Pointer]:
        """The address of a buffer as kernels of `comp` name it."""

        def where(name: str) -> Pointer:
            scoped = scratch_name(comp, name)
            if scoped in self.placement.scratch:
                return self._in_arena(scoped, self.placement.scratch[scoped][0].device)
            if self.placement.kinds[name] == "arena":
                return self._in_arena(name, self.buffers[name].device)
            return Pointer(self.placement.slots[name])

        return where

    def _in_arena(self, name: str, device: str) -> Pointer:
        number = self.placement.devices.index(device)
        return Pointer(number, self.layouts[number].offsets[name])

    def fetch_view(self, view: View) -> Fetch:
        """How a call finds the tensor that `view` is."""
        shape, strides, dtype, _ = self._concrete(view)
        offset, kind = evaluate(view.offset, self.sizes), self.placement.kinds[view.buffer]
        if kind in ("arena", "constant") or view.buffer in self.loaded.static_buffers:
            return itemgetter(
                self._fixed_slot(FixedView(view.buffer, dtype, shape, strides, offset))
            )
        slot = self.placement.slots[view.buffer]
        if offset == 0 and (shape, strides) == self._concrete(self.buffers[view.buffer])[:2]:
            return itemgetter(slot)
        return lambda tensors: window(tensors[slot], shape, strides, offset)

    def _fixed_slot(self, view: FixedView) -> int:
        return self.first_fixed + self.fixed.setdefault(view, len(self.fixed))

    def _whole(self, name: str) -> Fetch:
        buffer = self.buffers[name]
        return self.fetch_view(View(name, buffer.shape, buffer.strides))

    def _output(self, output) -> Fetch:
        fetch = Arguments((output,), (), self.fetch_view, self.sizes)
        return lambda tensors: fetch(tensors)[0][0]

    # -- nodes --

    def _kernels(self, comp: Comp) -> None:
        bundle = self.loaded.bundles[comp.name]
        if any(s.language == "triton" for s in bundle.sources):
            self._triton(comp, bundle)
        else:
            self._native(comp, bundle)

    def _native(self, comp: Comp, bundle: KernelBundle) -> None:
        where = self._where(comp.name)
        for name in bundle.zeroed:
            size = buffer_bytes(self._layout_in(comp, name), self.sizes)
            self.pending.append(NativeCall(self.loaded.helpers.zero, (where(name),), (size,)))
        for name, init in bundle.prefill:
            self._prefill_native(comp, name, init)
        for source in bundle.sources:
            pointers = tuple(where(a.buffer) for a in source.args if isinstance(a, BufferArg))
            numbers = tuple(
                evaluate(a.size, self.sizes) for a in source.args if not isinstance(a, BufferArg)
            )
            self.pending.append(NativeCall(self.loaded.functions[source], pointers, numbers))

    def _prefill_native(self, comp: Comp, name: str, init) -> None:
        where, buffer = self._where(comp.name), self._layout_in(comp, name)
        if not isinstance(init, str):
            numbers = (
                span(buffer.shape, buffer.strides, self.sizes),
                buffer.dtype.bytes,
                bits(init, buffer),
            )
            self.pending.append(NativeCall(self.loaded.helpers.fill, (where(name),), numbers))
        elif self._concrete(self.buffers[init]) == self._concrete(buffer):
            size = buffer_bytes(buffer, self.sizes)
            self.pending.append(
                NativeCall(self.loaded.helpers.copy, (where(name), where(init)), (size,))
            )
        else:
            self._prefill(comp, name, init)

    def _triton(self, comp: Comp, bundle: KernelBundle) -> None:
        self._flush()
        for name in bundle.zeroed:
            self._prefill(comp, name, 0)
        for name, init in bundle.prefill:
            self._prefill(comp, name, init)
        where = self._where(comp.name)
        plans = [
            launch_plan(s, self.loaded.functions[s], where, self.sizes) for s in bundle.sources
        ]
        device = torch.device(self.buffers[comp.writes[0]].device)
        self.steps.extend(_launcher(p, device.index or 0) for p in plans if p is not None)

    def _prefill(self, comp: Comp, name: str, init) -> None:
        self._flush()
        target = self._scratch_or_whole(comp, name)
        if isinstance(init, str):
            self.steps.append(_copier(target, self._whole(init)))
        else:
            self.steps.append(lambda tensors, bases, address: target(tensors).fill_(init))

    def _layout_in(self, comp: Comp, name: str) -> Buffer:
        scoped = scratch_name(comp.name, name)
        return (
            self.placement.scratch[scoped][0]
            if scoped in self.placement.scratch
            else self.buffers[name]
        )

    def _scratch_or_whole(self, comp: Comp, name: str) -> Fetch:
        scoped = scratch_name(comp.name, name)
        if scoped not in self.placement.scratch:
            return self._whole(name)
        shape, strides, dtype, _ = self._concrete(self.placement.scratch[scoped][0])
        return itemgetter(self._fixed_slot(FixedView(scoped, dtype, shape, strides, 0)))

    def _interpreted(self, comp: Comp) -> None:
        self._flush()
        reads = {n: self._whole(n) for n in comp.reads}
        writes = {n: self._whole(n) for n in comp.writes}
        buffers, sizes = self.buffers, self.sizes

        def step(tensors, bases, address):
            given = {n: fetch(tensors) for n, fetch in reads.items()}
            run_comp(
                comp, given, buffers, sizes, into={n: fetch(tensors) for n, fetch in writes.items()}
            )

        self.steps.append(step)

    def _extern(self, node: Extern) -> None:
        self._flush()
        arguments = Arguments(node.args, node.kwargs, self.fetch_view, self.sizes)
        (first, *rest) = node.outputs or (None,)
        if first is not None and self.placement.kinds[first] == "arena":
            self.steps.append(_out_call(out_form(node.target), arguments, self._whole(first)))
            return
        targets = tuple(None if n is None else self._result(n) for n in (first, *rest))
        totals = tuple(layout.total for layout in self.layouts)
        self.steps.append(
            _call(
                self.loaded.calls[node.name],
                arguments,
                targets,
                totals,
                node.name,
                self.loaded.record,
            )
        )

    def _result(self, name: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        shape, strides, *_ = self._concrete(self.buffers[name])
        return self.placement.slots[name], shape, strides


# -- steps --


def _new_tensor(slot: int, shape, strides, dtype, device) -> Step:
    empty = torch.empty_strided

    def step(tensors, bases, address):
        tensors[slot] = tensor = empty(shape, strides, dtype=dtype, device=device)
        bases[slot] = tensor.data_ptr()

    return step


def _dropper(slots: tuple[int, ...]) -> Step:
    def step(tensors, bases, address):
        for slot in slots:
            tensors[slot] = None

    return step


def _walker(walk, rows: array, count: int) -> Step:
    start = rows.buffer_info()[0]
    return lambda tensors, bases, address: walk(start, count, address)


def _launcher(plan, device_index: int) -> Step:
    return lambda tensors, bases, address: plan(bases, raw_stream(device_index))


def _copier(target: Fetch, source: Fetch) -> Step:
    return lambda tensors, bases, address: target(tensors).copy_(source(tensors))


def _out_call(function, arguments: Arguments, target: Fetch) -> Step:
    def step(tensors, bases, address):
        args, kwargs = arguments(tensors)
        function(*args, **kwargs, out=target(tensors))

    return step


def _call(
    function, arguments: Arguments, targets, totals: tuple[int, ...], name: str, record
) -> Step:
    """Calls the library and keeps its results, in the layout that the graph says, in memory that no
    later node reuses."""

    def step(tensors, bases, address):
        args, kwargs = arguments(tensors)
        results = results_list(function(*args, **kwargs))
        for target, result in zip(targets, results):
            if target is not None:
                slot, shape, strides = target
                result = _laid_out(result, shape, strides, name, record)
                place = result.data_ptr()
                if any(0 <= place - bases[d] < total for d, total in enumerate(totals)):
                    result = in_layout(result, shape, strides)
                    place = result.data_ptr()
                tensors[slot], bases[slot] = result, place

    return step


# -- tensors --


def _laid_out(result: torch.Tensor, shape, strides, name: str, record) -> torch.Tensor:
    """A result as the graph's buffer: itself, the same memory under another shape, or a copy."""
    if has_layout(result, shape, strides):
        return result
    if result.shape != shape and result.numel() == math.prod(shape) and result.is_contiguous():
        result = result.view(shape)
        if has_layout(result, shape, strides):
            return result
    note(record, "copied_result", name, f"strides {result.stride()}, not {strides}")
    return in_layout(result, shape, strides)


def window(tensor: torch.Tensor, shape, strides, offset: int) -> torch.Tensor:
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def has_layout(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Strides of dimensions with fewer than two elements do not matter, nor any where there are no
    elements."""
    actual = tensor.stride()
    if tensor.shape != shape:
        return False
    if actual == strides or 0 in shape:
        return True
    return all(a == s or n < 2 for a, s, n in zip(actual, strides, shape))


def in_layout(tensor: torch.Tensor, shape, strides) -> torch.Tensor:
    """A copy with these strides. Raises InvalidIR if it has another shape."""
    if tensor.shape != shape:
        raise InvalidIR(f"a result of shape {tuple(tensor.shape)} where the graph says {shape}")
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(
        tensor
    )


def bits(number, buffer: Buffer) -> int:
    """The bytes of one element of `buffer` that is `number`, as a little-endian integer."""
    raw = torch.tensor([number], dtype=dtypes.to_torch(buffer.dtype)).view(torch.uint8).tolist()
    return struct.unpack("<q", bytes(raw).ljust(8, b"\0"))[0]


@dataclass(frozen=True)
class Binding:
    """Tensors and addresses that stay the same from call to call, for one Shaped, its arenas and
    the static inputs at `pointers`."""

    tensors: list
    bases: array
    pointers: tuple[int, ...]


def bind_program(
    loaded: Loaded,
    shaped: Shaped,
    arenas: tuple[Arena, ...],
    steady: Mapping[str, torch.Tensor],
    pointers,
) -> Binding:
    """`steady`: constants and static inputs by buffer name."""
    placement = loaded.placement
    tensors: list = [None] * (shaped.first_fixed + len(shaped.fixed))
    bases = array("q", bytes(8 * len(tensors)))
    for number, arena in enumerate(arenas):
        bases[number] = arena.address
    for name, tensor in steady.items():
        tensors[placement.slots[name]] = tensor
        bases[placement.slots[name]] = tensor.data_ptr()
    for number, view in enumerate(shaped.fixed):
        tensors[shaped.first_fixed + number] = _fixed_tensor(
            placement, shaped, arenas, steady, view, loaded
        )
    return Binding(tensors, bases, pointers)


def _fixed_tensor(
    placement, shaped, arenas, steady, view: FixedView, loaded: Loaded
) -> torch.Tensor:
    if view.buffer in steady:
        return window(steady[view.buffer], view.shape, view.strides, view.offset)
    scratch = placement.scratch.get(view.buffer)
    device = scratch[0].device if scratch else loaded.graph.buffers[view.buffer].device
    number = placement.devices.index(device)
    start = shaped.layouts[number].offsets[view.buffer] + view.offset * view.dtype.itemsize
    return arenas[number].view(start, view.dtype, view.shape, view.strides)

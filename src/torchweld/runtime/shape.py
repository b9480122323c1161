"""From a loaded program and its sizes to steps.

Consecutive C++ kernels become one walk over a table; memory is allocated before the walk that first
writes it and dropped after the one that last reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import torch

from torchweld.codegen.source import BufferArg, KernelBundle
from torchweld.core import dtypes
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.nodes import Buffer, Comp, Extern, View, views
from torchweld.ir.size import evaluate
from torchweld.runtime import steps
from torchweld.runtime.dispatch import NativeCall, Pointer, table
from torchweld.runtime.externs import Arguments, Fetch, out_form
from torchweld.runtime.launch_table import launch_table
from torchweld.runtime.launcher import LaunchPlan, launch_plan
from torchweld.runtime.library_calls import LIBRARY
from torchweld.runtime.loaded import FixedView, Loaded, Shaped, Step
from torchweld.runtime.memory import Layout, assign
from torchweld.runtime.placement import (
    buffer_bytes,
    lifetimes,
    scratch_lifetimes,
    scratch_name,
    span,
    tail_start,
)
from torchweld.runtime.regions import region, region_name
from torchweld.runtime.torch_private import bare_window

_WORTH_A_STEP_BYTES = 1 << 16  # a walk over kernels costs 1 us more than one that goes on


def shape_program(loaded: Loaded, sizes: Mapping[str, int], named: bool = False) -> Shaped:
    """Everything that can be worked out before a call with these sizes. `named`: each node is a
    step of its own, in a range with its name."""
    return _Shaper(loaded, sizes, named).run()


@dataclass(frozen=True, slots=True)
class Launch:
    """Of a kernel of the GPU number `device`."""

    plan: LaunchPlan
    device: int


def _nothing(tensors: list) -> None:
    """The Fetch of no output."""


def _filled(bundle: KernelBundle) -> list[tuple[str, float | int | str]]:
    """What has to be filled before kernels run: not what goes on from what is in its memory."""
    return [(name, init) for name, init in bundle.prefill if init != name]


def _kind(call: NativeCall | Launch) -> int | None:
    """Calls of one kind can be made together: those of one GPU, or of the host."""
    return call.device if isinstance(call, Launch) else None


class _Shaper:
    def __init__(self, loaded: Loaded, sizes: Mapping[str, int], named: bool) -> None:
        self.loaded, self.sizes, self.named = loaded, sizes, named
        self.placement, self.buffers, self.native = (
            loaded.placement, loaded.graph.buffers, loaded.native
        )  # fmt: skip
        gpus = {b.device for b in self.buffers.values() if b.device.startswith("cuda")}
        self.one_gpu = len(gpus) == 1
        self.layouts = tuple(self._layout(d) for d in self.placement.devices)
        self.first_fixed = len(self.placement.devices) + len(self.placement.slots)
        self.fixed: dict[FixedView, int] = {}
        self.steps: list[Step] = []
        self.pending: list[NativeCall | Launch] = []
        self.dying: list[int] = []
        self.keep_alive: list = []
        self.calls_torch = False
        self.returned = [v.buffer for v in views(loaded.graph.outputs)]

    def run(self) -> Shaped:
        tail, steps_before = self._tail_start(), None
        self._zero_counters()
        for position, node in enumerate(self.loaded.graph.nodes):
            if position == tail:
                self._flush()
                steps_before = len(self.steps)
            self._allocate(position)
            first = len(self.steps)
            if isinstance(node, Extern):
                self._extern(node)
            elif self.loaded.is_compiled(node):
                self._kernels(node)
            else:
                self._interpreted(node)
            if self.named:
                self._flush()
                name = region_name(self.loaded.graph.name, node.name)
                self.steps[first:] = [region(name, tuple(self.steps[first:]))]
            self._mark_dead(position)
        self._flush()
        outputs = tuple(self._output(o) for o in self.loaded.graph.outputs)
        return Shaped(
            self.sizes,
            self.layouts,
            self._needs(),
            tuple(self.steps[:steps_before]),
            tuple(self.steps[steps_before:]) if steps_before is not None else (),
            outputs,
            tuple(self.fixed),
            self.first_fixed,
            tuple(self.keep_alive),
            self.calls_torch,
        )

    def _tail_start(self) -> int:
        on_gpu = any(b.device.startswith("cuda") for b in self.buffers.values())
        graph = self.loaded.graph
        tail = on_gpu and self.loaded.has_tail
        return tail_start(graph, self.sizes) if tail else len(graph.nodes)

    # -- memory --

    def _layout(self, device: str) -> Layout:
        kinds, uses = self.placement.kinds, self.placement.uses
        lives = lifetimes(self.buffers, kinds, uses, device, ("arena",), self.sizes)
        return assign(lives + scratch_lifetimes(self.placement.scratch, device, self.sizes))

    def _needs(self) -> tuple[int, ...]:
        return tuple(layout.total for layout in self.layouts)

    def _allocate(self, position: int) -> None:
        """New tensors for what this node is the first to write, and what has no place yet."""
        for name in self.loaded.graph.nodes[position].writes:
            is_tensor = self.placement.kinds[name] in ("output", "own")
            if is_tensor and self.placement.uses[name][0] == position:
                self._flush_for(name)
                slot, layout = self.placement.slots[name], self._concrete(self.buffers[name])
                current = layout[-1].type == "cpu" or self.one_gpu
                self.steps.append(steps.new_tensor(slot, *layout, current, self.native))

    def _mark_dead(self, position: int) -> None:
        for name in dict.fromkeys(
            self.loaded.graph.nodes[position].reads + self.loaded.graph.nodes[position].writes
        ):
            moving = (
                self.placement.kinds[name] in ("input", "extern", "own")
                and name not in self.loaded.static_buffers
            )
            if moving and self.placement.uses[name][1] == position:
                self._flush_for(name)
                self.dying.append(self.placement.slots[name])
        if not self.pending:
            self._drop()

    def _flush_for(self, name: str) -> None:
        """Kernels that wait to be called hold memory that `name` may share or must outlive."""
        if self.pending and buffer_bytes(self.buffers[name], self.sizes) >= _WORTH_A_STEP_BYTES:
            self._flush()

    def _drop(self) -> None:
        if self.dying:
            self.steps.append(steps.drop(tuple(self.dying), self.native))
            self.dying = []

    def _queue(self, call: NativeCall | Launch) -> None:
        """Kernels wait to be called together with those of their kind that follow."""
        if self.pending and _kind(self.pending[0]) != _kind(call):
            self._flush()
        self.pending.append(call)

    def _flush(self) -> None:
        """Pending kernels become a step."""
        calls, self.pending = self.pending, []
        if calls and isinstance(calls[0], Launch):
            self._launch(calls)
        elif calls:
            rows = table(calls)
            self.keep_alive.append(rows)
            walk = steps.walk_table(self.loaded.helpers, rows, len(calls), self.native)
            self.steps.append(walk)
        self._drop()

    def _launch(self, launches: list[Launch]) -> None:
        native, device = self.native, launches[0].device
        plans = [launch.plan for launch in launches]
        if native is None:
            self.steps.extend(steps.launch(plan, device) for plan in plans)
        else:
            made = launch_table(plans, device, native)
            self.keep_alive.append(made)
            self.steps.append(steps.launch_all(made, native, device))

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
            scoped = self.placement.counters.get(scoped, scoped)
            if scoped in self.placement.scratch:
                return self._in_arena(scoped, self.placement.scratch[scoped][0].device)
            if self.placement.kinds[name] == "arena":
                return self._in_arena(name, self.buffers[name].device)
            return Pointer(self.placement.slots[name])

        return where

    def _in_arena(self, name: str, device: str) -> Pointer:
        number = self.placement.devices.index(device)
        return Pointer(number, self.layouts[number].offsets[name])

    def fetch_view(self, view: View, window: Callable = steps.window) -> Fetch:
        """How a call finds the tensor that `view` is. `window`: what makes it of a tensor that
        moves."""
        shape, strides, dtype, _ = self._concrete(view)
        offset, kind = evaluate(view.offset, self.sizes), self.placement.kinds[view.buffer]
        if kind in ("arena", "constant") or view.buffer in self.loaded.static_buffers:
            return itemgetter(
                self._fixed_slot(FixedView(view.buffer, dtype, shape, strides, offset))
            )
        slot = self.placement.slots[view.buffer]
        if offset == 0 and (shape, strides) == self._concrete(self.buffers[view.buffer])[:2]:
            return itemgetter(slot)
        self.calls_torch = True
        return steps.window_of(slot, window, shape, strides, offset, self.native)

    def _fixed_slot(self, view: FixedView) -> int:
        return self.first_fixed + self.fixed.setdefault(view, len(self.fixed))

    def _whole(self, name: str) -> Fetch:
        buffer = self.buffers[name]
        return self.fetch_view(View(name, buffer.shape, buffer.strides))

    def _output(self, output) -> Fetch:
        if isinstance(output, View):
            made = self.placement.kinds[output.buffer] == "output"
            alone = made and self.returned.count(output.buffer) == 1
            return self.fetch_view(output, bare_window if alone else steps.window)
        if output is None:
            return _nothing
        fetch = Arguments((output,), (), self.fetch_view, self.sizes)
        return lambda tensors: fetch(tensors)[0][0]

    # -- nodes --

    def _kernels(self, comp: Comp) -> None:
        bundle = self.loaded.bundles[comp.name]
        if any(s.language != "cpp" for s in bundle.sources):
            self._triton(comp, bundle)
        else:
            self._native(comp, bundle)

    def _native(self, comp: Comp, bundle: KernelBundle) -> None:
        where = self._where(comp.name)
        for name in bundle.zeroed:
            size = buffer_bytes(self._layout_in(comp, name), self.sizes)
            self._queue(NativeCall(self.loaded.helpers.zero, (where(name),), (size,)))
        for name, init in _filled(bundle):
            self._prefill_native(comp, name, init)
        for source in bundle.sources:
            pointers = tuple(
                where(a.buffer).after(a.offset_bytes)
                for a in source.args
                if isinstance(a, BufferArg)
            )
            numbers = tuple(
                evaluate(a.size, self.sizes) for a in source.args if not isinstance(a, BufferArg)
            )
            self._queue(NativeCall(self.loaded.functions[source], pointers, numbers))

    def _prefill_native(self, comp: Comp, name: str, init) -> None:
        where, buffer = self._where(comp.name), self._layout_in(comp, name)
        if not isinstance(init, str):
            numbers = (
                span(buffer.shape, buffer.strides, self.sizes),
                buffer.dtype.bytes,
                steps.bits(init, buffer),
            )
            self._queue(NativeCall(self.loaded.helpers.fill, (where(name),), numbers))
        elif self._concrete(self.buffers[init]) == self._concrete(buffer):
            size = buffer_bytes(buffer, self.sizes)
            self._queue(NativeCall(self.loaded.helpers.copy, (where(name), where(init)), (size,)))
        else:
            self._prefill(comp, name, init)

    def _triton(self, comp: Comp, bundle: KernelBundle) -> None:
        for name, init in _filled(bundle):
            self._prefill(comp, name, init)
        where, functions = self._where(comp.name), self.loaded.functions
        device = torch.device(self.buffers[comp.writes[0]].device).index or 0
        plans = [launch_plan(s, functions[s], where, self.sizes) for s in bundle.sources]
        for plan in plans:
            if plan is not None:
                self._queue(Launch(plan, device))

    def _zero_counters(self) -> None:
        for counters in dict.fromkeys(self.placement.counters.values()):
            self.calls_torch = True
            self.steps.append(steps.fill(self._whole_scratch(counters), 0))

    def _prefill(self, comp: Comp, name: str, init) -> None:
        if self.placement.kinds.get(name) == "flag":
            return  # it is clear until it is set, and then stays so
        self._flush()
        self.calls_torch = True
        target = self._scratch_or_whole(comp, name)
        if isinstance(init, str):
            self.steps.append(steps.copy(target, self._whole(init)))
        else:
            self.steps.append(steps.fill(target, init))

    def _layout_in(self, comp: Comp, name: str) -> Buffer:
        scoped = scratch_name(comp.name, name)
        return (
            self.placement.scratch[scoped][0]
            if scoped in self.placement.scratch
            else self.buffers[name]
        )

    def _scratch_or_whole(self, comp: Comp, name: str) -> Fetch:
        scoped = scratch_name(comp.name, name)
        if scoped in self.placement.scratch:
            return self._whole_scratch(scoped)
        return self._whole(name)

    def _whole_scratch(self, scoped: str) -> Fetch:
        shape, strides, dtype, _ = self._concrete(self.placement.scratch[scoped][0])
        return itemgetter(self._fixed_slot(FixedView(scoped, dtype, shape, strides, 0)))

    def _interpreted(self, comp: Comp) -> None:
        self._flush()
        self.calls_torch = True
        reads = {n: self._whole(n) for n in comp.reads}
        writes = {n: self._whole(n) for n in comp.writes}
        flags = frozenset(n for n in writes if self.placement.kinds[n] == "flag")
        self.steps.append(steps.interpret(comp, reads, writes, self.buffers, self.sizes, flags))

    def _extern(self, node: Extern) -> None:
        checks = node.target == CHECK_INDEX
        if checks and self.placement.kinds[node.reads[0]] == "flag":
            return
        self._flush()
        step = self._call(node)
        if checks and self.native is not None:
            flag = self._where(node.name)(node.reads[0])
            step = self.native.check(flag.base, flag.offset, step)
        else:
            self.calls_torch = True
        self.steps.append(step)

    def _call(self, node: Extern) -> Step:
        # Our own calls look at version counters; so does torch where it writes.
        own = node.mutates or node.target in LIBRARY
        fetch_view = partial(self.fetch_view, window=steps.window if own else bare_window)
        arguments = Arguments(node.args, node.kwargs, fetch_view, self.sizes)
        (first, *rest) = node.outputs or (None,)
        if first is not None and self.placement.kinds[first] != "extern":
            function, target = out_form(node.target), self._whole(first)
            return steps.call_into(function, arguments, target, self.native)
        targets = tuple(None if n is None else self._result(n) for n in (first, *rest))
        totals = self._needs()
        function = self.loaded.calls[node.name]
        return steps.call(function, arguments, targets, totals, node.name, self.loaded.record)

    def _result(self, name: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        shape, strides, *_ = self._concrete(self.buffers[name])
        return self.placement.slots[name], shape, strides

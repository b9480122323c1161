"""The steps of a program: each a function of the call's tensors and addresses."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType

import torch

from torchweld.core import dtypes
from torchweld.core.errors import InvalidIR
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Buffer, Comp
from torchweld.runtime.dispatch import Helpers
from torchweld.runtime.externs import Arguments, Fetch, results_list
from torchweld.runtime.huge_pages import FRESH_BYTES, with_huge_pages
from torchweld.runtime.launch_table import LaunchTable
from torchweld.runtime.loaded import Step
from torchweld.runtime.record import note
from torchweld.runtime.torch_private import raw_stream, strided_maker

Native = ModuleType | None  # see native.py; with it steps are functions of C


def new_tensor(
    slot: int, shape, strides, dtype, device: torch.device, current: bool, native: Native
) -> Step:
    """A fresh output in `slot`. `current`: `device` is a CPU, or the GPU that the program is called
    on."""
    make = partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
    if current:
        make = strided_maker(shape, strides, dtype, device)
    large = math.prod(shape) * dtype.itemsize > FRESH_BYTES
    if native is not None and not large:
        return native.new_tensor(slot, make)

    def step(tensors, bases, address):
        tensor = make()
        tensors[slot] = tensor = with_huge_pages(tensor) if large else tensor
        bases[slot] = tensor.data_ptr()

    return step


def drop(slots: tuple[int, ...], native: Native) -> Step:
    """Memory that nothing needs any more is freed."""
    if native is not None:
        return native.drop(slots)

    def step(tensors, bases, address):
        for slot in slots:
            tensors[slot] = None

    return step


def walk_table(helpers: Helpers, rows: array, count: int, native: Native = None) -> Step:
    """`count` C++ kernels, one after the other."""
    start, walk = rows.buffer_info()[0], helpers.walk
    if native is not None:
        return native.walk(helpers.walker, start, count)
    return lambda tensors, bases, address: walk(start, count, address)


def launch(plan, device_index: int) -> Step:
    """A Triton kernel on the current stream."""

    return lambda tensors, bases, address: plan(bases, device_index, raw_stream(device_index))


def launch_all(table: LaunchTable, native: ModuleType, device_index: int) -> Step:
    """Kernels of a GPU, one after the other, on the current stream."""

    plans, launch = table.plans, native.launch
    start, count = table.address, len(plans)

    def go_on(bases, address, stream, done):
        while done < count:
            plans[done](bases, device_index, stream)
            done = launch(start, done + 1, count, address, stream)

    return native.launches(start, count, raw_stream, device_index, go_on)


def copy(target: Fetch, source: Fetch) -> Step:
    """One tensor into another."""

    return lambda tensors, bases, address: target(tensors).copy_(source(tensors))


def call_into(function, arguments: Arguments, target: Fetch, native: Native) -> Step:
    """A library call that writes where it is told."""
    if native is not None:
        return native.call(function, *arguments.parts, target, (*arguments.names, "out"))

    def step(tensors, bases, address):
        args, kwargs = arguments(tensors)
        function(*args, **kwargs, out=target(tensors))

    return step


def call(
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


def fill(target: Fetch, number: float) -> Step:
    """Every element of a tensor the same."""
    return lambda tensors, bases, address: target(tensors).fill_(number)


def interpret(
    comp: Comp,
    reads: Mapping[str, Fetch],
    writes: Mapping[str, Fetch],
    buffers: Mapping[str, Buffer],
    sizes: Mapping[str, int],
    flags: frozenset[str] = frozenset(),
) -> Step:
    """A Comp by torch operations. `flags`: results that stay set once they are."""

    def step(tensors, bases, address):
        given = {n: fetch(tensors) for n, fetch in reads.items()}
        into = {n: fetch(tensors) for n, fetch in writes.items() if n not in flags}
        made = run_comp(comp, given, buffers, sizes, into=into)
        for name in flags:
            flag = writes[name](tensors)
            flag.logical_or_(made[name].to(flag.device))

    return step


# -- tensors --


def window_of(slot: int, window: Callable, shape, strides, offset: int, native: Native) -> Fetch:
    """A view, made by `window`, of the tensor in a slot."""
    if native is not None:
        return native.window(slot, window, shape, strides, offset)
    return lambda tensors: window(tensors[slot], shape, strides, offset)


def _laid_out(result: torch.Tensor, shape, strides, name: str, record) -> torch.Tensor:
    """A result as the graph's buffer: itself, the same memory under another shape, or a copy."""
    if has_layout(result, shape, strides):
        told = result.stride() == strides  # those that do not matter too: they may be the user's
        return result if told else window(result, shape, strides, 0)
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

"""What stays the same between calls of a program, worked out once: addresses, and views of arenas,
constants and parameters."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from torchweld.runtime.fixed import Fixed
from torchweld.runtime.loaded import FixedView, Loaded, Shaped
from torchweld.runtime.memory import Arena, for_any_mode
from torchweld.runtime.steps import window


@dataclass(slots=True)
class Binding:
    """Tensors and addresses that stay the same from call to call, for one Shaped, its arenas and
    the static inputs at `pointers`. `whole`: a call as one function of C (native.py), where the
    static inputs are the objects `fixed`."""

    tensors: list
    bases: array
    pointers: tuple[int, ...]
    fixed: Fixed | None = None
    whole: Callable[[list], list | None] | None = None

    def is_for(self, pointers: tuple[int, ...]) -> bool:
        """Mostly the same tuple, which Python would compare number by number."""
        return self.pointers is pointers or self.pointers == pointers


def bind_steady(
    loaded: Loaded, shaped: Shaped, steady: Mapping[str, torch.Tensor], pointers: tuple[int, ...]
) -> Binding:
    """All but the arenas. `steady`: constants and static inputs by buffer name."""
    slots = loaded.placement.slots
    tensors: list = [None] * (shaped.first_fixed + len(shaped.fixed))
    bases = array("q", bytes(8 * len(tensors)))
    for name, tensor in steady.items():
        tensors[slots[name]], bases[slots[name]] = tensor, tensor.data_ptr()
    for slot, view in enumerate(shaped.fixed, shaped.first_fixed):
        if view.buffer in steady:
            tensors[slot] = _seen(steady[view.buffer], view)
    return Binding(tensors, bases, pointers)


def _seen(tensor: torch.Tensor, view: FixedView) -> torch.Tensor:
    """`view` of a constant or static input. All of it is the tensor itself: a parameter that a
    forward keeps would else be a view, which is detached in each call (0.7 us each of 50, in a call
    of 117), and which the backward does not know again."""
    whole = (view.shape, view.strides) == (tuple(tensor.shape), tensor.stride())
    if whole and view.offset == 0 and tensor.dtype == view.dtype:
        return tensor
    return window(tensor, view.shape, view.strides, view.offset)


ArenaViews = tuple[tuple, ...]  # (slot, number of the arena, byte offset, dtype, shape, strides)


def arena_views(loaded: Loaded, shaped: Shaped) -> ArenaViews:
    """The fixed views that are in arenas, and where."""
    views = enumerate(shaped.fixed, shaped.first_fixed)
    kinds, scratch = loaded.placement.kinds, loaded.placement.scratch
    return tuple(
        (slot, *_place(loaded, shaped, view), view.dtype, view.shape, view.strides)
        for slot, view in views
        if view.buffer in scratch or kinds[view.buffer] == "arena"
    )


def _place(loaded: Loaded, shaped: Shaped, view: FixedView) -> tuple[int, int]:
    scratch = loaded.placement.scratch.get(view.buffer)
    device = scratch[0].device if scratch else loaded.graph.buffers[view.buffer].device
    number = loaded.placement.devices.index(device)
    return number, shaped.layouts[number].offsets[view.buffer] + view.offset * view.dtype.itemsize


def bind_arenas(binding: Binding, views: ArenaViews, arenas: tuple[Arena, ...]) -> Binding:
    """`binding` with the arenas, which may be others at each call."""
    tensors, bases = binding.tensors.copy(), binding.bases[:]
    for number, arena in enumerate(arenas):
        bases[number] = arena.address
    with for_any_mode():
        for slot, number, *place in views:
            tensors[slot] = arenas[number].view(*place)
    return Binding(tensors, bases, binding.pointers)

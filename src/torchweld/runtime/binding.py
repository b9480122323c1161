"""What stays the same between calls of a program, worked out once: addresses, and views of arenas,
constants and parameters."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchweld.runtime.loaded import FixedView, Loaded, Shaped
from torchweld.runtime.memory import Arena
from torchweld.runtime.steps import window


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

"""A structural hash of a Comp: equal for repeated layers, whatever their names are.

Axes are named by position and buffers by first use, so two Comps with one signature become the same
kernel source, called with other buffers. Origins do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.printer import buffer_text, text
from torchweld.ir.substitute import rename_axes, rename_buffers


def canonical(comp: Comp) -> tuple[Comp, tuple[str, ...]]:
    """`comp` with canonical names, and the original names of its buffers b0, b1, ... in that
    order."""
    axes = {a.name: f"i{k}" for k, a in enumerate(comp.axes)}
    buffers = tuple(dict.fromkeys(comp.reads + comp.writes))
    named = rename_buffers(
        rename_axes(comp, axes), {name: f"b{k}" for k, name in enumerate(buffers)}
    )
    return replace(named, name="c", origins=()), buffers


def signature(comp: Comp, buffers: Mapping[str, Buffer]) -> str:
    """64 hexadecimal digits: of the computation, and of its buffers' shapes, strides, dtypes and
    devices."""
    named, order = canonical(comp)
    layouts = [
        buffer_text(replace(buffers[name], name=f"b{k}", frozen=False))
        for k, name in enumerate(order)
    ]
    return hashlib.sha256("\n".join([text(named), *layouts]).encode()).hexdigest()

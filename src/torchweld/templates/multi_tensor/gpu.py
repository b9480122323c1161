"""The Triton of one pointwise kernel on several lists of tensors (schedule.py): each
program finds the row of its block, and works on that row's tensors.

    block = tl.program_id(0)
    p_b0 = p_b0_0;  n0 = 512
    in_1 = block >= 1
    p_b0 = tl.where(in_1, p_b0_1, p_b0);  n0 = tl.where(in_1, 262144, n0)
    ...
"""

from __future__ import annotations

import re

from torchweld.codegen.source import BufferArg, GridDim, KernelBundle, KernelSource
from torchweld.codegen.triton import scalars
from torchweld.ir.nodes import Comp
from torchweld.targets.target import Target
from torchweld.templates.multi_tensor.schedule import LENGTH, TensorList
from torchweld.templates.pointwise_reduce.gpu.default import default
from torchweld.templates.pointwise_reduce.gpu.emit import HEADER, Kernel
from torchweld.templates.pointwise_reduce.gpu.forms import stored
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule


def generate(comp: Comp, tensors: TensorList, table: Target) -> KernelBundle:
    """One launch. On Hopper its blocks start while the kernel before still runs, and wait."""
    schedule = default(tensors.accesses, {"n": sum(tensors.lengths)}, table.units)
    k = Kernel(tensors.accesses, tensors.buffers, schedule)
    k.index_type = "tl.int32" if 2 * max(tensors.lengths) < 2**31 else "tl.int64"
    body = _body(k, tensors)
    name = re.sub(r"\W", "_", comp.name)
    names = [f"{k.pointer(b)}_{t}" for t, _ in enumerate(tensors.rows) for b in tensors.buffers]
    wait = [f"    {k.helper('_await_previous()')}"] if table.begins_early else []
    head = [f"\n\n@triton.jit\ndef {name}({', '.join(names)}):", *wait, *_find_row(k, tensors)]
    text = HEADER + "".join(k.helpers.values()) + "\n".join([*head, *body]) + "\n"
    kinds = [f"*{scalars.SIGNATURE[b.dtype]}" for b in tensors.buffers.values()]
    source = KernelSource(
        "triton", name, text, tuple(map(BufferArg, tensors.tensors)),
        (GridDim(sum(_blocks(tensors, schedule))),), (),
        tuple(kinds * len(tensors.rows)), schedule.num_warps, early=table.begins_early,
    )  # fmt: skip
    return KernelBundle(comp.name, (source,))


def _body(k: Kernel, tensors: TensorList) -> list[str]:
    """What a program does with the tensors p_b0, ... of length n0."""
    step, positions = k.schedule.block_columns, range(len(k.comp.stores))
    k.size(LENGTH)
    whole = all(length % step == 0 for length in tensors.lengths)
    k.define_columns(f"block * {step}", LENGTH if whole else None)
    k.compute(stored(k, positions))
    for position in positions:
        k.store(position)
    return k.text_lines


def _find_row(k: Kernel, tensors: TensorList) -> list[str]:
    pointers, length = [k.pointer(b) for b in tensors.buffers], k.size(LENGTH)
    lines = ["block = place", f"{length} = {tensors.lengths[0]}"]
    lines += [f"{p} = {p}_0" for p in pointers]
    start = 0
    for t, blocks in enumerate(_blocks(tensors, k.schedule)[:-1], start=1):
        start += blocks
        lines.append(f"in_{t} = place >= {start}")
        lines += [f"{p} = tl.where(in_{t}, {p}_{t}, {p})" for p in pointers]
        lines.append(f"{length} = tl.where(in_{t}, {tensors.lengths[t]}, {length})")
        lines.append(f"block = tl.where(in_{t}, place - {start}, block)")
    return [f"    {line}" for line in ("place = tl.program_id(0)", *lines)]


def _blocks(tensors: TensorList, schedule: Schedule) -> list[int]:
    """Programs of each row."""
    return [-(-length // schedule.block_columns) for length in tensors.lengths]

"""Copies of several tensors as one kernel of a GPU: the driver's own copy costs the host as much
for each as three launches. Sizes are known; addresses come with each call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType

import torch

from torchweld.codegen.source import BufferArg, GridDim, KernelSource, SizeArg
from torchweld.core.errors import BuildError
from torchweld.core.logs import logger
from torchweld.ir.size import symbol
from torchweld.runtime.dispatch import Pointer
from torchweld.runtime.launch_table import LaunchTable, launch_table
from torchweld.runtime.launcher import launch_plan

_BLOCK = 4096  # bytes that a program copies
_MOST = 8  # tensors
_VECTOR = 16


def copy_table(tensors: Sequence[torch.Tensor], native: ModuleType) -> LaunchTable | None:
    """A launch of copies of tensors laid out like these, from the address in slot 2n + 1 to that in
    slot 2n; addresses must be multiples of 16. None where there is nothing to copy, too much, or no
    such kernel."""
    sizes = [span_bytes(t) for t in tensors]
    if not 0 < len(sizes) <= _MOST or not any(sizes) or not all(t.is_cuda for t in tensors):
        return None
    try:
        source, launcher = _copy_kernel(len(sizes), all(n % _VECTOR == 0 for n in sizes))
    except BuildError as error:
        logger("runtime").info("copies go through the driver: %s", error)
        return None
    slots = {name: Pointer(n) for n, name in enumerate(_pointers(len(sizes)))}
    known = {f"n{i}": size for i, size in enumerate(sizes)} | {"most": max(sizes)}
    plan = launch_plan(source, launcher, slots.__getitem__, known)
    return launch_table([plan], tensors[0].device.index, native)


def span_bytes(tensor: torch.Tensor) -> int:
    """From the first element to the last, both included."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.itemsize


@cache
def _copy_kernel(count: int, vectors: bool):
    """(source, launcher) for `count` tensors, whose sizes are all multiples of 16 bytes if
    `vectors`."""
    from torchweld.runtime.triton_compile import compile_triton

    source = copy_source(count, vectors)
    return source, compile_triton(source)


def copy_source(count: int, vectors: bool) -> KernelSource:
    """Its arguments: target and source of each tensor, then the bytes of each, symbols n0, n1,
    ...; the symbol `most` is the largest of them. Unless all are `vectors`, what is behind the last
    whole vector goes byte by byte: a few odd bytes must not slow down what is large."""
    names, numbers = _pointers(count), [f"n{i}" for i in range(count)]
    lines = [
        "import triton",
        "import triton.language as tl",
        "",
        "",
        "@triton.jit",
        f"def copy{count}({', '.join([*names, *numbers])}, BLOCK: tl.constexpr):",
        "    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
    ]
    for i in range(count):
        lines.append(f"    if tl.program_id(1) == {i}:")
        lines += _copied(i, "value", "place", f"n{i} // {_VECTOR} * {_VECTOR}")
        if not vectors:
            lines += [
                "        if tl.program_id(0) == 0:",
                f"            rest = n{i} // {_VECTOR} * {_VECTOR} + tl.arange(0, {_VECTOR})",
                *(f"    {line}" for line in _copied(i, "odd", "rest", f"n{i}")),
            ]
    sizes = tuple(SizeArg(symbol(n), divisible_by_16=vectors) for n in numbers)
    return KernelSource(
        "triton", f"copy{count}", "\n".join(lines) + "\n",
        (*map(BufferArg, names), *sizes), (GridDim(symbol("most"), _BLOCK), GridDim(count)),
        (("BLOCK", _BLOCK),), ("*i8",) * (2 * count) + ("i64",) * count,
    )  # fmt: skip


def _copied(i: int, name: str, place: str, end: str) -> list[str]:
    return [
        f"        {name} = tl.load(source{i} + {place}, mask={place} < {end})",
        f"        tl.store(target{i} + {place}, {name}, mask={place} < {end})",
    ]


def _pointers(count: int) -> list[str]:
    return [f"{kind}{i}" for i in range(count) for kind in ("target", "source")]

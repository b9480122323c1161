"""What code generation hands to the runtime: sources, and how to call them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from torchweld.ir.nodes import Buffer
from torchweld.ir.size import Size


@dataclass(frozen=True, slots=True)
class BufferArg:
    """The address of a buffer's first element, or of one some bytes after it."""

    buffer: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SizeArg:
    """A 64-bit integer that the host computes from the shape symbols; `divisible_by_16` is a
    promise that Triton specialises on."""

    size: Size
    divisible_by_16: bool = False


@dataclass(frozen=True, slots=True)
class DescriptorArg:
    """A TMA descriptor of a window on a buffer: `shape`, `strides` and `offset` in elements of
    `item_bytes`, the last stride one, the others multiples of 16 bytes; tiles of `block` elements,
    swizzled as `NVMMASharedLayout.get_default_for` says. Out of bounds it reads zeros and writes
    nothing."""

    buffer: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    block: tuple[int, ...]
    offset: Size = 0
    item_bytes: int = 2


KernelArg = Union[BufferArg, SizeArg, DescriptorArg]


@dataclass(frozen=True, slots=True)
class GridDim:
    """ceil(size / block) programs, at most `limit` (the kernel then strides over the rest)."""

    size: Size
    block: int = 1
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One compiled function.

    C++:    extern "C" void NAME(void* const* pointers, const int64_t* sizes): BufferArgs in order,
            then SizeArgs in order; threads are OpenMP's.
    Triton: a @triton.jit function NAME whose arguments are `args` in order, then `constants` by
            name; `signature` has the Triton type of each argument ("*bf16", "i32", "i64").
    Gluon:  the same with @gluon.jit, for Hopper; of a DescriptorArg, `signature` has the type of an
            element ("bf16"). `otherwise` is launched in its place where the address under a
            descriptor is no multiple of 16 bytes.
    `early`: for Hopper. The kernel may begin while the one before it still runs, and waits for its
    end before it touches what that may write.
    """

    language: Literal["cpp", "triton", "gluon"]
    name: str
    text: str
    args: tuple[KernelArg, ...]
    grid: tuple[GridDim, ...] = ()
    constants: tuple[tuple[str, int], ...] = ()
    signature: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 2
    max_registers: int | None = None
    early: bool = False
    otherwise: KernelSource | None = None


@dataclass(frozen=True, slots=True)
class KernelBundle:
    """Sources to run in order for one Comp; the scratch buffers that they share, uninitialised
    unless in `zeroed`; and the buffers that must be filled or copied first (Store.init): (buffer,
    number or name of the buffer to copy). Kernels of a GPU find what is `zeroed` zero and leave it
    so (counters of known length)."""

    comp: str
    sources: tuple[KernelSource, ...]
    scratch: tuple[Buffer, ...] = ()
    zeroed: tuple[str, ...] = ()
    prefill: tuple[tuple[str, float | int | str], ...] = ()

"""`torchweld.mm_odd_rows`: a product whose dense rows are no multiple of 16 bytes.

In parts: the library makes one in rows of aligned length, in that end of the result which is still
free, and a kernel moves it to its place, with the few last columns, which are a product of their
own. Each part takes half of what is free; the last ones share memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from torchweld.codegen.source import BufferArg, KernelSource
from torchweld.ir.nodes import Extern
from torchweld.runtime.torch_private import raw_stream
from torchweld.templates.library.odd_rows import aligned_columns, parts

_LINE = 64  # elements that rows of a part are multiples of: whole cache lines
_BLOCK = 1024
_TEXT = """import triton
import triton.language as tl


@triton.jit
def move_rows(part, last, target, PITCH: tl.constexpr, WHOLE: tl.constexpr, COLUMNS: tl.constexpr,
              BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(part + row * PITCH + column, mask=column < WHOLE)
    rest = row * (COLUMNS - WHOLE) + (column - WHOLE)
    after = tl.load(last + rest, mask=(column >= WHOLE) & (column < COLUMNS))
    tl.store(target + row * COLUMNS + column, tl.where(column < WHOLE, first, after),
             mask=column < COLUMNS)
"""

# (part [r, whole], its rows further apart, last [r, n - whole], target [r, n]) -> None: both go to
# `target`
Move = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def mm_odd_rows(node: Extern, record) -> Callable:
    """(a [m, k], b [k, n]) -> [m, n], dense; 16-bit."""
    return lambda a, b: product_in_parts(a, b, _move_on_gpu)


def product_in_parts(a: torch.Tensor, b: torch.Tensor, move: Move) -> torch.Tensor:
    """a @ b, dense, by `move` from parts with longer rows."""
    (rows, _), (_, columns) = a.shape, b.shape
    whole = aligned_columns(columns, a.element_size())
    pitch = -(-whole // _LINE) * _LINE
    flat, last = a.new_empty(rows * columns), a @ b[:, whole:]
    spare = None  # of the first part that needs it, which no later one exceeds
    for first, count, place in parts(rows, columns, pitch):
        if place is None and spare is None:
            spare = a.new_empty(count * pitch)
        room = spare if place is None else flat[place:]
        part = room[: count * pitch].view(count, pitch)[:, :whole]
        torch.mm(a[first : first + count], b[:, :whole], out=part)
        target = flat[first * columns :][: count * columns].view(count, columns)
        move(part, last[first : first + count], target)
    return flat.view(rows, columns)


def move_for(columns: int, item_bytes: int) -> KernelSource:
    """The kernel that moves parts of a product with so many columns."""
    whole = aligned_columns(columns, item_bytes)
    return move_source(-(-whole // _LINE) * _LINE, whole, columns)


def move_source(pitch: int, whole: int, columns: int) -> KernelSource:
    """The kernel that moves parts, two bytes an element, for Triton."""
    pointers = tuple(BufferArg(name) for name in ("part", "last", "target"))
    sizes = ("PITCH", pitch), ("WHOLE", whole), ("COLUMNS", columns), ("BLOCK", _BLOCK)
    return KernelSource("triton", "move_rows", _TEXT, pointers, (), sizes, ("*i16",) * 3)


@cache
def _launcher(source: KernelSource):
    from torchweld.runtime.triton_compile import compile_triton

    return compile_triton(source)


def _move_on_gpu(part: torch.Tensor, last: torch.Tensor, target: torch.Tensor) -> None:
    (rows, columns), whole = target.shape, part.shape[1]
    source = move_source(part.stride(0), whole, columns)
    values = [t.data_ptr() for t in (part, last, target)] + [v for _, v in source.constants]
    grid = -(-columns // _BLOCK), rows, 1
    _launcher(source)(grid, raw_stream(target.device.index), values)

"""The same pointwise kernel on several lists of tensors: the updates of all parameters of a model,
in one launch.

    x0[i] = x0[i] - lr[] * g0[i],  i < 512       x1[i] = x1[i] - lr[] * g1[i],  i < 262144

A kernel can be of such a list if it is one flat loop over contiguous tensors and single numbers.
Its template has the buffers b0, b1, ... and an extent of its own, the symbol `n`; each row of the
list says which tensors these are, and how long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.ir import size
from torchweld.ir.access import Access, Accesses, addressed
from torchweld.ir.build import BodyBuilder
from torchweld.ir.canonical import canonical
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Index,
    Load,
    Reduce,
    Scan,
    Value,
    in_order_of_use,
    operands,
    store_operands,
)
from torchweld.ir.parts import parts
from torchweld.ir.printer import buffer_text, text
from torchweld.ir.substitute import move_store, with_operands

LENGTH = size.symbol("n")
VECTOR = 16  # elements: a length that is a multiple of it leaves no part of a vector


@dataclass(frozen=True, slots=True)
class Flat:
    """One kernel as a row of a list: the template, its buffers' layouts, and the tensors and length
    of this row."""

    template: Comp
    layouts: tuple[Buffer, ...]
    tensors: tuple[str, ...]
    length: int

    @property
    def key(self) -> tuple:
        """Equal for kernels that may be rows of one list."""
        on_gpu = self.layouts[0].device.startswith("cuda")  # whose loads must know their masks
        layouts = tuple(buffer_text(b) for b in self.layouts)
        return text(self.template), layouts, on_gpu and self.length % VECTOR == 0


@dataclass(frozen=True, slots=True)
class TensorList:
    """`rows`: tensors and length of each."""

    accesses: Accesses
    buffers: Mapping[str, Buffer]
    rows: tuple[tuple[tuple[str, ...], int], ...]

    @property
    def axis(self) -> str:
        return self.accesses.comp.axes[0].name

    @property
    def tensors(self) -> tuple[str, ...]:
        """Of all rows, one after the other."""
        return tuple(name for names, _ in self.rows for name in names)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(length for _, length in self.rows)


def tensor_list(comp: Comp, buffers: Mapping[str, Buffer]) -> TensorList | None:
    """The list that `comp` is; None if it has no parts that are alike."""
    split = parts(comp)
    if len(split) == 1:
        return None
    rows = [flat(part, buffers) for part in split]
    if any(r is None or r.key != rows[0].key for r in rows):
        return None
    layouts = {b.name: b for b in rows[0].layouts}
    accesses = addressed(rows[0].template, layouts)
    return TensorList(accesses, layouts, tuple((r.tensors, r.length) for r in rows))


def flat(comp: Comp, buffers: Mapping[str, Buffer]) -> Flat | None:
    """`comp` as a row of a list; None if it is no flat loop over contiguous tensors."""
    if not _is_plain(comp):
        return None
    accesses = addressed(_in_order_of_use(comp), buffers)
    axes = accesses.comp.axes
    if len(axes) != 1 or not isinstance(axes[0].extent, int) or axes[0].extent == 0:
        return None
    along = {a.buffer: _steps(a, axes[0].name) for a in accesses.all}
    if not all(_is_vector(a, along[a.buffer], axes[0].name) for a in accesses.all):
        return None
    if not all(along[a.buffer] for a in accesses.stores):
        return None
    named, tensors = canonical(replace(accesses.comp, axes=(Axis(axes[0].name, LENGTH),)))
    layouts = tuple(
        Buffer(f"b{k}", (LENGTH if along[t] else 1,), buffers[t].dtype, (1,), buffers[t].device)
        for k, t in enumerate(tensors)
    )
    return Flat(named, layouts, tensors, axes[0].extent)


def _is_plain(comp: Comp) -> bool:
    stores = (s.combine is None and s.init is None and s.guard is None for s in comp.stores)
    others = any(isinstance(i, (Reduce, Scan, Index)) for i in comp.body)
    return bool(comp.axes) and all(stores) and not others


def _in_order_of_use(comp: Comp) -> Comp:
    """Stores in the order of what they compute, instructions as these ask for them: equal for equal
    kernels, in whatever order they were fused."""
    structure = _structures(comp)
    stores = sorted(comp.stores, key=lambda s: structure[s.value])
    builder, number = BodyBuilder(), {}
    for value in in_order_of_use(comp.body, (v for s in stores for v in store_operands(s))):
        number[value] = builder.emit(with_operands(comp.body[value], number.__getitem__))
    moved = tuple(move_store(s, number.__getitem__, {}) for s in stores)
    return replace(comp, body=builder.body, stores=moved)


def _blank(_: Value) -> Value:
    return 0


def _structures(comp: Comp) -> list[str]:
    """What each value computes, apart from which buffers it reads: a short text."""
    found: list[str] = []
    for instr in comp.body:
        is_load = isinstance(instr, Load)
        own = f"load {instr.dtype}" if is_load else repr(with_operands(instr, _blank))
        text = "|".join([own, *(found[v] for v in operands(instr))])
        found.append(hashlib.sha256(text.encode()).hexdigest())
    return found


def _steps(access: Access, axis: str) -> bool:
    return access.offset.coefficient(axis) == 1


def _is_vector(access: Access, steps: bool, axis: str) -> bool:
    """Whether it goes along its buffer element by element, or stays at the first one."""
    stays = not access.offset.axes and not steps
    return not access.refs and access.offset.const == 0 and (stays or _steps(access, axis))

"""16-bit floats of a lane, widened and narrowed a block at a time.

    for i in lane: y[i] = narrow(f(widen(x[i])))
    ->  for blocks of BLOCK: widen x to w;   for i in block: n[i] = f(w[i]);   narrow n to y

gcc vectorises no conversion of float16: those of fastmath.h are one instruction for a vector. Of
bfloat16 it does, but long chains of operations are waited for: in a loop of their own more of them
are under way (silu takes three quarters of the time). The arrays stay in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.access import Access
from torchweld.ir.nodes import Cast, Load, Op, Value
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.stages import own_cost
from torchweld.templates.pointwise_reduce.cpu.values import Texts, element

BLOCK = 256  # elements
LONG = 8.0  # multiply-adds for an element from which on bfloat16 gains
LOW, HIGH = "block_low", "block_high"


@dataclass(frozen=True, slots=True)
class Halves:
    """`widened`: casts of loads to float32; `narrowed`: positions of stores of casts from it."""

    widened: tuple[Value, ...] = ()
    narrowed: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.widened or self.narrowed)


def halves(k: Kernel, values: tuple[Value, ...], stores: list[int]) -> Halves:
    """Those of adjacent elements along the lane, among what a loop computes and stores."""
    work = sum(own_cost(k.body[v]) for v in values if isinstance(k.body[v], Op))
    long = work >= LONG and not k.frame.columns
    kinds = (dtypes.f16, dtypes.bf16) if long else (dtypes.f16,)
    stores = [s for s in stores if k.comp.stores[s].value in values]  # others are narrowed before
    return Halves(
        tuple(v for v in values if is_widened(k, v, kinds)),
        tuple(s for s in stores if _is_narrowed(k, s, kinds)),
    )


def is_widened(k: Kernel, value: Value, kinds: tuple[DType, ...]) -> bool:
    """Whether it is the cast to float32 of a load of adjacent elements of such a type."""
    cast, kept = k.body[value], value in k.stages.kept
    if kept or not isinstance(cast, Cast) or cast.dtype != dtypes.f32:
        return False
    load = k.body[cast.arg]
    plain = isinstance(load, Load) and load.dtype in kinds and load.guard is None
    return plain and cast.arg not in k.staged and _is_adjacent(k, k.accesses.loads[cast.arg])


def _is_narrowed(k: Kernel, position: int, kinds: tuple[DType, ...]) -> bool:
    store = k.comp.stores[position]
    cast, plain = k.body[store.value], store.combine is None and store.guard is None
    if not plain or not isinstance(cast, Cast) or cast.dtype not in kinds:
        return False
    wide = k.body[cast.arg].dtype == dtypes.f32
    return wide and _is_adjacent(k, k.accesses.stores[position])


def _is_adjacent(k: Kernel, access: Access) -> bool:
    adjacent = access.offset.coefficient(k.schedule.nest[-1]) == 1 and not access.refs
    return adjacent and k.schedule.abreast is None


@contextmanager
def in_blocks(
    k: Kernel, e: Emitter, found: Halves, bounds: tuple[str, str], texts: Texts
) -> Iterator[Texts]:
    """A loop over blocks of the lane, from LOW to HIGH each; gives the values in arrays."""
    name, (low, high) = k.names[k.schedule.nest[-1]], bounds
    with e.block(f"for (int64_t {LOW} = {low}; {LOW} < {high}; {LOW} += {BLOCK})"):
        e.line(f"const int64_t end = {LOW} + {BLOCK}, {HIGH} = end < {high} ? end : {high};")
        for array in (*(f"w{v}" for v in found.widened), *(f"n{s}" for s in found.narrowed)):
            e.line(f"alignas(64) float {array}[{BLOCK}];")
        with e.block():
            e.line(f"const int64_t {name} = {LOW};")
            for value in found.widened:
                start = element(k, k.accesses.loads[k.body[value].arg], texts)
                kind = k.body[k.body[value].arg].dtype
                e.line(f"tw_widen_{kind}(&{start}, {HIGH} - {LOW}, w{value});")
        yield {v: f"w{v}[{name} - {LOW}]" for v in found.widened}
        with e.block():
            e.line(f"const int64_t {name} = {LOW};")
            for position in found.narrowed:
                start = element(k, k.accesses.stores[position], texts)
                kind = k.kinds[k.comp.stores[position].buffer]
                e.line(f"tw_narrow_{kind}(n{position}, {HIGH} - {LOW}, &{start});")


def emit_narrowed(k: Kernel, e: Emitter, position: int, texts: Texts) -> None:
    """The store of one element, to the array."""
    name, cast = k.names[k.schedule.nest[-1]], k.body[k.comp.stores[position].value]
    e.line(f"n{position}[{name} - {LOW}] = {texts[cast.arg]};")

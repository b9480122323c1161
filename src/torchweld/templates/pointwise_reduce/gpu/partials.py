"""Reductions in two kernels: the first writes partial results, `finish` is the Comp that merges
them.

    partial[s, p]   reduction of point p over the s-th share: scratch, one for each monoid result
    result[p]       merge over s in order; then whatever the original did with the result

Chan's merge needs the number of points in each share: welford has it as a third partial result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torchweld.core.dtypes import DType
from torchweld.ir import affine
from torchweld.ir.access import Accesses
from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Cast,
    Comp,
    Const,
    Instr,
    Load,
    Op,
    Pick,
    Reduce,
    Scan,
    Store,
    Value,
    operands,
    store_axes,
    store_operands,
    value_axes,
)  # fmt: skip
from torchweld.ir.passes import keeps_infinity, online
from torchweld.ir.size import Size, product

SHARE = "share"


@dataclass(frozen=True, slots=True)
class Partial:
    """Results of the Reduce `value`: one scratch buffer of [splits, points] for each."""

    value: Value
    scratch: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The merging kernel. `buffers` has flat views of all that it reads and writes."""

    comp: Comp
    partials: tuple[Partial, ...]
    buffers: Mapping[str, Buffer]


def finish(accesses: Accesses, buffers: Mapping[str, Buffer], splits: int) -> Finish:
    """The second kernel of `accesses.comp`, whose reductions (over rows if there are such, else
    over columns) are in `splits` shares."""
    comp, frame = accesses.comp, accesses.frame
    reduced = frame.column_reductions or tuple(
        v for v, i in enumerate(comp.body) if isinstance(i, Reduce)
    )
    kept = frame.columns if frame.column_reductions else frame.rows
    axes = tuple(Axis(a, comp.extent(a)) for a in kept)
    points = product(a.extent for a in axes)
    device = buffers[comp.stores[0].buffer].device
    partials = tuple(_partial(comp, v, splits, points, device) for v in reduced)
    stores = _left(accesses, reduced)
    body, moved = _finish_body(comp, partials, _linear(axes, points), stores)
    finished = Comp(
        f"{comp.name}_finish",
        (*axes, Axis(SHARE, splits)),
        body,
        tuple(replace(s, value=moved[s.value], guard=moved.get(s.guard)) for s in stores),
        comp.origins,
    )
    flat = {b.name: b for p in partials for b in p.scratch}
    used = {*finished.reads, *finished.writes} - set(flat)
    flat |= {n: replace(buffers[n], shape=(1,), strides=(1,)) for n in used}
    return Finish(finished, partials, flat)


def _left(accesses: Accesses, reduced: Collection[Value]) -> tuple[Store, ...]:
    """The stores of the second kernel: those that wait for the reductions, and, of rows that shares
    have in common, those that lie along no column."""
    comp, frame = accesses.comp, accesses.frame
    waiting, axes = dependents(comp.body, reduced), value_axes(comp.body)
    shared = frozenset() if frame.column_reductions else frozenset(frame.columns)

    def is_left(store: Store) -> bool:
        once = shared and shared.isdisjoint(store_axes(comp, store, axes))
        return bool(once) or not waiting.isdisjoint(store_operands(store))

    return tuple(s for s in comp.stores if is_left(s))


def dependents(body: tuple[Instr, ...], on: Collection[Value]) -> set[Value]:
    """The values in `on`, and those that are computed from them."""
    found = set(on)
    for value, instr in enumerate(body):
        if not found.isdisjoint(operands(instr)):
            found.add(value)
    return found


def result_dtypes(comp: Comp, value: Value) -> tuple[DType, ...]:
    """Of the partial results of the Reduce `value`."""
    instr = comp.body[value]
    if instr.monoid in ("argmax", "argmin"):
        return instr.dtype, comp.body[instr.args[1]].dtype
    return (instr.dtype,) * {"welford": 3, "logsumexp": 2}.get(instr.monoid, 1)


def _partial(comp: Comp, value: Value, splits: int, points: Size, device: str) -> Partial:
    scratch = tuple(
        Buffer(f"{comp.name}_part{value}_{k}", (splits * points,), dtype, (1,), device)
        for k, dtype in enumerate(result_dtypes(comp, value))
    )
    return Partial(value, scratch)


def _linear(axes: tuple[Axis, ...], points: Size) -> Affine:
    index, step = affine.axis(SHARE) * points, 1
    for a in reversed(axes):
        index, step = index + affine.axis(a.name) * step, step * a.extent
    return index


def _finish_body(comp: Comp, partials, index: Affine, stores: tuple[Store, ...]):
    builder, moved, picks = BodyBuilder(), {}, {}
    parts = {p.value: [builder.load(b.name, (index,), b.dtype) for b in p.scratch]
             for p in partials}  # fmt: skip
    pairs = online(comp.body)
    for value, loaded in parts.items():
        instr = comp.body[value]
        if value in pairs:
            both, keeps = parts[pairs[value]] + loaded, keeps_infinity(comp.body, value)
            results = _merge_exponentials(builder, instr, both, keeps)
        else:
            results = _MERGES.get(instr.monoid, _merge_one)(builder, instr, loaded)
        moved[value], picks[value] = results[0], results

    def move(value: Value) -> Value:
        if value not in moved:
            instr = comp.body[value]
            if isinstance(instr, Pick) and instr.arg in picks:
                moved[value] = picks[instr.arg][instr.item]
            else:
                moved[value] = builder.emit(_with_operands(instr, move))
        return moved[value]

    for store in stores:
        for value in store_operands(store):
            move(value)
    return builder.body, moved


def _with_operands(instr: Instr, move) -> Instr:
    if isinstance(instr, (Op, Reduce)):
        return replace(instr, args=tuple(move(v) for v in instr.args))
    if isinstance(instr, (Cast, Scan, Pick)):
        return replace(instr, arg=move(instr.arg))
    if isinstance(instr, Load) and instr.guard is not None:
        return replace(instr, guard=move(instr.guard))
    return instr


def _merge_one(builder: BodyBuilder, instr: Reduce, parts: list[Value]) -> list[Value]:
    return [builder.reduce(instr.monoid, (parts[0],), (SHARE,))]


def _merge_position(builder: BodyBuilder, instr: Reduce, parts: list[Value]) -> list[Value]:
    merged = builder.reduce(instr.monoid, tuple(parts), (SHARE,))
    return [builder.pick(merged, 0), builder.pick(merged, 1)]


def _merge_welford(b: BodyBuilder, instr: Reduce, parts: list[Value]) -> list[Value]:
    """What the sum of means rounds away is added, so that equal means are merged to that mean."""
    mean, m2, count = parts
    total = b.reduce("sum", (count,), (SHARE,))

    def weighted(value: Value) -> Value:
        return b.op("div", b.reduce("sum", (b.op("mul", count, value),), (SHARE,)), total)

    near = weighted(mean)
    merged = b.op("add", near, weighted(b.op("sub", mean, near)))
    apart = b.op("sub", mean, merged)
    spread = b.op("add", m2, b.op("mul", count, b.op("mul", apart, apart)))
    return [merged, b.reduce("sum", (spread,), (SHARE,))]


def _merge_logsumexp(b: BodyBuilder, instr: Reduce, parts: list[Value]) -> list[Value]:
    top, total = parts
    merged = b.reduce("max", (top,), (SHARE,))
    lowest = b.emit(Const(-math.inf, instr.dtype))
    shift = b.op("where", b.op("eq", merged, lowest), b.const(0.0, instr.dtype), merged)
    scaled = b.op("mul", total, b.op("exp", b.op("sub", top, shift)))
    return [merged, b.reduce("sum", (scaled,), (SHARE,))]


def _merge_exponentials(
    b: BodyBuilder, instr: Reduce, parts: list[Value], keeps: bool
) -> list[Value]:
    """sum(exp(x - max(x))): NaN where all are -inf, as -inf less itself is; if it `keeps` infinity,
    inf where the maximum is."""
    top, total = _merge_logsumexp(b, instr, parts)
    limit, there = (math.inf, math.inf) if keeps else (-math.inf, math.nan)
    at_limit = b.op("eq", top, b.const(limit, instr.dtype))
    return [b.op("where", at_limit, b.const(there, instr.dtype), total)]


_MERGES = {
    "argmax": _merge_position,
    "argmin": _merge_position,
    "welford": _merge_welford,
    "logsumexp": _merge_logsumexp,
}

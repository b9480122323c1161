"""One thread's share of a kernel (schedule.py says which loops there are).

Names in the generated text: p buffers, i axes, n_ symbols, v values, L values that vary along a row
lane, a and A accumulators of a block and of a row, k values kept for a later stage, t and o tiles
of loads and stores, u bands of stores, m what segments read (pieces.py), c and C column
accumulators of a block of rows and of a thread.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir.nodes import Reduce, Scan, Value, operands, store_operands
from torchweld.templates.pointwise_reduce.cpu.blocks import (
    declare_blocks,
    read_blocks,
    write_blocks,
)
from torchweld.templates.pointwise_reduce.cpu.cases import declare_fills
from torchweld.templates.pointwise_reduce.cpu.columns import (
    accumulate_column,
    declare_columns,
    finish_columns,
    flush_columns,
)
from torchweld.templates.pointwise_reduce.cpu.fixed import emit_fixed
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.nest import emit_nest
from torchweld.templates.pointwise_reduce.cpu.turns import declare_turns
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, result, store

STACK_BYTES = 1 << 15  # kept rows up to this size live on the stack


def emit_part(k: Kernel, e: Emitter) -> None:
    """The body of `part`."""
    texts: Texts = {}
    frees = _declare_kept(k, e) + declare_columns(k, e)
    emit_fixed(k, e, texts)
    declare_fills(k, e)
    declare_turns(k, e)
    declare_blocks(k, e)
    with _outer(k, e):
        read_blocks(k, e)
        for stage in range(k.stages.count):
            _stage(k, e, stage, texts)
        flush_columns(k, e)
    finish_columns(k, e)
    for name in frees:
        e.line(f"free({name});")


def _declare_kept(k: Kernel, e: Emitter) -> list[str]:
    """Rows of scratch for kept values; gives the names to free."""
    frees = []
    for value in sorted(set(k.kept_places.values())):
        kind, count = x.array_type(k.body[value].dtype), k.kept_count(value)
        if isinstance(count, int) and count * k.body[value].dtype.bytes <= STACK_BYTES:
            e.line(f"alignas(64) {kind} k{value}[{max(count, 1)}];")
        else:
            e.line(
                f"{kind}* const k{value} = ({kind}*)malloc(sizeof({kind}) * {x.size_text(count)});"
            )
            frees.append(f"k{value}")
    return frees


@contextmanager
def _outer(k: Kernel, e: Emitter):
    """for each outer point of this thread, with the outer axes (or their blocks) bound."""
    counts = []
    for n, (axis, block) in enumerate(k.schedule.outer):
        extent = k.extent(axis)
        count = extent if block == 1 else f"({extent} + {block - 1}) / {block}"
        e.line(f"const int64_t m{n} = {count};")
        counts.append(f"m{n}")
    e.line(f"const int64_t points = {' * '.join(counts) or '1'};")
    if k.schedule.distribute in ("rows", "serial"):
        e.line("const int64_t first = points * tid / parts, last = points * (tid + 1) / parts;")
    elif k.schedule.distribute != "given":
        e.line("const int64_t first = 0, last = points;")
    _begin_counting(e, counts)
    with e.block("for (int64_t q = first; q < last; ++q)"):
        _bind_outer(k, e, counts)
        yield


def _begin_counting(e: Emitter, counts: list[str]) -> None:
    """Where the first point is along each outer axis. From point to point, the last axis is
    counted, and those before it where that is through: a quotient and a remainder for each axis
    and point took as long as a sum of 40 products."""
    if len(counts) < 2:
        return
    e.line(f"int64_t {', '.join(f'at{n} = 0' for n in range(len(counts)))}, rest = first;")
    with e.block("if (first < last)"):
        for n in reversed(range(1, len(counts))):
            e.line(f"at{n} = rest % {counts[n]}, rest /= {counts[n]};")
        e.line("at0 = rest;")


def _bind_outer(k: Kernel, e: Emitter, counts: list[str]) -> None:
    several = len(counts) > 1
    for n, (axis, block) in enumerate(k.schedule.outer):
        position = f"at{n}" if several else "q"
        if block == 1:
            e.line(f"const int64_t {k.names[axis]} = {position};")
        else:
            _bind_block(k, e, axis, block, position)
    if several:
        text = "++at0;"
        for n in range(1, len(counts)):
            text = f"if (++at{n} == {counts[n]}) {{ at{n} = 0; {text} }}"
        e.line(text)


def _bind_block(k: Kernel, e: Emitter, axis: str, block: int, position: str) -> None:
    """First and last + 1 of a block. A tile that would be cut short is a whole one that overlaps
    the one before: gcc then knows the length of its loops."""
    name, extent, high = k.names[axis], k.extent(axis), f"low_{k.names[axis]} + {block}"
    if k.has_whole_tiles(axis, block):
        last = f"{k.comp.extent(axis) - block}"
        start = f"({position}) * {block}"
        e.line(f"const int64_t low_{name} = {start} < {last} ? {start} : {last};")
        e.line(f"const int64_t high_{name} = {high};")
        return
    e.line(f"const int64_t low_{name} = ({position}) * {block};")
    e.line(f"const int64_t high_{name} = {high} < {extent} ? {high} : {extent};")


def _stage(k: Kernel, e: Emitter, stage: int, texts: Texts) -> None:
    _between(k, e, stage, texts)
    reductions = [v for v in k.row_reductions if k.stages.home[v] == stage]
    loop = k.stages.loops[stage]
    if not reductions and not loop and not _stores_in_loop(k, stage):
        return
    seen = {v for earlier in k.stages.loops[:stage] for v in earlier}
    scans = [v for v in loop if isinstance(k.body[v], Scan) and v not in seen]
    _declare_totals(k, e, reductions + scans)
    emit_nest(k, e, stage, reductions, texts)
    write_blocks(k, e, k.stores_of(stage))
    if k.shares_rows and reductions:
        _share(k, e, reductions)
    _bind_results(k, e, reductions, texts)


def _bind_results(k: Kernel, e: Emitter, values: list[Value], texts: Texts) -> None:
    for value in values:
        texts[value] = result(k, value)
        if k.row_lane not in k.stages.axes[value]:
            e.line(f"const {x.ctype(k.body[value].dtype)} v{value} = {texts[value]};")
            texts[value] = f"v{value}"
        elif _is_read_along_columns(k, value):
            _bind_lane(k, e, value, texts)


def _is_read_along_columns(k: Kernel, value: Value) -> bool:
    """Whether a loop over columns would make the result of its total for each of them."""
    kind = x.ctype(dtypes.compute(k.body[value].dtype))
    read = (u for v in k.stages.varying for u in operands(k.body[v]))
    return k.accumulator(value)[1] != kind and value in read


def _bind_lane(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    """L = the results of a row lane."""
    name, dtype = k.names[k.row_lane], k.body[value].dtype
    place = f"L{value}[{k.lane_position}]"
    e.line(f"alignas(64) {x.array_type(dtype)} L{value}[{k.lane_block}];")
    e.line("#pragma omp simd")
    header = f"for (int64_t {name} = low_{name}; {name} < high_{name}; ++{name})"
    e.line(f"{header} {place} = {texts[value]};")
    texts[value] = x.from_memory(place, dtype)


def _stores_in_loop(k: Kernel, stage: int) -> list[int]:
    return [s for s in k.stores_of(stage) if k.store_axes(s) & k.inner_axes]


def _between(k: Kernel, e: Emitter, stage: int, texts: Texts) -> None:
    """Values that do not vary along inner axes, and their stores."""
    level = [
        v
        for v, i in enumerate(k.body)
        if v not in k.stages.varying and not isinstance(i, Reduce) and k.stages.home[v] == stage
    ]
    stores = [s for s in k.stores_of(stage) if s not in _stores_in_loop(k, stage)]
    laned = [s for s in stores if k.row_lane in k.store_axes(s)]
    for value in level:
        if k.row_lane not in k.stages.axes[value]:
            define(k, e, value, texts)
    _in_lane(k, e, [v for v in level if k.row_lane in k.stages.axes[v]], laned, texts)
    _store_once(k, e, [s for s in stores if s not in laned], texts)
    for value in k.frame.column_reductions:
        if k.stages.home[value] == stage and k.body[value].args[0] not in k.stages.varying:
            accumulate_column(k, e, value, texts)


def _store_once(k: Kernel, e: Emitter, stores: list[int], texts: Texts) -> None:
    with ExitStack() as stack:
        if stores and k.split_axis:
            stack.enter_context(e.block("if (tid == 0)"))
        for position in stores:
            store(k, e, position, texts)


def _in_lane(k: Kernel, e: Emitter, values: list[Value], stores: list[int], texts: Texts) -> None:
    """One loop along a lane of rows; values that other loops need go to arrays."""
    if not values and not stores:
        return
    name, local, outside = k.names[k.row_lane], dict(texts), _used_outside(k, values, stores)
    for value in outside:
        dtype, place = k.body[value].dtype, f"L{value}[{k.lane_position}]"
        e.line(f"alignas(64) {x.array_type(dtype)} L{value}[{k.lane_block}];")
        texts[value] = x.from_memory(place, dtype)
    e.line("#pragma omp simd")
    with e.block(f"for (int64_t {name} = low_{name}; {name} < high_{name}; ++{name})"):
        for value in values:
            define(k, e, value, local)
            if value in outside:
                e.line(f"L{value}[{k.lane_position}] = v{value};")
        _store_once(k, e, stores, local)


def _used_outside(k: Kernel, values: list[Value], stores: list[int]) -> list[Value]:
    """The values that something outside this loop uses."""
    used = {u for v, i in enumerate(k.body) if v not in values for u in operands(i)}
    used |= {
        u for s, item in enumerate(k.comp.stores) if s not in stores for u in store_operands(item)
    }
    return [v for v in values if v in used]


def _declare_totals(k: Kernel, e: Emitter, values: list[Value]) -> None:
    for value in values:
        _declare_total(k, e, f"A{value}", k.accumulator(value)[1], k.identity(value))
        if k.body[value].monoid == "logaddexp":
            _declare_total(k, e, f"R{value}", "double", "0")


def _declare_total(k: Kernel, e: Emitter, name: str, kind: str, start: str) -> None:
    if k.row_lane:
        e.line(f"alignas(64) {kind} {name}[{k.lane_block}];")
        e.line(f"for (int64_t l = 0; l < {k.lane_block}; ++l) {name}[l] = {start};")
    else:
        e.line(f"{kind} {name} = {start};")


def _share(k: Kernel, e: Emitter, values: list[Value]) -> None:
    """A becomes the merge of every thread's A, in the order of threads."""
    for value in values:
        slot, at = _slot(k, value, "tid"), f"A{value}[l]" if k.row_lane else f"A{value}"
        e.line(f"for (int64_t l = 0; l < {k.lane_block}; ++l) {slot}[l] = {at};")
    e.line("#pragma omp barrier")
    for value in values:
        at = f"A{value}[l]" if k.row_lane else f"A{value}"
        with e.block(f"for (int64_t l = 0; l < {k.lane_block}; ++l)"):
            e.line(f"{at} = {k.identity(value)};")
            merged = k.merged(value, at, f"{_slot(k, value, 't')}[l]")
            e.line(f"for (int64_t t = 0; t < parts; ++t) {at} = {merged};")
    e.line("#pragma omp barrier")


def _slot(k: Kernel, value: Value, thread: str) -> str:
    offset = k.row_reductions.index(value) * k.slot_bytes
    address = f"shared + {x.size_text(k.shared_bytes)} * {thread} + {offset}"
    return f"(({k.accumulator(value)[1]}*)({address}))"

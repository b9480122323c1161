"""Blocks of short rows (tiles.py) as C++: arrays t of loads and o of stores, column by column;
bands of longer ones, arrays u of stores; and the tiles of loads that a transposed loop reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.ir.access import Access
from torchweld.ir.nodes import Value
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.tiles import BAND
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define_with_parts, element


def declare_blocks(k: Kernel, e: Emitter) -> None:
    if k.tiles is None:
        return
    found = [(f"t{v}", k.accesses.loads[v].buffer) for v in sorted(k.tiles.loads)]
    found += [(f"o{s}", k.comp.stores[s].buffer) for s in sorted(k.tiles.stores)]
    for name, buffer in found:
        kind = x.memory_type(k.kinds[buffer])
        e.line(f"alignas(64) {kind} {name}[{k.tiles.columns}][{k.lane_block}];")


def read_blocks(k: Kernel, e: Emitter) -> None:
    for value in sorted(k.tiles.loads if k.tiles else ()):
        there = f"{k.extent(k.row_lane)} - low_{k.names[k.row_lane]}"
        start = _start(k, k.accesses.loads[value])
        e.line(f"tw_turn_rows{_sizes(k)}({start}, t{value}[0], {_rows(k)}, {there});")


def write_blocks(k: Kernel, e: Emitter, stores: list[int]) -> None:
    for position in sorted(k.tiles.stores.intersection(stores) if k.tiles else ()):
        start = _start(k, k.accesses.stores[position])
        e.line(f"tw_turn_back{_sizes(k)}({start}, o{position}[0], {_rows(k)});")


def declare_bands(k: Kernel, e: Emitter, stores: frozenset[int]) -> dict[int, str]:
    """Where `stores` put the element of the current column and row, in a block of BAND columns."""
    column = k.names[k.frame.columns[-1]]
    for position in sorted(stores):
        kind = x.memory_type(k.kinds[k.comp.stores[position].buffer])
        e.line(f"alignas(64) {kind} u{position}[{BAND}][{k.lane_block}];")
    return {p: f"u{p}[{column} - b_{column}][{k.lane_position}]" for p in stores}


def write_bands(k: Kernel, e: Emitter, stores: frozenset[int]) -> None:
    """Turns them into their places, at the end of a block from b_NAME to e_NAME."""
    column = k.names[k.frame.columns[-1]]
    for position in sorted(stores):
        access = k.accesses.stores[position]
        to, step = _start(k, access, f"b_{column}"), access.offset.coefficient(k.row_lane)
        e.line(f"tw_turn_tile(&u{position}[0][0], {k.lane_block}, {to}, {x.size_text(step)}, "
               f"e_{column} - b_{column}, {_rows(k)});")  # fmt: skip


def _start(k: Kernel, access: Access, column: str = "0") -> str:
    """The first row's element of a `column` of the last of the columns."""
    lane = k.row_lane
    names = {**k.names, lane: f"low_{k.names[lane]}", k.frame.columns[-1]: column}
    return f"&{k.pointers[access.buffer]}[{x.affine_text(access.offset, names)}]"


def _sizes(k: Kernel) -> str:
    return f"<{k.tiles.columns}, {k.lane_block}>"


def _rows(k: Kernel) -> str:
    name = k.names[k.row_lane]
    return f"high_{name} - low_{name}"


def stage_tile(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    """t[across][lane] = the tile of a load, turned in registers; lines that a guard leaves out are
    not read."""
    across, lane = k.schedule.nest
    side, kind = dict(k.schedule.outer)[lane], x.memory_type(k.body[value].dtype)
    access, names = k.accesses.loads[value], [k.names[lane], k.names[across]]
    e.line(f"alignas(64) {kind} t{value}[{side}][{side}];")
    sizes = ", ".join(f"high_{name} - low_{name}" for name in names)
    with e.block():
        guard = k.body[value].guard
        if access.offset.coefficient(lane) == 1:
            return _copy_parts(k, e, value, texts)
        if guard is not None and across in k.stages.axes[guard]:
            return _turn_columns(k, e, value, texts)
        if guard is None:
            e.line("".join(f"const int64_t {name} = low_{name}; " for name in names))
            step = x.size_text(access.offset.coefficient(lane))
            from_text = f"&{element(k, access, {})}, {step}"
        else:
            e.line(f"alignas(64) {kind} lines[{side}][{side}];")
            _copy_lines(k, e, value, texts)
            from_text = f"&lines[0][0], {side}"
        e.line(f"tw_turn_tile({from_text}, &t{value}[0][0], {side}, {sizes});")


def _copy_parts(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    """t[across][lane] of neighbours along the lane, as they lie: what the guard lets through."""
    across, lane = (k.names[a] for a in k.schedule.nest)
    load, to = k.body[value], f"t{value}[{across} - low_{across}]"
    with _runs(k, e, value, texts, lane):
        of_run, fill = f"for (int64_t i = {lane}; i < to; ++i)", x.literal(load.fill, load.dtype)
        e.line(f"if (!is_there) {_loop(across)} {of_run} {to}[i - low_{lane}] = {fill};")
        with e.block(f"else {_loop(across)}"):
            first = element(k, k.accesses.loads[value], {})
            e.line(f"const {x.memory_type(load.dtype)}* from = &{first};")
            e.line(f"{of_run} {to}[i - low_{lane}] = from[i - {lane}];")


def _turn_columns(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    """t[across][lane] of a load whose guard asks about columns: what it lets through, turned."""
    load, access = k.body[value], k.accesses.loads[value]
    across, lane = (k.names[a] for a in k.schedule.nest)
    side = dict(k.schedule.outer)[k.schedule.nest[-1]]
    to = f"t{value}[{across} - low_{across}]"
    with _runs(k, e, value, texts, across):
        with e.block("if (!is_there)"):
            fill = x.literal(load.fill, load.dtype)
            e.line(f"for (int64_t i = {across}; i < to; ++i) {_loop(lane)} "
                   f"t{value}[i - low_{across}][{lane} - low_{lane}] = {fill};")  # fmt: skip
            e.line("continue;")
        e.line(f"const int64_t {lane} = low_{lane};")
        step = x.size_text(access.offset.coefficient(k.schedule.nest[-1]))
        start = f"&{element(k, access, {})}, {step}, {to}"
        e.line(f"tw_turn_tile({start}, {side}, high_{lane} - low_{lane}, to - {across});")


@contextmanager
def _runs(k: Kernel, e: Emitter, value: Value, texts: Texts, name: str) -> Iterator[None]:
    """A loop over runs of a tile's points along the axis `name`, from `name` to `to`: `is_there`,
    whether the guard of a load, which asks about nothing else, lets them through."""
    guard, local = k.body[value].guard, dict(texts)
    e.line(f"bool asked[{max(b for _, b in k.schedule.outer)}];")
    with e.block(_loop(name)):
        define_with_parts(k, e, guard, local)
        e.line(f"asked[{name} - low_{name}] = {local[guard]};")
    with e.block(f"for (int64_t {name} = low_{name}, to; {name} < high_{name}; {name} = to)"):
        e.line(f"const bool is_there = asked[{name} - low_{name}];")
        same = f"to < high_{name} && asked[to - low_{name}] == is_there"
        e.line(f"for (to = {name} + 1; {same};) ++to;")
        yield


def _copy_lines(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    """lines[lane][across] = the tile of a guarded load."""
    load, (across, lane) = k.body[value], (k.names[a] for a in k.schedule.nest)
    local = dict(texts)
    with e.block(_loop(lane)):
        define_with_parts(k, e, load.guard, local)
        to = f"lines[{lane} - low_{lane}][{across} - low_{across}]"
        header = _loop(across)
        element_text = element(k, k.accesses.loads[value], local)
        e.line(f"if ({local[load.guard]}) {header} {to} = {element_text};")
        e.line(f"else {header} {to} = {x.literal(load.fill, load.dtype)};")


def _loop(name: str) -> str:
    return f"for (int64_t {name} = low_{name}; {name} < high_{name}; ++{name})"

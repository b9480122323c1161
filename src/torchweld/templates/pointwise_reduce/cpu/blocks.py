"""Blocks of short rows (tiles.py) as C++: arrays t of loads and o of stores, column by column; and
the tiles of loads that a transposed loop reads."""

from __future__ import annotations

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.ir.access import Access
from torchweld.ir.nodes import Value, needed
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define, element


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


def _start(k: Kernel, access: Access) -> str:
    """The first column of the first row."""
    lane = k.row_lane
    names = {**k.names, lane: f"low_{k.names[lane]}", k.tiles.column: "0"}
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


def _turn_columns(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    """t[across][lane] of a load whose guard asks about columns: runs of those that it lets through
    are turned, the others are not read."""
    load, access, local = k.body[value], k.accesses.loads[value], dict(texts)
    across, lane = (k.names[a] for a in k.schedule.nest)
    side = dict(k.schedule.outer)[k.schedule.nest[-1]]
    to = f"t{value}[{across} - low_{across}]"
    e.line(f"bool asked[{side} + 1];")
    with e.block(_loop(across)):
        for needed_value in sorted(needed(k.body, (load.guard,), stop=texts) - texts.keys()):
            define(k, e, needed_value, local)
        e.line(f"asked[{across} - low_{across}] = {local[load.guard]};")
    e.line(f"asked[high_{across} - low_{across}] = false;")
    header = f"int64_t {across} = low_{across}, to; {across} < high_{across}; {across} = to"
    with e.block(f"for ({header})"):
        e.line(f"to = {across} + 1;")
        with e.block(f"if (!asked[{across} - low_{across}])"):
            fill = x.literal(load.fill, load.dtype)
            e.line(f"{_loop(lane)} {to}[{lane} - low_{lane}] = {fill};")
            e.line("continue;")
        e.line(f"while (asked[to - low_{across}]) ++to;")
        e.line(f"const int64_t {lane} = low_{lane};")
        step = x.size_text(access.offset.coefficient(k.schedule.nest[-1]))
        start = f"&{element(k, access, {})}, {step}, {to}"
        e.line(f"tw_turn_tile({start}, {side}, high_{lane} - low_{lane}, to - {across});")


def _copy_lines(k: Kernel, e: Emitter, value: Value, texts: Texts) -> None:
    """lines[lane][across] = the tile of a guarded load."""
    load, (across, lane) = k.body[value], (k.names[a] for a in k.schedule.nest)
    local = dict(texts)
    with e.block(_loop(lane)):
        for needed_value in sorted(needed(k.body, (load.guard,), stop=texts) - texts.keys()):
            define(k, e, needed_value, local)
        to = f"lines[{lane} - low_{lane}][{across} - low_{across}]"
        header = _loop(across)
        element_text = element(k, k.accesses.loads[value], local)
        e.line(f"if ({local[load.guard]}) {header} {to} = {element_text};")
        e.line(f"else {header} {to} = {x.literal(load.fill, load.dtype)};")


def _loop(name: str) -> str:
    return f"for (int64_t {name} = low_{name}; {name} < high_{name}; ++{name})"

"""Blocks of short rows (tiles.py) as C++: arrays t of loads and o of stores, column by column."""

from __future__ import annotations

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.ir.access import Access
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel


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

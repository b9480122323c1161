"""Where each buffer of a graph lives during a call, and when it is needed.

input     given by the caller              output  a new tensor, handed to the caller
constant  the same tensor in every call    extern  allocated by the library call that makes it
arena     a range of the device's arena
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torchweld.codegen.source import KernelBundle
from torchweld.ir.nodes import Arg, Buffer, Comp, Extern, Graph, views
from torchweld.ir.size import Size, evaluate
from torchweld.runtime.externs import out_form

Kind = Literal["input", "constant", "output", "extern", "arena"]


@dataclass(frozen=True)
class Placement:
    """`devices`: those that have an arena; arena d is slot d. `slots`: the position of every other
    buffer among a call's tensors and addresses. `uses`: (first node that writes, last node that
    touches), inputs and constants from -1, outputs to the end. `scratch`: the memory that kernels
    need for themselves, by scoped name, with the node that it belongs to."""

    kinds: Mapping[str, Kind]
    devices: tuple[str, ...]
    slots: Mapping[str, int]
    uses: Mapping[str, tuple[int, int]]
    scratch: Mapping[str, tuple[Buffer, int]]


def place(graph: Graph, bundles: Mapping[str, KernelBundle], constants: Iterable[str]) -> Placement:
    kinds = _kinds(graph, frozenset(constants))
    scratch = {
        scratch_name(node.name, b.name): (b, position)
        for position, node in enumerate(graph.nodes)
        if isinstance(node, Comp) and node.name in bundles
        for b in bundles[node.name].scratch
    }
    in_arena = [graph.buffers[n] for n, k in kinds.items() if k == "arena"] + [
        b for b, _ in scratch.values()
    ]
    devices = tuple(sorted({b.device for b in in_arena}))
    rest = [n for n, k in kinds.items() if k != "arena"]
    slots = {n: len(devices) + i for i, n in enumerate(rest)}
    return Placement(kinds, devices, slots, _uses(graph), scratch)


def scratch_name(comp: str, buffer: str) -> str:
    """Scratch buffers are named within their kernel; no buffer of a graph has a slash in its
    name."""
    return f"{comp}/{buffer}"


def span(shape: Iterable[Size], strides: Iterable[Size], sizes: Mapping[str, int]) -> int:
    """Elements from the first to the last, both included."""
    extents = [evaluate(s, sizes) for s in shape]
    if 0 in extents:
        return 0
    return 1 + sum((n - 1) * evaluate(s, sizes) for n, s in zip(extents, strides))


def buffer_bytes(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    return span(buffer.shape, buffer.strides, sizes) * buffer.dtype.bytes


def returned_buffers(outputs: tuple[Arg, ...]) -> frozenset[str]:
    return frozenset(v.buffer for v in views(outputs))


def _kinds(graph: Graph, constants: frozenset[str]) -> dict[str, Kind]:
    kinds: dict[str, Kind] = dict.fromkeys(constants & graph.buffers.keys(), "constant")
    for name in graph.inputs:
        if name is not None:
            kinds.setdefault(name, "input")
    returned = returned_buffers(graph.outputs)
    for node in graph.nodes:
        for name in node.writes:
            kinds.setdefault(name, _kind_written(node, name, returned))
    return kinds


def _kind_written(node: Comp | Extern, name: str, returned: frozenset[str]) -> Kind:
    if isinstance(node, Comp):
        return "output" if name in returned else "arena"
    writes_in_place = out_form(node.target) is not None and name not in returned
    return "arena" if writes_in_place else "extern"


def _uses(graph: Graph) -> dict[str, tuple[int, int]]:
    first = dict.fromkeys((n for n in graph.inputs if n is not None), -1)
    last: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        for name in node.writes:
            first.setdefault(name, position)
        last.update(dict.fromkeys(node.reads + node.writes, position))
    last.update(dict.fromkeys(returned_buffers(graph.outputs), len(graph.nodes)))
    return {name: (first.get(name, -1), end) for name, end in last.items()}

"""Where each buffer of a graph lives during a call, and when it is needed.

input     given by the caller              output  a new tensor, handed to the caller
constant  the same tensor in every call    extern  allocated by the library call that makes it
arena     a range of the device's arena    own     a temporary that is a tensor of its own
flag      a byte of the host's memory, that kernels of a GPU set (`index_flags.py`)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from torchweld.codegen.source import KernelBundle
from torchweld.ir.index_check import sticky_flags
from torchweld.ir.nodes import Arg, Buffer, Comp, Extern, Graph, views
from torchweld.ir.size import Size, evaluate, product
from torchweld.runtime.budget import fullest, own_tensors
from torchweld.runtime.externs import out_form
from torchweld.runtime.memory import Lifetime

Kind = Literal["input", "constant", "output", "extern", "arena", "own", "flag"]

LARGE_OUTPUT_BYTES = 1 << 20
_TAIL_NODES = 3


@dataclass(frozen=True)
class Placement:
    """`devices`: those that have an arena; arena d is slot d. `slots`: the position of every other
    buffer among a call's tensors and addresses. `uses`: (first node that writes, last node that
    touches), inputs and constants from -1, outputs to the end. `scratch`: the memory that kernels
    need for themselves, by scoped name, with the first and the last node that it is for.
    `counters`: of the scratch that kernels of a GPU find zero and leave zero, the region that they
    share, by scoped name."""

    kinds: Mapping[str, Kind]
    devices: tuple[str, ...]
    slots: Mapping[str, int]
    uses: Mapping[str, tuple[int, int]]
    scratch: Mapping[str, tuple[Buffer, int, int]]
    counters: Mapping[str, str]


def place(
    graph: Graph,
    bundles: Mapping[str, KernelBundle],
    constants: Iterable[str],
    workspaces: Mapping[str, int] = MappingProxyType({}),
    frees_inputs: bool = False,
    keeps_temporaries: bool = False,
) -> Placement:
    """`workspaces`: the bytes that calls need for themselves, by node name. `frees_inputs`: the
    caller gives its inputs away (a backward's saved activations), so that they need no memory after
    their last use. `keeps_temporaries`: what comes before the tail is to be a CUDA graph, which has
    its temporaries for good, whatever the tail needs."""
    kinds, uses = _kinds(graph, frozenset(constants)), _uses(graph)
    scratch = {
        scratch_name(node.name, b.name): (b, position, position)
        for position, node in enumerate(graph.nodes)
        if isinstance(node, Comp) and node.name in bundles
        for b in bundles[node.name].scratch
    }
    counters = _counters(graph, bundles, scratch)
    regions = _regions(counters, scratch, len(graph.nodes) - 1)
    scratch = {n: entry for n, entry in scratch.items() if n not in counters} | regions
    end = tail_start(graph, graph.hints) if keeps_temporaries else len(graph.nodes)
    for device in {b.device for b in graph.buffers.values()}:
        own = _own(graph, kinds, uses, scratch, device, workspaces, frees_inputs, end)
        kinds.update(dict.fromkeys(own, "own"))
    in_arena = [graph.buffers[n] for n, k in kinds.items() if k == "arena"] + [
        b for b, *_ in scratch.values()
    ]
    devices = tuple(sorted({b.device for b in in_arena}))
    rest = [n for n, k in kinds.items() if k != "arena"]
    slots = {n: len(devices) + i for i, n in enumerate(rest)}
    return Placement(kinds, devices, slots, uses, scratch, counters)


def _counters(graph: Graph, bundles: Mapping[str, KernelBundle], scratch) -> dict[str, str]:
    """The region of each zeroed scratch buffer of a GPU's kernels: one for each device."""
    names = (
        scratch_name(node.name, zeroed)
        for node in graph.nodes
        if isinstance(node, Comp) and node.name in bundles
        if bundles[node.name].sources[0].language != "cpp"
        for zeroed in bundles[node.name].zeroed
    )
    return {name: f"/zero on {scratch[name][0].device}" for name in names}


def _regions(counters: Mapping[str, str], scratch, end: int) -> dict[str, tuple[Buffer, int, int]]:
    """Memory for the largest buffer of each region, for all of a call: one kernel runs at a
    time."""
    lengths: dict[str, int] = {}
    for name, region in counters.items():
        lengths[region] = max(lengths.get(region, 0), product(scratch[name][0].shape))
    like = {region: scratch[name][0] for name, region in counters.items()}
    return {
        region: (replace(like[region], name=region, shape=(n,), strides=(1,)), 0, end)
        for region, n in lengths.items()
    }


def peak_bytes(
    graph: Graph, constants: Iterable[str], workspaces: Mapping[str, int], frees_inputs: bool
) -> int:
    """What a call needs at its fullest moment, at the sizes seen at capture, if each tensor is
    freed after its last use. `workspaces`: what calls need for themselves, by node name."""
    kinds, uses = _kinds(graph, frozenset(constants)), _uses(graph)
    wanted = frozenset(("arena", *_elsewhere(frees_inputs)))
    names = [n for n, k in kinds.items() if k in wanted and n in uses]
    lives = [Lifetime(n, buffer_bytes(graph.buffers[n], graph.hints), *uses[n]) for n in names]
    return fullest(lives + _workspace_lifetimes(graph, workspaces))


def _workspace_lifetimes(graph: Graph, workspaces: Mapping[str, int]) -> list[Lifetime]:
    needs = [(n.name, workspaces.get(n.name, 0), at) for at, n in enumerate(graph.nodes)]
    return [Lifetime(name, size, at, at) for name, size, at in needs if size]


def _elsewhere(frees_inputs: bool) -> tuple[Kind, ...]:
    """The kinds of memory beside the arena that come and go during a call."""
    return ("output", "extern", "input") if frees_inputs else ("output", "extern")


def lifetimes(
    buffers: Mapping[str, Buffer], kinds, uses, device: str, wanted: Iterable[Kind], sizes
) -> list[Lifetime]:
    """Of the buffers of the `wanted` kinds on one device."""
    names = [n for n, k in kinds.items() if k in wanted and buffers[n].device == device]
    return [Lifetime(n, buffer_bytes(buffers[n], sizes), *uses[n]) for n in names if n in uses]


def scratch_lifetimes(scratch, device: str, sizes: Mapping[str, int]) -> list[Lifetime]:
    here = [(n, *entry) for n, entry in scratch.items() if entry[0].device == device]
    return [Lifetime(n, buffer_bytes(b, sizes), first, last) for n, b, first, last in here]


def _own(
    graph: Graph, kinds, uses, scratch, device: str, workspaces, frees_inputs: bool, end: int
) -> frozenset[str]:
    """The temporaries that leave the arena, at the sizes seen at capture. What begins at node `end`
    or later does not count."""
    temporaries, others = (
        lifetimes(graph.buffers, kinds, uses, device, wanted, graph.hints)
        for wanted in (("arena",), _elsewhere(frees_inputs))
    )
    others = [v for v in others + _workspace_lifetimes(graph, workspaces) if v.first < end]
    return own_tensors(temporaries, scratch_lifetimes(scratch, device, graph.hints), others)


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


def tail_start(graph: Graph, sizes: Mapping[str, int]) -> int:
    """The first of the last few nodes that make all large outputs; the number of nodes if others
    make some, or there are none. What is before a tail is copied for the caller before the tail
    runs: there is none that writes again what is returned."""
    returned, count = returned_buffers(graph.outputs), len(graph.nodes)
    large = {n for n in returned if buffer_bytes(graph.buffers[n], sizes) >= LARGE_OUTPUT_BYTES}
    makers = [p for p, node in enumerate(graph.nodes) if large.intersection(node.writes)]
    start = min(makers, default=count)
    before, tail = ({n for node in nodes for n in node.writes}
                    for nodes in (graph.nodes[:start], graph.nodes[start:]))  # fmt: skip
    written_again = not returned.isdisjoint(before & tail)
    return count if written_again or count - start > _TAIL_NODES else start


def returned_buffers(outputs: tuple[Arg, ...]) -> frozenset[str]:
    return frozenset(v.buffer for v in views(outputs))


def _kinds(graph: Graph, constants: frozenset[str]) -> dict[str, Kind]:
    kinds: dict[str, Kind] = dict.fromkeys(constants & graph.buffers.keys(), "constant")
    kinds.update(dict.fromkeys(sticky_flags(graph), "flag"))
    for name in graph.inputs:
        if name is not None:
            kinds.setdefault(name, "input")
    returned = returned_buffers(graph.outputs)
    for node in graph.nodes:
        for name in node.writes:
            kinds.setdefault(name, _kind_written(node, name, returned))
    return kinds


def _kind_written(node: Comp | Extern, name: str, returned: frozenset[str]) -> Kind:
    if isinstance(node, Extern) and out_form(node.target) is None:
        return "extern"
    return "output" if name in returned else "arena"


def _uses(graph: Graph) -> dict[str, tuple[int, int]]:
    first = dict.fromkeys((n for n in graph.inputs if n is not None), -1)
    last: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        for name in node.writes:
            first.setdefault(name, position)
        last.update(dict.fromkeys(node.reads + node.writes, position))
    last.update(dict.fromkeys(returned_buffers(graph.outputs), len(graph.nodes)))
    return {name: (first.get(name, -1), end) for name, end in last.items()}

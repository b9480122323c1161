"""The order of a graph's nodes that needs least memory.

Of the nodes that are ready, the one that adds least goes next: the product for a weight's gradient
frees its operands before the next large gradient is made. The order is kept only if its fullest
moment is lower than that of the order given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from torchweld.ir.nodes import Extern, Graph, Node, views
from torchweld.runtime.externs import is_random

_GAIN = 0.01  # of the peak; for less, the order stays


def by_memory(
    graph: Graph, sizes: Mapping[str, int], frees_inputs: bool, peak_of: Callable[[Graph], int]
) -> Graph:
    """`graph` with its nodes reordered. `sizes`: bytes of each buffer. `frees_inputs`: inputs need
    no memory after their last use. `peak_of(graph)`: bytes at the fullest moment."""
    kept = {v.buffer for v in views(graph.outputs)}
    if not frees_inputs:
        kept.update(n for n in graph.inputs if n)
    candidate = replace(graph, nodes=_greedy(graph.nodes, sizes, kept))
    return candidate if peak_of(candidate) < (1 - _GAIN) * peak_of(graph) else graph


def _greedy(nodes: tuple[Node, ...], sizes: Mapping[str, int], kept: set[str]) -> tuple[Node, ...]:
    waits_for, followers = _dependencies(nodes)
    uses = Counter(b for n in nodes for b in _touched(n))
    made: set[str] = set()

    def added(position: int) -> int:
        node = nodes[position]
        new = sum(sizes[b] for b in set(node.writes) - made)
        freed = sum(sizes[b] for b in _touched(node) if uses[b] == 1 and b not in kept)
        return new - freed

    ready = [p for p in range(len(nodes)) if not waits_for[p]]
    order = []
    while ready:
        best = min(ready, key=lambda p: (added(p), p))
        ready.remove(best)
        order.append(nodes[best])
        made.update(nodes[best].writes)
        uses.subtract(_touched(nodes[best]))
        for follower in followers[best]:
            waits_for[follower] -= 1
            if not waits_for[follower]:
                ready.append(follower)
    return tuple(order)


def _touched(node: Node) -> frozenset[str]:
    return frozenset(node.reads + node.writes)


def _has_effect(node: Node) -> bool:
    return isinstance(node, Extern) and (not node.writes or is_random(node.target))


def _dependencies(nodes: tuple[Node, ...]) -> tuple[list[int], list[list[int]]]:
    """For each node, how many others it must wait for, and who waits for it: reads after writes,
    writes after reads and after writes, and calls with effects outside the graph in their order."""
    earlier: list[set[int]] = [set() for _ in nodes]
    written: dict[str, int] = {}
    read: dict[str, list[int]] = {}
    last_effect: int | None = None
    for position, node in enumerate(nodes):
        if _has_effect(node):
            earlier[position].update(() if last_effect is None else (last_effect,))
            last_effect = position
        for buffer in _touched(node) & written.keys():
            earlier[position].add(written[buffer])
        for buffer in node.writes:
            earlier[position].update(read.pop(buffer, ()))
            written[buffer] = position
        for buffer in node.reads:
            read.setdefault(buffer, []).append(position)
        earlier[position].discard(position)
    followers: list[list[int]] = [[] for _ in nodes]
    for position, others in enumerate(earlier):
        for other in others:
            followers[other].append(position)
    return [len(e) for e in earlier], followers

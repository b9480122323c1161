"""The order of a graph's nodes that needs least memory.

Of the nodes that are ready, the one that adds least goes next: the product for a weight's gradient
frees its operands before the next large gradient is made. The order is kept only if its fullest
moment is lower than that of the order given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import heappop, heappush

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
    touched = [_touched(n) for n in nodes]
    added, order = _Added(nodes, touched, sizes, kept), []
    for position in range(len(nodes)):
        if not waits_for[position]:
            added.ready(position)
    while (best := added.take_least()) is not None:
        order.append(nodes[best])
        for follower in followers[best]:
            waits_for[follower] -= 1
            if not waits_for[follower]:
                added.ready(follower)
    return tuple(order)


class _Added:
    """Bytes that each ready node would add, less those that it would free: worked out anew only
    where a buffer of the node was made, or has no other user left."""

    def __init__(self, nodes, touched: list[frozenset[str]], sizes, kept: set[str]) -> None:
        self._nodes, self._touched, self._sizes, self._kept = nodes, touched, sizes, kept
        self._left: dict[str, set[int]] = {}  # users of a buffer that did not run
        for position, buffers in enumerate(touched):
            for buffer in buffers:
                self._left.setdefault(buffer, set()).add(position)
        self._made: set[str] = set()
        self._known: dict[int, int] = {}  # of ready nodes
        self._heap: list[tuple[int, int]] = []

    def ready(self, position: int) -> None:
        """Puts the node, or its new figure, among those that can go next."""
        found = self._bytes(position)
        if self._known.get(position) != found:
            self._known[position] = found
            heappush(self._heap, (found, position))

    def take_least(self) -> int | None:
        """The node that adds least, the first of several; it runs now."""
        while self._heap:
            found, position = heappop(self._heap)
            if self._known.get(position) == found:
                del self._known[position]
                self._ran(position)
                return position
        return None

    def _ran(self, position: int) -> None:
        written = self._nodes[position].writes
        self._made.update(written)
        for buffer in self._touched[position]:
            left = self._left[buffer]
            left.discard(position)
            if len(left) == 1 or buffer in written:
                for other in left & self._known.keys():
                    self.ready(other)

    def _bytes(self, position: int) -> int:
        new = sum(self._sizes[b] for b in set(self._nodes[position].writes) - self._made)
        alone = (b for b in self._touched[position] if len(self._left[b]) == 1)
        return new - sum(self._sizes[b] for b in alone if b not in self._kept)


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

"""Who must run before whom: the order of a graph's nodes while the planner merges them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from torchweld.ir.nodes import Graph, Node, views

NodeId = int


class Flow:
    """Nodes by number, their dependencies (data, and the order of writes in place), and one valid
    order."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: dict[NodeId, Node] = dict(enumerate(graph.nodes))
        self.before: dict[NodeId, set[NodeId]] = {n: set() for n in self.nodes}
        self.after: dict[NodeId, set[NodeId]] = {n: set() for n in self.nodes}
        self.writers: dict[str, dict[NodeId, None]] = defaultdict(dict)  # sets, in order
        self.readers: dict[str, dict[NodeId, None]] = defaultdict(dict)
        self.needed = {v.buffer for v in views(graph.outputs)}
        self.inputs = {name for name in graph.inputs if name}
        self._order: list[NodeId | None] = list(self.nodes)
        self._place = {n: n for n in self.nodes}
        self._next = len(self.nodes)
        for number, node in self.nodes.items():
            self._add_dependencies(number, node)

    def order(self) -> list[NodeId]:
        return [n for n in self._order if n is not None]

    def is_mutated(self, buffer: str) -> bool:
        """Whether `buffer` changes after it was first written, or was given by the caller and is
        written."""
        writers = self.writers.get(buffer, ())
        return len(writers) > 1 or (buffer in self.inputs and bool(writers))

    def changes_between(self, buffer: str, first: NodeId, second: NodeId) -> bool:
        """Whether what `first` reads there is no longer there when `second` runs."""
        writers = self.writers.get(buffer, ())
        low, high = self._place[first], self._place[second]
        return any(low <= self._place[w] < high for w in writers)

    def is_needed_after(self, buffer: str, *but: NodeId) -> bool:
        """Whether anyone other than the nodes `but` wants `buffer`, the caller included."""
        if buffer in self.needed or buffer in self.inputs:
            return True
        return any(r not in but for r in self.readers.get(buffer, ()))

    def detour(self, first: NodeId, second: NodeId) -> NodeId | None:
        """A node on a path from `first` to `second` that passes through others; None if there is
        none."""
        start, end = self._place[first], self._place[second]
        if not any(start < self._place[n] for n in self.before[second] if n != first):
            return None
        if not any(self._place[n] < end for n in self.after[first]):
            return None
        between = self._reachable(first, second)
        return next((n for n in self.before[second] if n in between), None)

    def is_before(self, a: NodeId, b: NodeId) -> bool:
        """Whether `b` must wait for `a`."""
        return a in self.before[b] or self.detour(a, b) is not None

    def place(self, number: NodeId) -> int:
        """In the order."""
        return self._place[number]

    def comes_first(self, a: NodeId, b: NodeId) -> bool:
        return self._place[a] < self._place[b]

    def distance(self, a: NodeId, b: NodeId) -> int:
        return abs(self._place[a] - self._place[b])

    def near(self, number: NodeId, reach: int) -> list[NodeId]:
        """The nodes at most `reach` places away, in order, itself included."""
        place = self._place[number]
        window = self._order[max(0, place - reach) : place + reach + 1]
        return [n for n in window if n is not None]

    def replace(self, number: NodeId, node: Node) -> NodeId:
        """`node` in the place of `number`, under a new number. It reads what it reads; it writes no
        less than before."""
        new = self._take_place(self._place[number], node)
        self._inherit(new, number)
        self._forget(number)
        self._read_anew(new)
        return new

    def merge(self, first: NodeId, second: NodeId, node: Node) -> NodeId:
        """`node` in the place of both; there is no detour between them, and `first` comes first."""
        later = self._reachable(first, second)
        low, high = self._place[first], self._place[second]
        window = [n for n in self._order[low : high + 1] if n not in (None, first, second)]
        earlier = [n for n in window if n not in later]
        new = self._take_place(low, node)
        self._inherit(new, first)
        self._inherit(new, second)
        self._forget(first)
        self._forget(second)
        ordered = [*earlier, new, *(n for n in window if n in later)]
        self._arrange(low, high, ordered)
        self._read_anew(new)
        return new

    def split(self, number: NodeId, first: Node, rest: Node) -> NodeId:
        """`first`, then `rest`, in the place of `number`; the number of `first`. Together they read
        and write what it did; `rest` may read what `first` writes."""
        place = self._place[number]
        self._order.insert(place + 1, None)
        self._place = {n: p + (p > place) for n, p in self._place.items()}
        parts = self._take_place(place, first), self._take_place(place + 1, rest)
        for new in parts:
            self._inherit(new, number)
        self._forget(number)
        for new in parts:
            self._read_anew(new)
        return parts[0]

    def remove(self, number: NodeId) -> None:
        """A node whose results nobody needs any more."""
        self._order[self._place[number]] = None
        self._forget(number)

    def _add_dependencies(self, number: NodeId, node: Node) -> None:
        for buffer in node.reads:
            self._depend(number, self.writers[buffer])
            self.readers[buffer][number] = None
        for buffer in node.writes:
            self._depend(number, self.writers[buffer])
            self._depend(number, (r for r in self.readers[buffer] if r != number))
            self.writers[buffer][number] = None

    def _depend(self, later: NodeId, earlier: Iterable[NodeId]) -> None:
        for number in earlier:
            self.before[later].add(number)
            self.after[number].add(later)

    def _reachable(self, first: NodeId, second: NodeId) -> set[NodeId]:
        """What must come after `first`, up to the place of `second`, without it."""
        limit, found, todo = self._place[second], set(), [first]
        while todo:
            for n in self.after[todo.pop()]:
                if n not in found and self._place[n] < limit:
                    found.add(n)
                    todo.append(n)
        return found

    def _take_place(self, place: int, node: Node) -> NodeId:
        new = self._next
        self._next += 1
        self.nodes[new] = node
        self.before[new], self.after[new] = set(), set()
        self._order[place] = new
        self._place[new] = place
        for buffer in node.writes:
            self.writers[buffer][new] = None
        return new

    def _inherit(self, new: NodeId, old: NodeId) -> None:
        self._depend(new, (n for n in self.before[old] if n != new))
        for n in self.after[old]:
            if n != new:
                self.before[n].add(new)
                self.after[new].add(n)

    def _forget(self, number: NodeId) -> None:
        node = self.nodes.pop(number)
        for n in self.before.pop(number):
            self.after[n].discard(number)
        for n in self.after.pop(number):
            self.before[n].discard(number)
        for table, buffers in ((self.writers, node.writes), (self.readers, node.reads)):
            for buffer in buffers:
                table[buffer].pop(number, None)
        del self._place[number]

    def _read_anew(self, number: NodeId) -> None:
        node = self.nodes[number]
        for buffer in node.reads:
            for writer in self.writers[buffer]:
                if self.comes_first(writer, number):
                    self._depend(number, (writer,))
                elif writer != number:
                    self._depend(writer, (number,))
            self.readers[buffer][number] = None

    def _arrange(self, low: int, high: int, ordered: list[NodeId]) -> None:
        for place in range(low, high + 1):
            k = place - low
            self._order[place] = ordered[k] if k < len(ordered) else None
            if k < len(ordered):
                self._place[ordered[k]] = place

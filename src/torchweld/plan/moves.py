"""The moves of the search: found around a node, priced, done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from torchweld.ir.nodes import Comp, Reduce, Scan
from torchweld.plan.evaluate import Evaluator
from torchweld.plan.flow import Flow, NodeId
from torchweld.plan.guess import guessed_seconds, is_long
from torchweld.plan.legality import order_refusal, repeat_refusal
from torchweld.plan.refusals import Reason, Refusal
from torchweld.templates.pointwise_reduce.price import Cost, bytes_of

_MOST_SIBLINGS, _FARTHEST_SIBLING = 6, 64
_MOST_CONSUMERS = 64  # of a producer that is dissolved into all of them
# Nodes over which lifetimes may grow without asking what it costs. What is computed again keeps its
# inputs in memory, often through a library call.
_NEAR = {"fuse": 16, "repeat": 3, "dissolve": 3}
_SHORT = 1.5  # launches: a kernel that takes less gains from company
_SLACK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Move:
    """fuse: `first` and the one node of `others` become a kernel. repeat: `first` is computed again
    inside that node. dissolve: `first` is computed inside each of `others` and goes. `guessed`: it
    was found, and not tried yet."""

    kind: Literal["fuse", "repeat", "dissolve"]
    first: NodeId
    others: tuple[NodeId, ...]
    saved_s: float = 0.0
    guessed: bool = False


class Mover:
    """Finds, prices and does moves on one flow. `members` names the operations that each node is
    made of. `times`: the buffers of a layer that stands for several, and for how many."""

    def __init__(
        self, flow: Flow, prices: Evaluator, times: Mapping[str, int] | None = None
    ) -> None:
        self.flow, self.prices, self.times = flow, prices, times or {}
        self.members = {n: (node.name,) for n, node in flow.nodes.items()}
        self.alone = {node.name: node for node in flow.nodes.values()}
        self._tickets = count()
        self._known: dict[tuple, Cost | Refusal] = {}  # (first, other, kept buffers)

    def ticket(self) -> int:
        return next(self._tickets)

    def moves_into(self, number: NodeId) -> Iterator[Move]:
        """Priced moves in which `number` is the later node, or goes."""
        if not isinstance(self.flow.nodes[number], Comp):
            return
        for producer in self._producers(number):
            yield from self._priced_pair(producer, number)
        yield from self._dissolved(number)

    def number_moves(self, number: NodeId) -> Iterator[Move]:
        """The priced move that computes a single number (a step's count, a rate) wherever it is
        needed, if `number` computes one from others."""
        node = self.flow.nodes[number]
        if is_pointwise(node) and not node.axes:
            yield from self._dissolved(number, fewest=1)

    def numbers_around(self, number: NodeId) -> Iterator[Move]:
        """Those moves of `number`, and of what it reads."""
        for near in (number, *self._producers(number)):
            yield from self.number_moves(near)

    def sibling_moves(self, number: NodeId) -> Iterator[Move]:
        """Priced moves that fuse `number` with nodes that share its inputs."""
        if not isinstance(self.flow.nodes[number], Comp):
            return
        for sibling in self._siblings(number):
            if self._go_side_by_side(sibling, number):
                continue
            first = self.flow.comes_first(sibling, number)
            one, other = (sibling, number) if first else (number, sibling)
            yield from self._priced(Move("fuse", one, (other,)))

    def moves_around(self, number: NodeId) -> Iterator[Move]:
        """Priced moves in which `number` takes part at all."""
        yield from self.moves_into(number)
        for consumer in self._consumers(number):
            yield from self._priced_pair(number, consumer)
        for producer in self._producers(number):
            yield from self._dissolved(producer)

    def companion_moves(self, number: NodeId) -> Iterator[Move]:
        """Priced moves that fuse `number`, too short to fill the device, with its like."""
        if not self._is_short(number):
            return
        for other in self._companions(number):
            if self._go_side_by_side(other, number):
                continue
            first = self.flow.comes_first(other, number)
            one, two = (other, number) if first else (number, other)
            yield from self._priced(Move("fuse", one, (two,)))

    def price(self, move: Move) -> Move | Refusal:
        """`move` with what it saves as things stand, or why it cannot be done (any more)."""
        nodes = self.flow.nodes
        if not all(n in nodes for n in (move.first, *move.others)):
            return Refusal(Reason.REENTRY, "already merged")
        if move.kind == "fuse" and not self.flow.comes_first(move.first, move.others[0]):
            move = replace(move, first=move.others[0], others=(move.first,))  # they changed places
        costs = self._refusal(move) or self._costs(move)
        if isinstance(costs, Refusal):
            return costs
        times = self._times(move)
        before = sum(t * self.prices.cost(nodes[n]).seconds for t, n in zip(times, move.others))
        if move.kind != "repeat":
            before += self.prices.cost(nodes[move.first]).seconds
        return _if_saves(move, before - sum(t * c.seconds for t, c in zip(times, costs)))

    def instead_of(self, move: Move) -> Iterator[Move]:
        """The priced move that would have been found, had `move` been tried and refused then."""
        there = {move.first, *move.others} <= self.flow.nodes.keys()
        untried = move.guessed and move.kind == "fuse" and there
        if untried and is_pointwise(self.flow.nodes[move.first]):
            yield from self._priced(replace(move, kind="repeat"))

    def do(self, move: Move) -> list[NodeId]:
        """The move done; the nodes that it made."""
        comps = self._merged(move)
        producer, members = move.first, self.members[move.first]
        if move.kind == "fuse":
            new = [self.flow.merge(producer, move.others[0], comps[0])]
        else:
            new = [self.flow.replace(n, c) for n, c in zip(move.others, comps)]
            if move.kind == "dissolve":
                self.flow.remove(producer)
        for number, other in zip(new, move.others):
            self.members[number] = tuple(dict.fromkeys(members + self.members[other]))
        return new

    def kept(self, first: NodeId, *consumers: NodeId) -> frozenset[str]:
        """Results of `first` that someone other than `consumers` wants."""
        writes = self.flow.nodes[first].writes
        return frozenset(b for b in writes if self.flow.is_needed_after(b, *consumers))

    def _times(self, move: Move) -> list[int]:
        """How many nodes each of `others` stands for. What all layers need goes into all; what is
        of the same layer has as many."""
        own = not self.times.keys().isdisjoint(self.flow.nodes[move.first].writes)
        if move.kind != "dissolve" or own:
            return [1] * len(move.others)
        made = (self.flow.nodes[n].writes for n in move.others)
        return [max(self.times.get(b, 1) for b in writes) for writes in made]

    def _refusal(self, move: Move) -> Refusal | None:
        return self._order(move) or self._readers(move) or self._lifetimes(move)

    def _costs(self, move: Move) -> list[Cost] | Refusal:
        """Of the kernels that the move makes, or why one cannot be made."""
        first, keep, costs = self.flow.nodes[move.first], self._keep(move), []
        for number in move.others:
            pair = move.first, number, keep
            if pair not in self._known:
                other = self.flow.nodes[number]
                self._known[pair] = self.prices.merged_cost(first, other, keep)
            if isinstance(self._known[pair], Refusal):
                return self._known[pair]
            costs.append(self._known[pair])
        return costs

    def _merged(self, move: Move) -> list[Comp]:
        first, keep = self.flow.nodes[move.first], self._keep(move)
        return [self.prices.merged(first, self.flow.nodes[n], keep) for n in move.others]

    def _keep(self, move: Move) -> frozenset[str]:
        return self.kept(move.first, *move.others) if move.kind == "fuse" else frozenset()

    def _order(self, move: Move) -> Refusal | None:
        if move.kind == "fuse":
            return order_refusal(self.flow, move.first, move.others[0])
        return repeat_refusal(self.flow, move.first, move.others)

    def _readers(self, move: Move) -> Refusal | None:
        """What goes must be wanted by no one else, who may have come to read it since the move was
        found: where a kernel between is repeated, its reader reads what that one reads."""
        wanted = self.kept(move.first, *move.others) if move.kind == "dissolve" else ()
        return Refusal(Reason.READERS, ", ".join(sorted(wanted))) if wanted else None

    def _lifetimes(self, move: Move) -> Refusal | None:
        """Nothing large must stay in memory longer only because far nodes became one."""
        flow = self.flow
        first, far = move.first, max(move.others, key=lambda n: flow.distance(move.first, n))
        if flow.distance(first, far) <= _NEAR[move.kind]:
            return None
        node, other = flow.nodes[first], flow.nodes[far]
        longer = [b for b in node.reads if b not in flow.inputs and not self._lives_until(b, far)]
        freed: tuple[str, ...] = ()
        if move.kind == "fuse" and not set(node.writes).intersection(other.reads):
            longer += [b for b in other.writes if b not in flow.inputs]
        elif move.kind != "repeat":
            freed = node.writes
        extra = self._bytes(longer) - self._bytes(freed)
        return Refusal(Reason.MEMORY, f"by {extra} bytes") if extra > _SLACK_BYTES else None

    def _bytes(self, names) -> int:
        return sum(bytes_of(self.prices.buffers[b], self.prices.hints) for b in names)

    def _lives_until(self, buffer: str, number: NodeId) -> bool:
        if buffer in self.flow.needed:
            return True
        return any(not self.flow.comes_first(r, number) for r in self.flow.readers[buffer])

    def _priced(self, move: Move) -> Iterator[Move]:
        priced = self._found(move)
        if isinstance(priced, Move):
            yield priced

    def _found(self, move: Move) -> Move | Refusal:
        """Priced; guessed where that takes long."""
        times = zip(move.others, self._times(move))
        others = [self.flow.nodes[n] for n, t in times for _ in range(t)]
        first = self.flow.nodes[move.first]
        if not is_long(first, others):
            return self.price(move)
        if refusal := self._refusal(move):
            return refusal
        saved = guessed_seconds(move.kind, first, others, self._keep(move), self.prices)
        return _if_saves(replace(move, guessed=True), saved)

    def _priced_pair(self, producer: NodeId, consumer: NodeId) -> Iterator[Move]:
        """Fuse if possible, else repeat if that saves."""
        fused = self._found(Move("fuse", producer, (consumer,)))
        if isinstance(fused, Move):
            yield fused
        elif is_pointwise(self.flow.nodes[producer]):
            yield from self._priced(Move("repeat", producer, (consumer,)))

    def _dissolved(self, number: NodeId, fewest: int = 2) -> Iterator[Move]:
        """The move that inlines `number` into its consumers, if nobody else needs it."""
        if not is_pointwise(self.flow.nodes[number]):
            return
        consumers = self._consumers(number)
        move = Move("dissolve", number, tuple(consumers))
        many = fewest <= len(consumers) and sum(self._times(move)) <= _MOST_CONSUMERS
        if many:
            yield from self._priced(move)

    def _producers(self, number: NodeId) -> list[NodeId]:
        found = [w for b in self.flow.nodes[number].reads for w in self.flow.writers[b]]
        return self._comps(n for n in found if n != number and self.flow.comes_first(n, number))

    def _consumers(self, number: NodeId) -> list[NodeId]:
        found = [r for b in self.flow.nodes[number].writes for r in self.flow.readers[b]]
        return self._comps(n for n in found if n != number and self.flow.comes_first(number, n))

    def _siblings(self, number: NodeId) -> list[NodeId]:
        """Nodes near by that read what `number` reads, and neither makes what the other needs."""
        related = {*self._producers(number), *self._consumers(number), number}
        window = set(self.flow.near(number, _FARTHEST_SIBLING))  # an input may have any readers
        tables = [self.flow.readers[b].keys() for b in self.flow.nodes[number].reads]
        found = {r for readers in tables for r in readers & window}
        near = sorted(found - related, key=lambda n: self.flow.distance(n, number))
        return self._comps(near[:_MOST_SIBLINGS])

    def _companions(self, number: NodeId) -> list[NodeId]:
        """The nearest short nodes with the same axes on either side in the order."""
        near = self.flow.near(number, _FARTHEST_SIBLING)
        place = near.index(number)
        sides = reversed(near[:place]), near[place + 1 :]
        firsts = (next((n for n in side if self._is_company(n, number)), None) for side in sides)
        return [n for n in firsts if n is not None]

    def _is_company(self, other: NodeId, number: NodeId) -> bool:
        """Whether `other` is short, and has the axes of `number`. Its price is asked last: of all
        nodes near by, few have these axes."""
        node = self.flow.nodes[other]
        alike = isinstance(node, Comp) and self._extents(other) == self._extents(number)
        return alike and self._is_short(other)

    def _go_side_by_side(self, one: NodeId, other: NodeId) -> bool:
        """Equal kernels on tensors of the caller: they get one launch without sharing loops, in
        which each would stand in the way of the other's streams (passes/side_by_side.py)."""
        nodes = [self.flow.nodes[n] for n in (one, other)]
        if self._have_a_stream_in_common(*nodes):
            return False
        a, b = (self.prices.memo.signatures.of(n) for n in nodes)
        equal = (a.number, a.constants, a.places) == (b.number, b.constants, b.places)
        return equal and bool(nodes[0].axes) and all(map(self._is_on_theirs, nodes))

    def _have_a_stream_in_common(self, one: Comp, other: Comp) -> bool:
        """Whether both read a tensor as large as what they write: one loop reads it once."""
        common = set(one.reads).intersection(other.reads)
        return any(self._bytes([b]) >= self._bytes(one.writes) for b in common)

    def _is_on_theirs(self, comp: Comp) -> bool:
        theirs = self.flow.inputs | self.flow.needed
        touched = (self.prices.buffers[b] for b in (*comp.reads, *comp.writes))
        return is_pointwise(comp) and all(b.name in theirs or not b.shape for b in touched)

    def _extents(self, number: NodeId) -> tuple:
        return tuple(a.extent for a in self.flow.nodes[number].axes)

    def _is_short(self, number: NodeId) -> bool:
        node, launch_s = self.flow.nodes[number], self.prices.device.launch_s
        if not is_pointwise(node):
            return False
        return self.prices.cost(node).seconds < _SHORT * launch_s

    def _comps(self, numbers) -> list[NodeId]:
        unique = dict.fromkeys(numbers)
        return [n for n in unique if isinstance(self.flow.nodes[n], Comp)]


def _if_saves(move: Move, saved_s: float) -> Move | Refusal:
    if saved_s <= 0:
        return Refusal(Reason.SLOWER, f"{-saved_s * 1e6:.1f} us slower")
    return replace(move, saved_s=saved_s)


def is_pointwise(node) -> bool:
    """Whether the node may be computed again wherever it is needed."""
    if not isinstance(node, Comp) or any(
        s.combine or s.init is not None or s.guard is not None for s in node.stores
    ):
        return False
    return not any(isinstance(i, (Reduce, Scan)) for i in node.body)

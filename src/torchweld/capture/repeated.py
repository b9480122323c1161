"""Equal layers of a captured graph. All but a few of them are left out before the graph is lowered,
and put back when it has been planned (plan/repeated.py).

A graph keeps some layers at either end of a run of equal layers, so that what is planned for those
in the middle does not depend on how many are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from torchweld.capture.captured import INNER_CAST, ROUNDED, Captured
from torchweld.capture.decomposing.call import described, expression, form
from torchweld.capture.numbers import known_constant
from torchweld.capture.parts import WHOLE, Part
from torchweld.capture.torch_private import OpOverload, is_view
from torchweld.ir.stretches import Run, Step, linked, longest

# Calls at either end, but for views: the search tries moves over up to 16 nodes at once. With 12,
# the plans of tests/whole/test_repeated.py are still those of whole graphs.
_KEPT = 24
# Of the calls of a graph, that are left out. Where the plan does not repeat as they do, the whole
# graph is planned after all: of 691 calls 124 had been left out, for twice the time.
_LEAST_SHARE = 1 / 5
_PLAIN = frozenset((int, bool, str, type(None), torch.dtype, torch.device))
_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Repeated:
    """`count` layers are left out behind the first `kept` of a run of equal layers. `calls`,
    `inputs`, `outputs`: for each call of a layer, each input that is its own and each result of
    the graph, that of all layers of the run, in order: nodes, and positions in the graph.
    `stands_for`: of the last layers before, what is left out and read behind it.
    `later_outputs`: positions of all that is made behind what is left out."""

    kept: int
    count: int
    calls: tuple[tuple[Node, ...], ...]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    left_out: frozenset[Node]
    stands_for: Mapping[Node, Node]
    later_outputs: frozenset[int]

    @property
    def times(self) -> dict[str, int]:
        """By the name of each call that is planned for others, too: for how many, and itself."""
        return {row[self.kept - 1].name: self.count + 1 for row in self.calls}


NONE = Repeated(0, 0, (), (), (), frozenset(), {}, frozenset())


def repeated(captured: Captured, part: Part = WHOLE) -> Repeated | None:
    """The layers of a part that can be left out, if there are enough."""
    calls = [n for n in captured.module.graph.nodes if n.op not in ("placeholder", "output")]
    calls = [n for n in calls if n not in part.left_out]
    if len(calls) < 3 * _KEPT:
        return None
    reader = _Reader(captured, part)
    steps = [reader.step(n) for n in calls]
    run = longest(linked(steps, reader.fact))
    if run is None or not run.count:
        return None
    layer = calls[run.start : run.start + run.period]
    work = sum(isinstance(n.target, OpOverload) and not is_view(n) for n in layer)
    behind = max(2, -(-_KEPT // max(1, work)))
    kept = max(3, behind)
    left_out = (run.count - kept - behind) // 2 * 2  # plans may repeat every second layer
    if left_out <= 0 or left_out * run.period < _LEAST_SHARE * len(calls):
        return None
    return _Cut(reader, calls, steps, run, kept, left_out).made()


class _Reader:
    """Calls as steps."""

    def __init__(self, captured: Captured, part: Part) -> None:
        self.captured, self.module = captured, captured.module
        given = captured.module.graph.find_nodes(op="placeholder")
        self.position = {node: k for k, node in enumerate(given)}
        self.returned: dict[Node, list[int]] = defaultdict(list)
        for k, node in enumerate(part.results_of(captured)):
            if isinstance(node, Node):
                self.returned[node].append(k)

    def step(self, node: Node) -> Step:
        things: list[Node] = []
        if node.op == "get_attr":
            return self._attribute(node), (node,)
        said = _said(node.args, things), _said(node.kwargs, things) if node.kwargs else ()
        marks = tuple(mark in node.meta for mark in (INNER_CAST, ROUNDED))
        about = marks, self._returns(node), _form(node.meta.get("val"))
        return (node.target, said, about), (*things, node)

    def fact(self, node: Node) -> Hashable:
        """Of an argument of the graph."""
        if node not in self.position:
            return None
        static = self.position[node] in self.captured.static_inputs
        is_tangent = node.name.startswith("tangents")
        return described(node.meta.get("val")), static, is_tangent, self._returns(node)

    def _returns(self, node: Node) -> tuple[bool, ...]:
        """For each time that it is a result, whether it is a loose one."""
        if node not in self.returned:
            return ()
        return tuple(k in self.captured.loose_outputs for k in self.returned[node])

    def _attribute(self, node: Node) -> Hashable:
        """A number is its value; another tensor is like none but itself."""
        value = getattr(self.module, node.target, None)
        number = isinstance(value, torch.Tensor) and known_constant(value)
        return node.op, repr(number) if number else node.target


def _form(value) -> Hashable:
    if isinstance(value, torch.Tensor):
        return form(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_form, value))
    return type(value)


def _said(value, things: list[Node]) -> Hashable:
    """An argument without the nodes in it, which go to `things`."""
    kind = type(value)
    if kind is Node:
        things.append(value)
        return Node
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, (tuple, list)):
        return tuple([_said(v, things) for v in value])
    if isinstance(value, dict):
        return tuple([(k, _said(v, things)) for k, v in value.items()])
    if isinstance(value, (float, complex, slice)):
        return repr(value)  # tells 0.0 from -0.0
    return kind, expression(value) if isinstance(value, _SIZES) else value


class _Cut:
    """`count` layers of the run taken out behind the first `kept`."""

    def __init__(
        self, reader: _Reader, calls: list[Node], steps: list[Step], run: Run, kept: int, count: int
    ) -> None:
        self.reader, self.calls, self.run, self.kept, self.count = reader, calls, run, kept, count
        self.things = [things for _, things in steps]
        self.start = run.start + kept * run.period
        self.stop = self.start + count * run.period
        self.first: dict[Node, int] = {}  # where each thing is touched first
        for here, things in enumerate(self.things):
            for thing in things:
                self.first.setdefault(thing, here)

    def made(self) -> Repeated | None:
        """None where what comes behind needs a layer that is not there."""
        left_out = frozenset(t for t, k in self.first.items() if self.start <= k < self.stop)
        stands_for, rows = self._stands_for(left_out), self._rows()
        if stands_for is None:
            return None
        position, returned = self.reader.position, self.reader.returned
        given = [tuple(map(position.__getitem__, row)) for row in rows if row[0] in position]
        made = [zip(*map(returned.__getitem__, row)) for row in rows if row[0] in returned]
        later = (k for n, ks in returned.items() if self.first.get(n, -1) >= self.stop for k in ks)
        return Repeated(
            self.kept, self.count, tuple(row for row in rows if row[0] not in position),
            tuple(given), tuple(row for each in made for row in each), left_out, stands_for,
            frozenset(later),
        )  # fmt: skip

    def _rows(self) -> list[tuple[Node, ...]]:
        """What is touched first in each layer: the same of all layers of the run."""
        start, period = self.run.start, self.run.period
        stop = start + self.run.count * period
        found: dict[Node, tuple[Node, ...]] = {}
        for here in range(start, start + period):
            for slot, thing in enumerate(self.things[here]):
                if self.first[thing] == here:
                    found[thing] = tuple(t[slot] for t in self.things[here:stop:period])
        return list(found.values())

    def _stands_for(self, left_out: frozenset[Node]) -> dict[Node, Node] | None:
        found: dict[Node, Node] = {}
        for here in range(self.stop, len(self.calls)):
            for slot, thing in enumerate(self.things[here]):
                if self.run.start <= self.first[thing] < self.start:
                    return None  # of a layer far away
                if thing not in left_out:
                    continue
                like = self.things[here - self.count * self.run.period][slot]
                known = found.setdefault(like, thing) is thing
                if here >= self.run.stop or like in left_out or not known:
                    return None
        return found

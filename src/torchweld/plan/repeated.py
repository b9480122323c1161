"""Equal layers that were left out (capture/repeated.py) put back into a finished plan.

    planned:   front | layer | back          whole:   front | layer | copy 1 .. copy n | back

A plan in the middle of equal layers repeats: every so many nodes there is one like it, on buffers
that are linked in the same way. From such nodes each buffer of a layer is known to have a like one
in the next layer: a chain of buffers. A copy of a layer is its nodes on the buffers that are so
many places further along their chains, and what is behind reads those as many places further.
Where kernels join the work of neighbours, the plan repeats every second layer: then "layer" here is
two of the model's, which is why an even number is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torchweld.capture.lower import origin_of
from torchweld.capture.repeated import Repeated
from torchweld.ir.memo import Signatures
from torchweld.ir.nodes import Arg, Buffer, Comp, Graph, Node, Origin, views
from torchweld.ir.stretches import Run, Step, linked, longest
from torchweld.plan.decisions import (
    Cut,
    Decision,
    Fusion,
    Plan,
    RefusalRecord,
    renamed_decision,
)
from torchweld.rewrite.flow import rename, rename_arg


class _Unlike(Exception):
    """The plan does not repeat as the layers do."""


@dataclass(frozen=True)
class Whole:
    """`nodes`: by the name of each, the name of the node as planned, and those of its buffers that
    have other names there."""

    graph: Graph
    decisions: tuple[Decision, ...]
    nodes: Mapping[str, tuple[str, Mapping[str, str]]]


def whole_plan(made: Plan, layers: Repeated, inputs: Sequence[str]) -> Whole | None:
    """The plan with the `layers` that it was made without; None if it does not repeat as they do.
    `inputs`: names for all inputs that the whole graph is given."""
    try:
        return _Whole(made.graph, layers, inputs).made(made.decisions)
    except _Unlike:
        return None


def _require(condition: object) -> None:
    if not condition:
        raise _Unlike


class _Rows:
    """Things of one kind in all layers. `place`: of a thing that was planned, its row, and where it
    would be there without the layers that are left out."""

    def __init__(self) -> None:
        self.rows: list[list] = []
        self.place: dict[Hashable, tuple[int, int]] = {}

    def add(self, before: Sequence, between: Sequence, behind: Sequence) -> None:
        for at, thing in enumerate((*before, *behind)):
            self.place[thing] = len(self.rows), at
        self.rows.append([*before, *between, *behind])

    def shifted(self, thing, by: int):
        """The same thing so many layers on; itself if it is not of a layer."""
        if thing not in self.place:
            return thing
        row, at = self.place[thing]
        _require(at + by < len(self.rows[row]))
        return self.rows[row][at + by]


class _Whole:
    def __init__(self, graph: Graph, layers: Repeated, inputs: Sequence[str]) -> None:
        self.graph, self.layers, self.given = graph, layers, inputs
        steps = _steps(graph)
        self.things = [things for _, things in steps]
        run = longest(linked(steps, lambda name: None))
        _require(run is not None and run.count >= 2)
        self.run: Run = run
        self.cut = run.start + run.period * (run.count - 1)
        self.inputs, self.members = list(graph.inputs), _Rows()
        for row in layers.calls:
            self._add(self.members, [call.name for call in row])
        for row in layers.inputs:
            self._add(self.members, [inputs[k] for k in row])
        self.first: dict[str, int] = {}  # where each buffer is touched first
        for here, things in enumerate(self.things):
            for thing in things:
                self.first.setdefault(thing, here)
        self.places = self._places()
        self.buffers: dict[str, Buffer] = {}
        self.copies: dict[str, tuple[str, dict[str, str]]] = {}
        self._taken = {*graph.buffers, *inputs, *(n.name for n in graph.nodes)}
        self._last: dict[str, int] = {}

    def made(self, decisions: Iterable[Decision]) -> Whole:
        chains = list(self._chains())
        self.each = self._layers_in_each(chains)  # period of the plan
        self.times = self.layers.count // self.each  # that one is to be added
        _require(self.times * self.each == self.layers.count)
        self.rows = self._of_buffers(chains)
        self._check_behind()
        nodes = tuple(self._nodes())
        outputs = tuple(self._outputs())
        for name in filter(None, self.graph.inputs):
            self.buffers.setdefault(name, self.graph.buffers[name])
        graph = replace(
            self.graph, buffers=self.buffers, nodes=nodes, inputs=tuple(self.inputs),
            outputs=outputs,
        )  # fmt: skip
        _check_flow(graph)
        told = tuple(self._told(decisions, [n.name for n in nodes]))
        return Whole(graph, told, self.copies)

    # -- buffers

    def _of_buffers(self, chains: list[list[str]]) -> _Rows:
        """The chains of buffers, with names for those of the layers in between."""
        rows, between = _Rows(), self._given_between()
        for chain in chains:
            known = [k for k, buffer in enumerate(chain) if buffer in between]
            split = known[0] + 1 if known else sum(self.first[b] < self.cut for b in chain)
            _require(0 < split < len(chain) and len(known) < 2)
            own = chain[split - 1]
            names = between.pop(own) if known else [self._fresh(own) for _ in range(self.times)]
            rows.add(chain[:split], names, chain[split:])
        _require(all(b not in self.first for b in between))
        return rows

    def _layers_in_each(self, chains: list[list[str]]) -> int:
        """Period of the plan: where names say of which layers buffers are, it is as many layers
        from each to the next in its chain."""
        place = self.members.place
        pairs = [(a, b) for chain in chains for a, b in pairwise(chain) if {a, b} <= place.keys()]
        _require(all(place[a][0] == place[b][0] for a, b in pairs))
        found = {place[b][1] - place[a][1] for a, b in pairs}
        _require(len(found) == 1)
        (each,) = found
        _require(0 < each <= self.layers.kept)
        return each

    def _given_between(self) -> dict[str, list[str]]:
        """Names of the inputs of the layers that are left out, by that of the period before."""
        found, kept = {}, self.layers.kept
        for row in self.layers.inputs:
            for at in range(kept - self.each, kept):
                own = self.graph.inputs[row[at]]
                if own is not None:
                    positions = row[at + self.each : kept + self.layers.count : self.each]
                    found[own] = [self._given(k, own) for k in positions]
        return found

    def _given(self, position: int, like: str) -> str:
        """The input at a position where the planned graph has none."""
        name = self.given[position]
        _require(name not in self.graph.buffers)
        self.inputs[position] = name
        self.buffers[name] = replace(self.graph.buffers[like], name=name)
        return name

    def _chains(self) -> Iterator[list[str]]:
        following = self._following()
        later = set(following.values())
        _require(len(later) == len(following))  # one before each
        for head in following:
            if head not in later:
                chain = [head]
                while chain[-1] in following:
                    chain.append(following[chain[-1]])
                yield chain

    def _following(self) -> dict[str, str]:
        """For each buffer of a layer, the one like it in the next."""
        found: dict[str, str] = {}
        period = self.run.period
        for here in range(self.run.start, self.run.stop - period):
            for one, next_one in zip(self.things[here], self.things[here + period]):
                _require(found.setdefault(one, next_one) == next_one)
        return {a: b for a, b in found.items() if a != b}

    def _check_behind(self) -> None:
        """What is behind the equal layers reads nothing of those in front."""
        for things in self.things[self.run.stop :]:
            _require(all(self.first[t] >= self.cut for t in things if t in self.rows.place))

    def _fresh(self, name: str) -> str:
        """`name` with a number that no other has."""
        base = re.sub(r"_\d+$", "", name)
        number = self._last.get(base, 0) + 1
        while f"{base}_{number}" in self._taken:
            number += 1
        self._last[base] = number
        self._taken.add(f"{base}_{number}")
        return f"{base}_{number}"

    def _renaming(self, names: Iterable[str], by: int) -> dict[str, str]:
        """The buffers of something, so many layers on, that have other names there. All are known
        from now on."""
        found = {}
        for name in names:
            new, buffer = self.rows.shifted(name, by), self.graph.buffers[name]
            if new != name:
                found[name] = new
            if new not in self.buffers:
                self.buffers[new] = buffer if new == name else replace(buffer, name=new)
            _require(_layout(self.buffers[new]) == _layout(buffer))
        return found

    # -- nodes and outputs

    def _nodes(self) -> Iterator[Node]:
        nodes, period = self.graph.nodes, self.run.period
        for here in range(self.cut):
            yield self._copy(here, 0)
        for by in range(1, self.times + 1):
            for here in range(self.cut - period, self.cut):
                yield self._copy(here, by, self._fresh(nodes[here].name))
        for here in range(self.cut, len(nodes)):
            yield self._copy(here, self.times)

    def _copy(self, here: int, by: int, name: str | None = None) -> Node:
        """The node `here` so many layers on."""
        node = self.graph.nodes[here]
        names = self._renaming(self.things[here], by)
        new = name or node.name
        self.copies[new] = node.name, names
        return replace(rename(node, names), name=new, origins=self._origins(node.origins, by))

    def _outputs(self) -> Iterator[Arg]:
        layers, first = self.layers, self.layers.kept - self.each
        copies = {
            row[first + by * self.each + k]: (row[first + k], by)
            for row in layers.outputs
            for by in range(1, self.times + 1)
            for k in range(self.each)
        }
        for k in range(len(self.graph.outputs)):
            of, by = copies.get(k, (k, self.times if k in layers.later_outputs else 0))
            output = self.graph.outputs[of]
            read = [v.buffer for v in views((output,))]
            _require(k not in copies or self.rows.place.keys() >= set(read))
            yield rename_arg(output, self._renaming(read, by))

    # -- what is told of them

    def _add(self, rows: _Rows, things: Sequence) -> None:
        """The same thing of all layers."""
        kept, stop = self.layers.kept, self.layers.kept + self.layers.count
        rows.add(things[:kept], things[kept:stop], things[stop:])

    def _places(self) -> _Rows:
        """Where in the user's model each call of a layer is; many calls are in one place."""
        found = {_place(row[self.layers.kept - 1]): row for row in self.layers.calls}
        rows = _Rows()
        for row in found.values():
            self._add(rows, [_place(call) for call in row])
        return rows

    def _origins(self, origins: tuple[Origin, ...], by: int) -> tuple[Origin, ...]:
        shifted, by = self.places.shifted, by * self.each
        return tuple(Origin(o.op, *shifted((o.module, o.source), by)) for o in origins)

    def _told(self, decisions: Iterable[Decision], names: Sequence[str]) -> Iterator[Decision]:
        """The decisions, and those about the layers between."""
        place = {node.name: k for k, node in enumerate(self.graph.nodes)}
        start, period = self.run.start, self.run.period

        def on(name: str, by: int) -> str:
            here = place.get(name)
            if here is None:
                return self.members.shifted(name, by * self.each)
            return names[here + by * period] if start <= here else names[here]

        for decision in decisions:
            here = max((place[n] for n in _kernels(decision) if n in place), default=0)
            yield self._moved(decision, self.times if here >= self.cut else 0, on)
            if self.cut - period <= here < self.cut:
                for by in range(1, self.times + 1):
                    yield self._moved(decision, by, on)

    def _moved(self, decision: Decision, by: int, on: Callable[[str, int], str]) -> Decision:
        """A decision about the same so many layers on."""
        moved = renamed_decision(decision, lambda name: on(name, by))
        if isinstance(moved, Fusion):
            return replace(moved, origins=self._origins(moved.origins, by))
        return moved


def _layout(buffer: Buffer) -> tuple:
    """All but its name."""
    return (buffer.shape, buffer.strides, buffer.dtype, buffer.device, buffer.frozen,
            buffer.slack)  # fmt: skip


def _place(call) -> tuple[str, str]:
    origin = origin_of(call)
    return origin.module, origin.source


def _kernels(decision: Decision) -> tuple[str, ...]:
    if isinstance(decision, RefusalRecord):
        return decision.producer, decision.consumer
    return decision.kernels if isinstance(decision, Cut) else (decision.kernel,)


def _steps(graph: Graph) -> list[Step]:
    """The nodes, each with the buffers that it touches."""
    signatures = Signatures(graph.buffers)
    return [_step(n, graph.buffers, signatures) for n in graph.nodes]


def _step(node: Node, buffers: Mapping[str, Buffer], signatures: Signatures) -> Step:
    if isinstance(node, Comp):
        signature = signatures.of(node)
        form: tuple = signature.number, signature.constants, re.sub(r"_\d+$", "", node.name)
        things: Sequence[str] = signature.buffers
    else:
        things = (*node.reads, *node.writes)
        names = {name: str(k) for k, name in enumerate(dict.fromkeys(things))}
        call = rename(replace(node, name="", origins=()), names)
        form = repr(call), tuple(replace(buffers[n], name="") for n in things)
    return (form, tuple(buffers[n].frozen for n in things)), things


def _check_flow(graph: Graph) -> None:
    """Everything is made before it is read."""
    ready = {name for name in graph.inputs if name}
    for node in graph.nodes:
        _require(ready.issuperset(node.reads))
        ready.update(node.writes)
    _require(ready.issuperset(v.buffer for v in views(graph.outputs)))

"""What is written to while a graph is made functional: which values later reads mean, and which of
the caller's and the model's tensors have new ones in the end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Node

from torchweld.capture.decomposing.call import Little, Unhandled, form
from torchweld.core.torch_private import pytree

_WRITES = {
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
}


@dataclass
class _Input:
    spec: InputSpec
    name: str
    first: Node
    now: Node
    alone: bool = True  # no other input is in its memory


class Memory:
    """Each value of the new graph has numbers of memories that it may be a view of. `holders`: for
    each number, nodes of the old graph and the values in it that they have."""

    def __init__(self, program: ExportedProgram) -> None:
        nodes = program.graph.nodes
        self._last = {
            used: place for place, node in enumerate(nodes) for used in node.all_input_nodes
        }
        self._new = itertools.count()
        self._of: dict[Node, frozenset[int]] = {}
        self._holders: dict[int, list[tuple[Node, Node]]] = {}
        self._of_storage: dict[int, int] = {}
        self._inputs: dict[int, _Input] = {}

    def add_input(self, new: Node, spec: InputSpec) -> None:
        value = new.meta["val"]
        if not isinstance(value, torch.Tensor):
            return
        storage = value.untyped_storage()._cdata
        number = self._of_storage.setdefault(storage, len(self._of_storage))
        if number in self._inputs:
            self._inputs[number].alone = False
        else:
            next(self._new)
            self._inputs[number] = _Input(spec, new.name, new, new)
        self._of[new] = frozenset([number])

    def add(self, little: Little, inputs: Sequence[Node], made: dict[Node, Node]) -> None:
        """What a copy of `little` has made."""
        fresh: dict[int, int] = {}
        for node, numbers in little.memory.items():
            found: set[int] = set()
            for number in numbers:
                if number < len(inputs):
                    found |= self._of.get(inputs[number], frozenset())
                else:
                    found.add(fresh.setdefault(number, next(self._new)))
            self._of.setdefault(made[node], frozenset(found))

    def hold(self, old: Node, value) -> None:
        """`value`: what `old` is in the new graph."""
        for node in pytree.tree_leaves(value):
            for number in self._of.get(node, ()) if isinstance(node, Node) else ():
                self._holders.setdefault(number, []).append((old, node))

    def check_writes(self, place: int, little: Little, inputs: Sequence[Node]) -> None:
        """Errors: Unhandled for a write that others may see than those that read this value."""
        for node, written in zip(inputs, little.written):
            if written is None:
                continue
            if any(number < len(inputs) for number in little.memory[written]):
                raise Unhandled  # it is given the memory of another
            if form(node.meta["val"]) != form(written.meta["val"]):
                raise Unhandled  # views of it would be others
            numbers = self._of[node]
            if any(numbers & self._of.get(other, frozenset()) for other in inputs if other != node):
                raise Unhandled
            if not all(self._is_whole(number, node) for number in numbers):
                raise Unhandled
            if any(self._is_read_elsewhere(number, node, place) for number in numbers):
                raise Unhandled

    def _is_whole(self, number: int, node: Node) -> bool:
        """It is no view of an input, unless it is that input itself."""
        given = self._inputs.get(number)
        if given is None:
            return True
        return given.now is node and given.alone and given.spec.kind in _WRITES

    def _is_read_elsewhere(self, number: int, node: Node, place: int) -> bool:
        holders = self._holders.get(number, ())
        return any(value is not node and self._last.get(old, -1) > place for old, value in holders)

    def write(self, values: dict[Node, object], node: Node, new: Node) -> None:
        """`new` instead of `node` for all that read it from now on."""
        for number in self._of[node]:
            for old, value in self._holders.get(number, ()):
                if value is node and values.get(old) is node:
                    values[old] = new
                    self.hold(old, new)
            if number in self._inputs:
                given = self._inputs[number]
                given.now = new
                self._inputs |= dict.fromkeys(self._of[new], given)

    def written_inputs(self) -> tuple[list[Node], list[OutputSpec]]:
        """Their values in the end, in the inputs' order."""
        nodes, specs = [], []
        for number in range(len(self._of_storage)):
            given = self._inputs[number]
            if given.now is given.first:
                continue
            value, kind = given.now, given.spec.kind
            if kind != InputKind.USER_INPUT:
                value = _without_copy(value)
            target = given.name if kind == InputKind.USER_INPUT else given.spec.target
            nodes.append(value)
            specs.append(OutputSpec(_WRITES[kind], TensorArgument(value.name), target))
        return nodes, specs


def _without_copy(value: Node) -> Node:
    """copy(old, new), of the same form   ->   new, for all that read it: as torch does it."""
    if value.target is not torch.ops.aten.copy.default:
        return value
    new = value.args[1]
    if form(value.meta["val"]) != form(new.meta["val"]):
        return value
    value.replace_all_uses_with(new)
    return new

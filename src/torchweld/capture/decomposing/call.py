"""One call of an exported graph: traced alone, and what makes another call the same.

    linear(x: float32 [8, 64], w, b)   ->   permute(w), addmm(b, x, permute)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from torchweld.capture import torch_private
from torchweld.core.torch_private import pytree

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Unhandled(Exception):
    """torch has to decompose the whole program."""


@dataclass(frozen=True)
class Little:
    """What one call is made of: `body`, operations that read `inputs` and each other.

    leaves: of its result: nodes, numbers and None; `nested` says how they are arranged.
    written: for each input, the node that it has been overwritten with, or None.
    memory: of each node among `leaves` and `written`, numbers: those of the inputs that it may be a
    view of, or one from len(inputs) on, which is that of all results in the same memory.
    """

    inputs: tuple[Node, ...]
    body: tuple[Node, ...]
    leaves: tuple
    nested: object
    written: tuple[Node | None, ...]
    memory: dict[Node, tuple[int, ...]]


class Call:
    """A call of the new graph. `nodes`: what it reads, each once. `key`: equal for calls that are
    made of the same operations."""

    def __init__(self, target: Callable, args: tuple, kwargs: dict) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs
        self._places: dict[Node, int] = {}
        said = (target, self._part(args), self._part(kwargs))
        self.nodes = tuple(self._places)
        self.key = said, tuple(described(node.meta["val"]) for node in self.nodes)

    def _part(self, value):
        if isinstance(value, Node):
            return Node, self._places.setdefault(value, len(self._places))
        if isinstance(value, (tuple, list)):
            return isinstance(value, tuple), *map(self._part, value)
        if isinstance(value, dict):
            return tuple((name, self._part(each)) for name, each in value.items())
        if isinstance(value, float):
            return float, repr(value)  # zero has two signs, and NaN is not itself
        return type(value), value

    def traced(self, table: torch_private.Decompositions) -> Little:
        """Errors: Unhandled where its operations make constants, or torch cannot trace it alone: it
        may as a part of its program, and says best why it cannot."""
        values = [_another(node.meta["val"]) for node in self.nodes]
        try:
            alone = torch_private.one_operation(self._target, self._given, values, table)
            if alone is not None:
                return self._of_one(values, alone)
            made = torch_private.functional_graph(self._target, self._given, values, table)
        except Exception as error:
            raise Unhandled from error
        module, nested = made
        module.graph.eliminate_dead_code()
        nodes = list(module.graph.nodes)
        inputs = tuple(node for node in nodes if node.op == "placeholder")
        body = tuple(nodes[len(inputs) : -1])
        if any(node.op != "call_function" for node in body):
            raise Unhandled
        found = tuple(nodes[-1].args[0])
        leaves, written = found[: len(found) - len(inputs)], found[len(found) - len(inputs) :]
        return Little(inputs, body, leaves, nested, written, _memory(inputs, found))

    def _of_one(self, values: Sequence, result: torch.Tensor) -> Little:
        graph = Graph()
        inputs = tuple(graph.placeholder(f"input_{place}") for place in range(len(values)))
        args, kwargs = self._given(inputs)
        node = graph.call_function(self._target, args, kwargs)
        for each, value in zip((*inputs, node), (*values, result)):
            each.meta["val"] = value
        nested = pytree.tree_flatten(result)[1]
        nothing = (None,) * len(inputs)
        return Little(inputs, (node,), (node,), nested, nothing, _memory(inputs, (node, *nothing)))

    def _given(self, values: Sequence) -> tuple:
        return map_arg((self._args, self._kwargs), lambda node: values[self._places[node]])


def _another(value):
    """The same tensor in an object of its own: nodes that are copies of one share theirs, and the
    trace tells tensors apart by identity."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)


def described(value) -> tuple:
    """All of a fake tensor, or of a size, that a decomposition may depend on."""
    if not isinstance(value, torch.Tensor):
        return type(value), expression(value)
    view = expression(value.storage_offset()), value.is_conj(), value.is_neg()
    return *form(value), view, value.requires_grad, id(value.constant)


def form(value: torch.Tensor) -> tuple:
    """What views of a tensor depend on."""
    sizes, strides = tuple(map(expression, value.shape)), tuple(map(expression, value.stride()))
    return value.dtype, value.device, sizes, strides


def expression(size):
    """A symbol's number in sympy; numbers are themselves."""
    return size.node.expr if isinstance(size, SYMBOLIC) else size


def _memory(inputs: tuple[Node, ...], found: tuple) -> dict[Node, tuple[int, ...]]:
    owners: dict[int, list[int]] = {}
    for place, node in enumerate(inputs):
        owners.setdefault(_storage(node), []).append(place)
    numbers = {}
    for node in found:
        if isinstance(node, Node):
            unlike = len(inputs) + len(owners)
            numbers[node] = tuple(owners.setdefault(_storage(node), [unlike]))
    return numbers


def _storage(node: Node) -> object:
    """What two nodes have in common that may be views of one memory."""
    value = node.meta["val"]
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else node

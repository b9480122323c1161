"""A graph with operations that have no place in the IR (sizes that depend on data, higher-order
operations, sparse tensors), in pieces: those operations are run as they are, what lies between is
compiled.

    [a, b, nonzero, c, cond, d]  ->  compiled [a, b], [nonzero], compiled [c], [cond], compiled [d]

Sizes that the IR has no expression for, as `int(0.75 * n)`, are computed before all else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from torchweld.capture import torch_private
from torchweld.capture.captured import Captured
from torchweld.core.errors import NotLowered

MOST_CUTS = 32
Boxed = Callable[[list], Sequence]


@dataclass(frozen=True, slots=True)
class Piece:
    """`takes` and `gives`: names of values outside."""

    captured: Captured
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """`ends`: values that nobody needs any more after it."""

    run: Boxed
    piece: Piece
    ends: tuple[str, ...]


class InPieces:
    """The pieces of a graph, one after the other; boxed, as what is compiled of a whole graph."""

    _boxed_call = True

    def __init__(self, captured: Captured, made: Sequence[tuple[Piece, Boxed]]) -> None:
        graph = captured.module.graph
        self._inputs = [n.name for n in graph.find_nodes(op="placeholder")]
        self._results = graph.output_node().args[0]
        kept = {n.name for n in self._results if isinstance(n, Node)}
        steps = []
        for piece, run in reversed(made):
            ends = tuple({*piece.takes, *piece.gives} - kept)
            kept.update(ends)
            steps.append(_Step(run, piece, ends))
        self._steps = steps[::-1]

    @property
    def is_whole(self) -> bool:
        """All tensors are computed in one piece."""
        first, *others = (step.piece.captured.module.graph.nodes for step in self._steps)
        return len(others) == 1 and not any(_is_computed_tensor(n) for n in first)

    def __call__(self, args: list) -> Sequence:
        values = dict(zip(self._inputs, args))
        args.clear()
        for step in self._steps:
            given = step.run([values[name] for name in step.piece.takes])
            values.update(zip(step.piece.gives, given))
            for name in step.ends:
                del values[name]
        return [values[r.name] if isinstance(r, Node) else r for r in self._results]


def in_pieces(
    captured: Captured, failed: str, compile_piece: Callable[[Captured], Boxed],
    run_eagerly: Callable[[GraphModule], Boxed],
) -> InPieces | None:  # fmt: skip
    """`captured` with all compiled but the operations that `compile_piece` raises NotLowered for,
    the first of which is `failed`; None if these are the results, or nothing is left to compile."""
    if failed == captured.module.graph.output_node().name:
        return None
    nodes = [n for n in captured.module.graph.nodes if n.op == "call_function"]
    rest = by_levels(nodes)
    if any(n.name == failed or depends_on_data(n) for n in rest):
        failed = next(n.name for n in rest if n.name == failed or depends_on_data(n))
    made: list[tuple[Piece, Boxed]] = []
    odd: list[Node] = []

    def add(nodes: list[Node], compiled: bool) -> None:
        piece = _piece(captured, nodes, len(made))
        run = compile_piece(piece.captured) if compiled else run_eagerly(piece.captured.module)
        made.append((piece, run))

    for _ in range(MOST_CUTS):
        before, unfit, rest = _cut(rest, failed)
        if before and odd:
            add(odd, False)
            odd = []
        if before:
            add(before, True)
        odd += unfit
        try:
            piece = _piece(captured, rest, len(made) + 1)
            run = compile_piece(piece.captured) if rest else None
        except NotLowered as error:
            failed = error.node
            continue
        add(odd, False)
        made += [(piece, run)] if rest else []
        return InPieces(captured, made) if len(made) > 1 else None
    return None


def _is_computed_tensor(node: Node) -> bool:
    number = isinstance(node.meta.get("val"), _NUMBERS)
    return node.op == "call_function" and not number


def _numbers_of_inputs(nodes: Sequence[Node]) -> list[Node]:
    """Those that compute a number from the graph's inputs and such numbers alone."""
    found: dict[Node, None] = {}
    for node in nodes:
        given = (a.op == "placeholder" or a in found for a in node.all_input_nodes)
        if not _is_computed_tensor(node) and not depends_on_data(node) and all(given):
            found[node] = None
    return list(found)


def _cut(nodes: list[Node], failed: str) -> tuple[list[Node], list[Node], list[Node]]:
    """What comes before the operation that is, or first reads, `failed`; it, the parts of its
    result and those that depend on data next to it; the rest. If it is a number of the inputs, all
    of these are cut off."""
    numbers = _numbers_of_inputs(nodes)
    if any(n.name == failed for n in numbers):
        return [], numbers, [n for n in nodes if n not in set(numbers)]
    at = next(
        k for k, n in enumerate(nodes) if failed in (n.name, *(a.name for a in n.all_input_nodes))
    )
    end = at + 1
    while end < len(nodes) and depends_on_data(nodes[end]):
        end += 1
    unfit, rest = nodes[at:end], []
    for node in nodes[end:]:
        part = node.target is operator.getitem and node.args[0] in unfit
        (unfit if part else rest).append(node)
    return nodes[:at], unfit, rest


def depends_on_data(node: Node) -> bool:
    """It gives a size that depends on data and that none of its operands has, or computes with such
    sizes: sums, comparisons and assertions of them."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        given = (a.meta.get("val") for a in node.all_input_nodes)
        return any(_from_data(v) for v in (value, *given) if isinstance(v, _NUMBERS))
    known = (_from_data(a.meta.get("val")) for a in node.all_input_nodes)
    return bool(_from_data(value).difference(*known))


_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _from_data(value) -> frozenset:
    return torch_private.sizes_from_data(value) if _is_sized(value) else frozenset()


def _is_sized(value) -> bool:
    return isinstance(value, (torch.Tensor, *_NUMBERS))


def by_levels(nodes: Sequence[Node]) -> list[Node]:
    """In an order with few changes between what depends on data and what does not: all of one kind
    whose operands are there, then all of the other. A loop over experts becomes three parts:

        mask_0, nonzero_0, expert_0, mask_1, nonzero_1, expert_1
            ->  mask_0, mask_1,  nonzero_0, nonzero_1,  expert_0, expert_1

    As it is where an operation writes to its arguments or draws random numbers: that has an order.
    """
    if not any(map(depends_on_data, nodes)) or any(map(_has_effect, nodes)):
        return list(nodes)
    waiting, made, odd = list(nodes), [], False
    open_: set[Node] = set(nodes)
    while waiting:
        late: list[Node] = []
        for node in waiting:
            ready = open_.isdisjoint(node.all_input_nodes) and depends_on_data(node) == odd
            (made if ready else late).append(node)
            if ready:
                open_.discard(node)
        waiting, odd = late, not odd
    return made


def _has_effect(node: Node) -> bool:
    if torch_private.is_mutable(node):
        return True
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _piece(captured: Captured, nodes: Collection[Node], number: int) -> Piece:
    inside, graph = set(nodes), Graph()
    placeholders = captured.module.graph.find_nodes(op="placeholder")
    takes = [*dict.fromkeys([*_sizes(placeholders), *_read(nodes, inside)])]
    gives = [n for n in nodes if any(u not in inside for u in n.users)]
    copies: dict[Node, Node] = {}
    for node in takes:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        for given in node.all_input_nodes:
            if given not in copies:  # an attribute of the module
                copies[given] = graph.node_copy(given)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in gives))
    static = {n for k, n in enumerate(placeholders) if k in captured.static_inputs}
    return Piece(
        Captured(
            GraphModule(captured.module, graph), f"{captured.name}_{number}", captured.kind,
            frozenset(k for k, n in enumerate(takes) if n in static),
        ),
        tuple(n.name for n in takes),
        tuple(n.name for n in gives),
    )  # fmt: skip


def _sizes(placeholders: Sequence[Node]) -> Iterator[Node]:
    """The sizes that a graph is given: shapes inside may be made of any."""
    return (n for n in placeholders if isinstance(n.meta.get("val"), torch.SymInt))


def _read(nodes: Collection[Node], inside: set[Node]) -> Iterator[Node]:
    read = (a for n in nodes for a in n.all_input_nodes)
    return (a for a in read if a not in inside and a.op != "get_attr")

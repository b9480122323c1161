"""The writes at the end of a captured graph, as a part of its own: new running statistics.

    n1 s1 a1 | n2 s2 a2 | ... | copy_(r1, s1), copy_(c1, a1), copy_(r2, s2), copy_(c2, a2), ...
 -> n1 s1    | n2 s2    | ...                     the main part, which returns s1, s2, ..., too
    a1 a2 ...  copy_(r1, s1), copy_(c1, a1), ...  the last part, which is given them

They read all layers. Without them, equal layers can be left out (`capture/repeated.py`); each part
has a plan of its own, and the last one's kernels come behind all others (`plan/joined.py`).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import takewhile
from math import prod

import torch
from torch.fx import Graph, Node

from torchweld.capture.captured import Captured
from torchweld.capture.torch_private import OpOverload, is_mutable, is_view

_WRITE = torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Part:
    """`left_out`: calls and inputs that other parts need alone. `given`: what other parts make and
    this one reads: inputs behind the graph's own. `results`: None if they are the graph's.
    `changed`: inputs that another part writes."""

    left_out: frozenset[Node] = frozenset()
    given: tuple[Node, ...] = ()
    results: tuple | None = None
    changed: frozenset[Node] = frozenset()

    def results_of(self, captured: Captured) -> tuple:
        if self.results is not None:
            return self.results
        return tuple(captured.module.graph.output_node().args[0])


WHOLE = Part()


@dataclass(frozen=True)
class Parts:
    """`last` is given what `main` returns behind the graph's own results."""

    main: Part
    last: Part


def parts(captured: Captured) -> Parts | None:
    """The writes and what they alone need, apart from the rest; None if there are none, or if it
    would cost more than a few small results."""
    graph = captured.module.graph
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    writes = list(takewhile(_is_write, reversed(calls)))
    written = frozenset(n.args[0] for n in writes)
    results = tuple(graph.output_node().args[0])
    if not writes or any(map(is_mutable, calls[: -len(writes)])) or not written.isdisjoint(results):
        return None
    apart = _needed_alone(writes, calls)
    read = {a for n in apart for a in n.all_input_nodes} - apart
    given = tuple(n for n in calls if n in read)
    if not all(map(_is_small, given)):
        return None
    rest = frozenset(calls) - apart
    main = apart | _unread_inputs(graph, rest | {graph.output_node()})
    last = rest | _unread_inputs(graph, apart)
    return Parts(Part(main, (), (*results, *given), written), Part(last, given, ()))


def _is_write(node: Node) -> bool:
    return node.target is _WRITE and node.args[0].op == "placeholder" and not node.users


def _unread_inputs(graph: Graph, readers: frozenset[Node]) -> frozenset[Node]:
    tensors = (n for n in graph.find_nodes(op="placeholder") if _is_tensor(n))
    return frozenset(n for n in tensors if readers.isdisjoint(n.users))


def _needed_alone(writes: list[Node], calls: list[Node]) -> frozenset[Node]:
    """The writes, and pointwise work on what is as small as they are that nothing else reads."""
    apart = set(writes)
    for node in reversed(calls[: -len(writes)]):
        if node.users and apart.issuperset(node.users) and _is_light(node):
            apart.add(node)
    return frozenset(apart)


def _is_light(node: Node) -> bool:
    """Pointwise, and reads nothing that is larger than its result."""
    tags = node.target.tags if isinstance(node.target, OpOverload) else ()
    if torch.Tag.pointwise not in tags or torch.Tag.nondeterministic_seeded in tags:
        return False
    sizes, made = [_elements(a) for a in node.all_input_nodes], _elements(node)
    return made is not None and all(n is not None and n <= made for n in sizes)


def _is_small(node: Node) -> bool:
    """Memory of its own, smaller than what it is made of: statistics of a norm, a total. Larger
    results are better written at once where they are to be."""
    call = node.args[0] if node.target is operator.getitem else node
    made = _elements(node)
    if not isinstance(call.target, OpOverload) or is_view(call) or made is None:
        return False
    return any((_elements(a) or 0) > made for a in call.all_input_nodes)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _elements(node: Node) -> int | None:
    """None if they are not known."""
    shape = node.meta["val"].shape if _is_tensor(node) else (None,)
    return prod(shape) if all(type(n) is int for n in shape) else None

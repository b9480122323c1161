"""Equal computations done once."""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.canonical import canonical
from torchweld.ir.nodes import Comp, Graph, Node
from torchweld.ir.printer import buffer_text, text
from torchweld.rewrite.flow import is_pure, mutated_buffers, output_buffers, rename, rename_args


def share_equal_nodes(graph: Graph) -> Graph:
    """A node that does what an earlier one did, on the same inputs and into the same layout, goes.

    Two outputs of the graph stay two tensors: a caller may change one of them in place.
    """
    mutable, outputs = mutated_buffers(graph), output_buffers(graph)
    names: dict[str, str] = {}
    made: dict[tuple[str, ...], _Alike] = {}  # by what is read: most nodes are alone there
    kept: list[Node] = []
    for node in graph.nodes:
        node = rename(node, names)
        earlier = None
        if not mutable.intersection((*node.reads, *node.writes)):
            earlier = made.setdefault(node.reads, _Alike(graph)).earlier(node)
        if earlier is None or not _may_replace(earlier, _results(node), outputs):
            kept.append(node)
            continue
        names |= {b: a for a, b in zip(earlier, _results(node)) if b}
        outputs |= {a for a, b in zip(earlier, _results(node)) if b in outputs}
    return replace(graph, nodes=tuple(kept), outputs=rename_args(graph.outputs, names))


class _Alike:
    """Nodes of a graph that read the same buffers, by what they compute. The first is not asked
    before there is a second."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._first = graph, None
        self._by_key: dict[str | None, Node] = {}

    def earlier(self, node: Node) -> tuple[str | None, ...] | None:
        """The results of the first node that computes the same as `node`; None if that is `node`,
        or if it must stay."""
        if self._first is None:
            self._first = node
            return None
        if not self._by_key:
            self._by_key[_key(self._first, self._graph)] = self._first
        key = _key(node, self._graph)
        found = node if key is None else self._by_key.setdefault(key, node)
        return None if found is node else _results(found)


def _results(node: Node) -> tuple[str | None, ...]:
    return node.writes if isinstance(node, Comp) else node.outputs


def _may_replace(earlier, later, outputs: set[str]) -> bool:
    pairs = [(a, b) for a, b in zip(earlier, later) if b is not None]
    return all(a is not None and not (a in outputs and b in outputs) for a, b in pairs)


def _key(node: Node, graph: Graph) -> str | None:
    """Equal for nodes that compute the same from the same buffers; None for one that must stay."""
    if isinstance(node, Comp):
        named, order = canonical(node)
        sources = order[: len(node.reads)]
        body = text(named)
    elif is_pure(node):
        blank = replace(
            node, name="e", outputs=tuple("o" if o else None for o in node.outputs), origins=()
        )
        sources, body = (), text(blank)
    else:
        return None
    layouts = [
        buffer_text(replace(graph.buffers[b], name="b")) if b else "_" for b in _results(node)
    ]
    return "\n".join([*sources, body, *layouts])

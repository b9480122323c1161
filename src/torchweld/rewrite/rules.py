"""The rules as data: what each turns into what. Order matters: each one sees what those before it
left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torchweld.ir.nodes import Comp, Graph
from torchweld.ir.simplify import simplify
from torchweld.rewrite.copies import skip_copies
from torchweld.rewrite.dead import drop_dead_nodes
from torchweld.rewrite.empty import read_nothing_for_nothing
from torchweld.rewrite.moved import make_where_used
from torchweld.rewrite.share import share_equal_nodes
from torchweld.rewrite.turn import turn_axes


@dataclass(frozen=True, slots=True)
class Rule:
    """An exact rewrite of a whole graph. `before` and `after` say it in an example."""

    name: str
    before: str
    after: str
    apply: Callable[[Graph], Graph]


def simplify_bodies(graph: Graph) -> Graph:
    """Each Comp by the rules of ir/simplify.py."""
    nodes = tuple(simplify(n) if isinstance(n, Comp) else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


RULES = (
    Rule("simplify bodies", "y = where(c, x * 1, x)", "y = x", simplify_bodies),
    Rule("make where used", "a = arange on cpu; b = a to cuda", "b = arange on cuda",
         make_where_used),
    Rule("read nothing for nothing", "y = f(x), of no elements", "y = 0", read_nothing_for_nothing),
    Rule("skip copies", "h = copy(x), laid out as x is; y = f(h)", "y = f(x)", skip_copies),
    Rule(
        "share equal nodes",
        "a = f(x); b = f(x); y = a + b",
        "a = f(x); y = a + a",
        share_equal_nodes,
    ),
    Rule("drop dead nodes", "a = f(x); y = g(x)", "y = g(x)", drop_dead_nodes),
    Rule("turn axes", "a = cumsum(x); y[j] = a[-j]", "a = cumsum(x); y[-j] = a[j]", turn_axes),
)

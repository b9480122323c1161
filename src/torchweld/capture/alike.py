"""Numbers of 16 bits that forward and backward both make on the way to a softmax, rounded in both.

    forward:  s = (x * 0.5).half();  m, l = statistics of the rows of s        m and l are saved
    backward: s is made again from x;  w = exp(s - m - l)

Fusion may keep s wide. If the forward has it in memory, for another kernel, and the backward keeps
it wide, rows of w do not add up to one: scores of 100 are off by 0.03 each, and so is a gradient in
which all but nothing cancels.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from torchweld.capture.captured import ROUNDED
from torchweld.capture.scores import depends_on_tangents
from torchweld.capture.wide_scores import NARROW

aten = torch.ops.aten
_PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)


def round_alike(forward: GraphModule, backward: GraphModule) -> None:
    """Marks them, in both graphs. The partitioner keeps the names of nodes."""
    later = depends_on_tangents(backward.graph)
    made = {n.name: n for n in forward.graph.nodes if n.op == "call_function"}
    for node in backward.graph.find_nodes(op="call_function", target=aten.exp.default):
        if node not in later:
            _mark(made, _before(node))


def _mark(made: dict[str, Node], again: set[Node]) -> None:
    """`again`: what weights are made of in the backward. If a product of 16 bits is among it, it is
    logits, which neither graph rounds (scores of attention are float32, see wide_scores.py)."""
    if any(n.target in _PRODUCTS for n in again):
        return
    saved = [made[n.name] for n in again if n.op == "placeholder" and n.name in made]
    known = set[Node]().union(*map(_before, saved))
    for node in again:
        twin = made.get(node.name) if node.op == "call_function" else None
        if twin in known and _dtype(node) in NARROW:
            node.meta[ROUNDED] = twin.meta[ROUNDED] = True


def _dtype(node: Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)


def _before(node: Node) -> set[Node]:
    """It, and all that it is made of."""
    found, todo = set[Node](), [node]
    while todo:
        last = todo.pop()
        if last not in found:
            found.add(last)
            todo += last.all_input_nodes
    return found

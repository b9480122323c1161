"""Slices that calls of convolutions read, as images and weights of their own.

    before: y = convolution_backward(g[:, 8:24], x, w)
    after:  comp t = g[:, 8:24];  y = convolution_backward(t, x, w)

On a GPU, of convolutions that are differentiated: the gradient of a concatenation's part is such a
slice. ATen copies it by a general kernel, once for each call, at a fifth of the memory's rate. A
Comp joins what makes the gradient, and its image has the layout that the call wants.

    before: y = convolution(x[:, :3], g.expand(3, 1, 1, 11))
    after:  comp t = x[:, :3];  comp w = g.expand(...);  y = convolution(t, w)

On a CPU, of those that a kernel of ours makes, which takes whole tensors; the library copies what
is no whole one, too.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Buffer, Extern, Graph, Node, View
from torchweld.ir.views import is_dense
from torchweld.layout.channels import is_whole
from torchweld.layout.whole import whole_copy
from torchweld.plan.convolutions import is_always_own
from torchweld.rewrite.flow import mutated_buffers
from torchweld.targets.target import Target

_BACKWARD, _FORWARD = "aten.convolution_backward.default", "aten.convolution.default"
_IMAGE, _WEIGHT, _BIAS = 0, 1, 2  # places among the arguments of `_FORWARD`


def slices_apart(graph: Graph, target: Target) -> Graph:
    """`graph` with the slices that such calls read in buffers of their own."""
    buffers, nodes = dict(graph.buffers), []
    copies: dict[View, Buffer] = {}
    mutated = mutated_buffers(graph)
    for node in graph.nodes:
        places = _slices(node, graph, target)
        wanted = [k for k in places if node.args[k].buffer not in mutated]
        nodes += _with_copies(node, wanted, graph, copies, buffers)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _slices(node: Node, graph: Graph, target: Target) -> list[int]:
    """The places of arguments that are slices."""
    if not isinstance(node, Extern):
        return []
    if target.kind == "cuda":
        images = (0, 1) if node.target == _BACKWARD else ()
        return [k for k in images if not is_dense(node.args[k])]
    if node.target != _FORWARD or not is_always_own(node, graph, target):
        return []
    image = [] if is_dense(node.args[_IMAGE]) else [_IMAGE]
    views = ((k, node.args[k]) for k in (_WEIGHT, _BIAS))
    return image + [k for k, v in views if isinstance(v, View) and not is_whole(v, graph)]


def _with_copies(
    node: Node, places: list[int], graph: Graph, copies: dict[View, Buffer],
    buffers: dict[str, Buffer],
) -> list[Node]:  # fmt: skip
    """`node` after the copies that it is the first to read, of its arguments at `places`."""
    if not places:
        return [node]
    args, made = list(node.args), []
    for k in places:
        view = args[k]
        if view not in copies:
            found = whole_copy(view, f"{node.name}_slice{k}", graph, node)
            if found is None:
                continue
            copy, comp = found
            copies[view] = buffers[copy.name] = copy
            made.append(comp)
        args[k] = copies[view].view
    return [*made, replace(node, args=tuple(args))]

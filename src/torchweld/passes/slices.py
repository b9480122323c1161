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

from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Node, Store, View
from torchweld.ir.substitute import drop_unit_axes
from torchweld.ir.views import Tensor, contiguous_strides, is_dense, strided
from torchweld.layout.channels import is_whole
from torchweld.plan.convolutions import is_always_own
from torchweld.rewrite.flow import mutated_buffers
from torchweld.targets.target import Target

_BACKWARD, _FORWARD = "aten.convolution_backward.default", "aten.convolution.default"
_IMAGE, _WEIGHT = 0, 1  # places among the arguments of `_FORWARD`


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
    image, weight = node.args[_IMAGE], node.args[_WEIGHT]
    found = [] if is_dense(image) else [_IMAGE]
    return found if is_whole(weight, graph) else [*found, _WEIGHT]


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
            source = graph.buffers[view.buffer]
            slice_ = strided(source, view.shape, view.strides, view.offset)
            if slice_ is None:
                continue
            name, strides = f"{node.name}_slice{k}", contiguous_strides(view.shape)
            copy = replace(source, name=name, shape=view.shape, strides=strides, frozen=False)
            copies[view] = buffers[name] = copy
            made.append(_copying(slice_, copy, node))
        args[k] = copies[view].view
    return [*made, replace(node, args=tuple(args))]


def _copying(source: Tensor, target: Buffer, node: Extern) -> Comp:
    """target[...] = source[...]"""
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(target.shape))
    place = list(map(constant, source.base))
    for i, atom in ((i, atom) for i, dim in zip(axes, source.dims) for atom in dim):
        for d, step in atom.steps:
            place[d] = place[d] + axis(i.name) * step
    body = BodyBuilder()
    value = body.load(source.source, tuple(place), target.dtype)
    store = Store(target.name, tuple(axis(i.name) for i in axes), value)
    comp = Comp(f"{node.name}_slice", axes, body.body, (store,), node.origins)
    return drop_unit_axes(comp)

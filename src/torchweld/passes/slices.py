"""Slices whose convolution is differentiated, as images of their own.

    before: y = convolution_backward(g[:, 8:24], x, w)
    after:  comp t = g[:, 8:24];  y = convolution_backward(t, x, w)

The gradient of a concatenation's part is such a slice. ATen copies it by a general kernel, once for
each call, at a fifth of the memory's rate. A Comp joins what makes the gradient, and its image has
the layout that the call wants.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Node, Store, View
from torchweld.ir.substitute import drop_unit_axes
from torchweld.ir.views import Tensor, contiguous_strides, is_dense, strided
from torchweld.rewrite.flow import mutated_buffers

_CALL = "aten.convolution_backward.default"
_IMAGES = (0, 1)


def slices_apart(graph: Graph) -> Graph:
    """`graph` with the slices that such calls read in buffers of their own."""
    buffers, nodes = dict(graph.buffers), []
    copies: dict[View, Buffer] = {}
    for node in graph.nodes:
        nodes += _with_copies(node, graph, copies, buffers) if _differentiates(node) else (node,)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _differentiates(node: Node) -> bool:
    return isinstance(node, Extern) and node.target == _CALL


def _with_copies(
    node: Extern, graph: Graph, copies: dict[View, Buffer], buffers: dict[str, Buffer]
) -> list[Node]:
    """`node` after the copies that it is the first to read."""
    args, made = list(node.args), []
    for k in _IMAGES:
        view = args[k]
        if is_dense(view) or view.buffer in mutated_buffers(graph):
            continue
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

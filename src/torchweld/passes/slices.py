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

from collections.abc import Sequence
from dataclasses import replace

from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Node, Store, View
from torchweld.ir.size import Size
from torchweld.ir.substitute import drop_unit_axes
from torchweld.ir.views import contiguous_strides, is_dense, refine, strided
from torchweld.layout.channels import is_whole
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
            source = graph.buffers[view.buffer]
            name, strides = f"{node.name}_slice{k}", contiguous_strides(view.shape)
            copy = replace(source, name=name, shape=view.shape, strides=strides, frozen=False)
            comp = _copying(view, source, copy, node)
            if comp is None:
                continue
            copies[view] = buffers[name] = copy
            made.append(comp)
        args[k] = copies[view].view
    return [*made, replace(node, args=tuple(args))]


def _copying(view: View, source: Buffer, target: Buffer, node: Extern) -> Comp | None:
    """target[...] = view[...]; None where the dimensions of `source` do not describe the view."""
    slice_ = strided(source, view.shape, view.strides, view.offset)
    if slice_ is None:
        return _reshaping(view, source, target, node)
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(target.shape))
    place = list(map(constant, slice_.base))
    for i, atom in ((i, atom) for i, dim in zip(axes, slice_.dims) for atom in dim):
        for d, step in atom.steps:
            place[d] = place[d] + axis(i.name) * step
    return _copy(axes, place, [axis(i.name) for i in axes], source, target, node)


def _reshaping(view: View, source: Buffer, target: Buffer, node: Extern) -> Comp | None:
    """The same of all of a contiguous buffer in another shape."""
    extents = refine(*([n for n in shape if n != 1] for shape in (source.shape, view.shape)))
    whole = view.strides == target.strides and view.offset == 0
    if not whole or source.strides != contiguous_strides(source.shape) or extents is None:
        return None
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(extents))
    places = (_grouped(axes, shape) for shape in (source.shape, target.shape))
    return _copy(axes, *places, source, target, node)


def _grouped(axes: Sequence[Axis], shape: Sequence[Size]) -> list[Affine]:
    """Where the point of `axes` is in a tensor of `shape`, each of whose dimensions is some."""
    left, places = list(axes), []
    for size in shape:
        place, extent = constant(0), 1
        while extent != size:
            place = place * left[0].extent + axis(left[0].name)
            extent *= left.pop(0).extent
        places.append(place)
    return places


def _copy(
    axes: tuple[Axis, ...], place: Sequence[Affine], stored: Sequence[Affine], source: Buffer,
    target: Buffer, node: Extern,
) -> Comp:  # fmt: skip
    body = BodyBuilder()
    value = body.load(source.name, tuple(place), target.dtype)
    store = Store(target.name, tuple(stored), value)
    comp = Comp(f"{node.name}_slice", axes, body.body, (store,), node.origins)
    return drop_unit_axes(comp)

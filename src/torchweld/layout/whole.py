"""Views of buffers as buffers of their own, for what takes whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Store, View
from torchweld.ir.size import Size
from torchweld.ir.substitute import drop_unit_axes
from torchweld.ir.views import Tensor, contiguous_strides, refine, strided


def whole_copy(view: View, name: str, graph: Graph, node: Extern) -> tuple[Buffer, Comp] | None:
    """A contiguous buffer `name`, and the Comp that copies `view` to it, which comes from where
    `node` does. None where the dimensions of the view's buffer do not describe it."""
    source, strides = graph.buffers[view.buffer], contiguous_strides(view.shape)
    copy = replace(source, name=name, shape=view.shape, strides=strides, frozen=False, slack=0)
    comp = _copying(view, source, copy, node)
    return None if comp is None else (copy, comp)


def _copying(view: View, source: Buffer, target: Buffer, node: Extern) -> Comp | None:
    """target[...] = view[...]; None where the dimensions of `source` do not describe the view."""
    slice_ = strided(source, view.shape, view.strides, view.offset)
    if slice_ is None or not _stays_inside(slice_, source):
        return _reshaping(view, source, target, node)
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(target.shape))
    place = list(map(constant, slice_.base))
    for i, atom in ((i, atom) for i, dim in zip(axes, slice_.dims) for atom in dim):
        for d, step in atom.steps:
            place[d] = place[d] + axis(i.name) * step
    return _copy(axes, place, [axis(i.name) for i in axes], source, target, node)


def _stays_inside(slice_: Tensor, source: Buffer) -> bool:
    """Whether sizes that symbols name are those of the buffer's dimensions: of others it is not
    known that they end there."""
    atoms = [a for dim in slice_.dims for a in dim if not isinstance(a.extent, int)]
    return all(a.extent == source.shape[d] and step == 1 for a in atoms for d, step in a.steps)


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
    comp = Comp(target.name, axes, body.body, (store,), node.origins)
    return drop_unit_axes(comp)

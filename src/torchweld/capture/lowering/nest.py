"""One loop nest under construction: operands aligned to common axes, reads and stores as affine
maps, reductions over dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Union

from torchweld.capture.lowering.build import GraphBuilder
from torchweld.capture.lowering.expr import Expr, as_dtype, number, where
from torchweld.core.dtypes import DType
from torchweld.core.errors import NotLowered
from torchweld.ir import affine, views
from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Extern,
    Load,
    Ref,
    Store,
    reduced_axes,
    store_axes,
    value_axes,
)
from torchweld.ir.simplify import drop_dead
from torchweld.ir.size import Size, product
from torchweld.ir.views import Atom, Dim, Fill, Tensor

# Where a dimension of an operand is read: a dimension of the nest, an affine index, or a computed
# one.
Place = Union[int, Affine, Expr]
Operand = tuple[
    Tensor, tuple[Union[int, None], ...]
]  # None: read at an index of its own, so kept in one piece
COMPUTED = -1  # such an index, and a computed one: a dimension in pieces is read by its digits


@dataclass(frozen=True, slots=True)
class Spec:
    """What eager would return: sizes, strides in elements, dtype, device."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: DType
    device: str


def aligned(tensor: Tensor, rank: int) -> Operand:
    """The operand read as broadcasting has it: its last dimension with the nest's last."""
    return tensor, tuple(range(rank - tensor.rank, rank))


class Nest:
    """Axes are made from the common refinement of the operands' atoms, so that every map is
    affine. An operand that does not
    fit is copied first. `single`: dimensions that must be one axis (scans)."""

    def __init__(
        self,
        graph: GraphBuilder,
        name: str,
        shape: Sequence[Size],
        operands: Sequence[Operand],
        single=(),
    ) -> None:
        self.graph, self.name, self.shape = graph, name, tuple(shape)
        self.builder = BodyBuilder()
        self.stores: list[Store] = []
        self._replaced: dict[Tensor, Tensor] = {}
        extents = [[] if size == 1 else [size] for size in self.shape]
        for tensor, places in operands:
            self._fit(tensor, places, extents, single)
        self._axes = [self._name_axes(d, sizes) for d, sizes in enumerate(extents)]
        self._index = [_join(axes) for axes in self._axes]

    # -- axes

    def axes_of(self, dims: Sequence[int]) -> tuple[str, ...]:
        return tuple(axis.name for d in dims for axis in self._axes[d])

    def at(self, d: int) -> Affine:
        """The index along dimension d."""
        return self._index[d]

    def position(self, d: int) -> Expr:
        """The index along dimension d as an i64 value."""
        return self.index_value(self._index[d])

    def index_value(self, index: Affine) -> Expr:
        return Expr(self.builder, self.builder.index(index))

    def flat_index(self, dims: Sequence[int] | None = None) -> Affine:
        """The row-major element number over `dims` (all by default)."""
        dims = range(len(self.shape)) if dims is None else dims
        index = affine.constant(0)
        for d in dims:
            index = index * self.shape[d] + self._index[d]
        return index

    # -- values

    def number(self, value, dtype: DType) -> Expr:
        return number(self.builder, value, dtype)

    def read(
        self,
        tensor: Tensor,
        places: Sequence[Place] | None = None,
        *,
        guard: Expr | None = None,
        fill=0,
        exact=False,
    ) -> Expr:
        """The element of `tensor` at the current point, in the stored dtype. `exact` has an effect
        on 16-bit floats alone."""
        tensor = self._replaced.get(tensor, tensor)
        _needs_computable(tensor.dtype)
        places = range(len(self.shape) - tensor.rank, len(self.shape)) if places is None else places
        index = self._map(tensor, places)
        if not isinstance(tensor.source, str):
            value = self._virtual(tensor, index)
            return value if guard is None else where(guard, value, fill)
        held = None if guard is None else guard.value
        dtype, exact = tensor.dtype, exact and tensor.dtype.is_low_precision
        fill = as_dtype(fill, dtype)
        return Expr(self.builder, self.builder.load(tensor.source, index, dtype, held, fill, exact))

    def _virtual(self, tensor: Tensor, index) -> Expr:
        if isinstance(tensor.source, Fill):
            return self.number(tensor.source.value, tensor.dtype)
        (place,) = index  # which a number that counts is itself
        computed = isinstance(place, Ref)
        value = Expr(self.builder, place.value) if computed else self.index_value(place)
        return value.to(tensor.dtype)

    def _map(self, tensor: Tensor, places: Sequence[Place]):
        """The index map of the source: per dimension of it, an affine map or a Ref."""
        sums = [{} for _ in tensor.base]
        consts, computed = list(tensor.base), {}
        for dim, place in zip(tensor.dims, places):
            if not dim:
                continue
            if isinstance(place, int):
                self._add_axes(sums, dim, place)
            elif isinstance(place, Affine):
                _add_affine(sums, consts, dim[0], place)
            else:
                for atom, digit in _digits(dim, place):
                    _add_value(computed, atom, digit)
        maps = [affine.of(s, c) for s, c in zip(sums, consts)]
        return tuple(
            Ref(self._shift(computed[d], m).value) if d in computed else m
            for d, m in enumerate(maps)
        )

    def _add_axes(self, sums: list[dict], dim: Dim, place: int) -> None:
        axes = self._axes[place]
        for atom, axis in zip(views.split_to(dim, [a.extent for a in axes]), axes):
            for d, c in atom.steps:
                sums[d][axis.name] = sums[d].get(axis.name, 0) + c

    def _shift(self, value: Expr, by: Affine) -> Expr:
        return value if by == Affine() else value + self.index_value(by)

    # -- reductions over whole dimensions of the nest

    def reduce(self, monoid: str, value: Expr, dims: Sequence[int]) -> Expr:
        """sum, prod, max, min, any, all. Over extent one it is the value itself."""
        axes = self.axes_of(dims)
        return (
            value
            if not axes
            else Expr(self.builder, self.builder.reduce(monoid, (value.value,), axes))
        )

    def count(self, dims: Sequence[int]) -> Size:
        return product(self.shape[d] for d in dims)

    def mean(self, value: Expr, dims: Sequence[int]) -> Expr:
        return self.reduce("sum", value, dims) / self.count(dims)

    def moments(self, value: Expr, dims: Sequence[int]) -> tuple[Expr, Expr]:
        """(mean, sum of squared deviations); the mean of nothing is NaN."""
        axes = self.axes_of(dims)
        if not axes:
            return value, value - value
        if self.count(dims) == 0:
            return value.lift(math.nan), value.lift(0.0)
        return self._tuple("welford", (value.value,), axes)

    def arg(self, monoid: str, value: Expr, dims: Sequence[int]) -> tuple[Expr, Expr]:
        """(extreme value, its row-major position over `dims`) for argmax and argmin."""
        axes = self.axes_of(dims)
        position = self.index_value(self.flat_index(dims))
        return (
            self._tuple(monoid, (value.value, position.value), axes) if axes else (value, position)
        )

    def _tuple(self, monoid: str, args: tuple[int, ...], axes) -> tuple[Expr, Expr]:
        value = self.builder.reduce(monoid, args, axes)
        first, second = (self.builder.pick(value, item) for item in (0, 1))
        return Expr(self.builder, first), Expr(self.builder, second)

    def scan(self, monoid: str, value: Expr, d: int) -> Expr:
        axes = self.axes_of([d])
        return (
            Expr(self.builder, self.builder.scan(monoid, value.value, axes[0])) if axes else value
        )

    # -- results

    def store(
        self,
        value: Expr,
        spec: Spec,
        dims: Sequence[int | None] | None = None,
        must_round: bool = False,
    ) -> Tensor:
        """A new buffer, laid out as `spec`, holding `value` for each point of `dims` (None: a
        dimension of extent one)."""
        dims = range(len(self.shape)) if dims is None else dims
        axes = [() if d is None else self._axes[d] for d in dims]
        strides = usable_strides(spec)
        shape = [a.extent for group in axes for a in group]
        steps = [s for group, stride in zip(axes, strides) for s in _group_strides(group, stride)]
        buffer = self.graph.buffer(self.name, shape, spec.dtype, steps, spec.device)
        index = tuple(affine.axis(a.name) for group in axes for a in group)
        self.put(buffer, index, value.to(spec.dtype, must_round or self.graph.round_always))
        return _regrouped(buffer, [len(group) for group in axes])

    def put(self, buffer: Buffer, index, value: Expr, **how) -> None:
        _needs_computable(buffer.dtype)
        places = tuple(Ref(i.value) if isinstance(i, Expr) else i for i in index)
        self.stores.append(Store(buffer.name, places, value.value, **how))

    def close(self, op: str = "") -> None:
        """Appends the Comp to the graph, less the values that no store came to need. `op`: what it
        does, where that is not what the call does."""
        axes = tuple(a for group in self._axes for a in group)
        name, stores = self.graph.node_name(self.name), tuple(self.stores)
        origin = replace(self.graph.origin, op=op) if op else self.graph.origin
        comp = Comp(name, axes, self.builder.body, stores, (origin,))
        self.graph.emit(_at_some_points(drop_dead(comp)))

    # -- alignment

    def _fit(self, tensor: Tensor, places, extents: list[list[Size]], single) -> None:
        if tensor in self._replaced:
            tensor = self._replaced[tensor]
        if not self._refine(tensor, places, extents, single):
            self._replaced[tensor] = tensor = stored(self.graph, tensor)
            if not self._refine(tensor, places, extents, single):
                raise NotLowered(f"shapes {tensor.shape} and {self.shape} have no common axes")

    @staticmethod
    def _refine(tensor: Tensor, places, extents, single) -> bool:
        found = {}
        for dim, place in zip(tensor.dims, places):
            if place == COMPUTED and all(isinstance(a.extent, int) for a in dim):
                continue
            if place in (None, COMPUTED) or place in single:
                if len(dim) > 1:
                    return False
            elif dim:
                common = views.refine(found.get(place, extents[place]), [a.extent for a in dim])
                if common is None:
                    return False
                found[place] = common
        for place, common in found.items():
            extents[place] = common
        return True

    @staticmethod
    def _name_axes(d: int, sizes: list[Size]) -> tuple[Axis, ...]:
        if len(sizes) == 1:
            return (Axis(f"i{d}", sizes[0]),)
        return tuple(Axis(f"i{d}_{k}", size) for k, size in enumerate(sizes))


def _add_affine(sums: list[dict], consts: list[Size], atom: Atom, place: Affine) -> None:
    for d, c in atom.steps:
        consts[d] = consts[d] + place.const * c
        for name, k in place.terms:
            sums[d][name] = sums[d].get(name, 0) + k * c


def _digits(dim: Dim, place: Expr) -> Iterator[tuple[Atom, Expr]]:
    """The atoms of a dimension with the index of each, from one that is not negative."""
    for atom in reversed(dim[1:]):
        yield atom, place.remainder(atom.extent)
        place = place.floor_div(atom.extent)
    yield dim[0], place


def _add_value(computed: dict[int, Expr], atom: Atom, place: Expr) -> None:
    for d, c in atom.steps:
        part = place if c == 1 else place * c
        computed[d] = computed[d] + part if d in computed else part


def stored(graph: GraphBuilder, tensor: Tensor, strides: tuple[Size, ...] | None = None) -> Tensor:
    """The tensor in a buffer of its own, with the given strides or contiguous. Equal requests
    share one copy."""
    key = (tensor, strides)
    if key not in graph.copies:
        graph.copies[key] = copied(graph, tensor, strides or views.contiguous_strides(tensor.shape))
    return graph.copies[key]


def copied(
    graph: GraphBuilder, tensor: Tensor, strides: tuple[Size, ...], dtype: DType | None = None
) -> Tensor:
    """The tensor in a new buffer with one dimension for each of its own, as `dtype` if it is
    given."""
    if tensor.dtype.kind == "opaque":
        return _copied_by_aten(graph, tensor, strides)
    spec = Spec(tensor.shape, strides, dtype or tensor.dtype, tensor.device)
    nest = Nest(graph, "copy", tensor.shape, [aligned(tensor, tensor.rank)])
    buffer = graph.buffer("copy", spec.shape, spec.dtype, usable_strides(spec), spec.device)
    value = nest.read(tensor).to(spec.dtype)
    nest.put(buffer, tuple(nest.at(d) for d in range(tensor.rank)), value)
    nest.close()
    return views.whole(buffer)


def _copied_by_aten(graph: GraphBuilder, tensor: Tensor, strides: tuple[Size, ...]) -> Tensor:
    view = graph.view_of(tensor)
    if view is None:
        raise NotLowered(f"no copy of {tensor.dtype} through indices")
    buffer = graph.buffer("copy", tensor.shape, tensor.dtype, strides, tensor.device)
    name, target = graph.node_name("copy"), "aten.clone.default"
    graph.emit(Extern(name, target, (view,), (), (buffer.name,), (), (graph.origin,)))
    return views.whole(buffer)


def _needs_computable(dtype: DType) -> None:
    if dtype.kind == "opaque":
        raise NotLowered(f"no arithmetic on {dtype}")


def reshaped(graph: GraphBuilder, tensor: Tensor, shape: tuple[Size, ...]) -> Tensor:
    """A view where there is one; else the elements laid out flat, which regroup to any shape."""
    view = views.reshape(tensor, shape)
    if view is None:
        key = (tensor, "flat")
        if key not in graph.copies:
            graph.copies[key] = _flat_copy(graph, tensor)
        view = views.reshape(graph.copies[key], shape)
    if view is None:
        raise NotLowered(f"no view of {tensor.shape} as {shape}")
    return view


def _flat_copy(graph: GraphBuilder, tensor: Tensor) -> Tensor:
    nest = Nest(graph, "flatten", tensor.shape, [aligned(tensor, tensor.rank)])
    buffer = graph.buffer("flatten", (product(tensor.shape),), tensor.dtype, (1,), tensor.device)
    nest.put(buffer, (nest.flat_index(),), nest.read(tensor))
    nest.close()
    return views.whole(buffer)


def _at_some_points(comp: Comp) -> Comp:
    """Constants without the empty axes that they were reduced over: they are stored at the points
    of the other axes. (What loads may do so only at points that there are.)"""
    if not any(a.extent == 0 for a in comp.axes) or any(isinstance(i, Load) for i in comp.body):
        return comp
    varies = value_axes(comp.body)
    used = reduced_axes(comp).union(*(store_axes(comp, s, varies) for s in comp.stores))
    return replace(comp, axes=tuple(a for a in comp.axes if a.name in used or a.extent != 0))


def _join(axes: tuple[Axis, ...]) -> Affine:
    index = affine.constant(0)
    for a in axes:
        index = index * a.extent + affine.axis(a.name)
    return index


def usable_strides(spec: Spec) -> tuple[Size, ...]:
    """Strides of a tensor to write: those of the spec unless elements would overlap."""
    overlap = any(s == 0 and n != 1 for s, n in zip(spec.strides, spec.shape))
    return views.contiguous_strides(spec.shape) if overlap else spec.strides


def _group_strides(axes: Sequence[Axis], stride: Size) -> list[Size]:
    strides = []
    for a in reversed(axes):
        strides.append(stride)
        stride = stride * a.extent
    return strides[::-1]


def _regrouped(buffer: Buffer, counts: list[int]) -> Tensor:
    """The buffer's dimensions in groups of `counts`, each group one dimension of the tensor."""
    dims, d = [], 0
    for count in counts:
        dims.append(tuple(Atom(buffer.shape[k], ((k, 1),)) for k in range(d, d + count)))
        d += count
    return Tensor(buffer.name, buffer.dtype, buffer.device, tuple(dims), (0,) * len(buffer.shape))

"""Tensors as lowering sees them: a source and, per logical dimension, atoms that say where an
index lands in it.

An atom is a loop: `extent` points, each moving some of the source's dimensions by a coefficient. A
dimension is a product of atoms,
outermost first; extent one has none. Reshape regroups atoms (splitting where extents divide),
permute reorders dimensions, expand
adds atoms that move nothing, slice scales and shifts. Each of these functions gives None where no
map without div and mod exists.

    x[B, S, 768].view(B * S, 12, 64)    ->  dims ((B@0, S@1), (12@2*64), (64@2))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Union

from torchweld.core.dtypes import DType
from torchweld.ir.nodes import Buffer, View
from torchweld.ir.size import Size, divide, is_negative, product


@dataclass(frozen=True, slots=True)
class Atom:
    """`steps`: (source dimension, coefficient), sorted, no coefficient zero; empty for a
    broadcast."""

    extent: Size
    steps: tuple[tuple[int, Size], ...]

    def scaled(self, factor: Size) -> tuple[tuple[int, Size], ...]:
        return tuple((d, c * factor) for d, c in self.steps)

    def split(self, inner: Size) -> tuple[Atom, Atom]:
        """(outer, inner) where `inner` divides the extent."""
        return Atom(divide(self.extent, inner), self.scaled(inner)), Atom(inner, self.steps)


@dataclass(frozen=True, slots=True)
class Fill:
    """A source that holds one number everywhere and takes no memory."""

    value: float | int | bool


@dataclass(frozen=True, slots=True)
class Iota:
    """A source of one dimension whose element i is i; takes no memory."""


Source = Union[str, Fill, Iota]  # a str names a buffer
Dim = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """`base`: the constant part of the index, per source dimension. `copied`: eager gave it memory
    of its own (a clone) that
    lowering has not: it may not leave the graph without a copy."""

    source: Source
    dtype: DType
    device: str
    dims: tuple[Dim, ...]
    base: tuple[Size, ...] = ()
    copied: bool = False

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(extent(dim) for dim in self.dims)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def buffer(self) -> str | None:
        return self.source if isinstance(self.source, str) else None


def extent(dim: Dim) -> Size:
    return product(atom.extent for atom in dim)


def whole(buffer: Buffer) -> Tensor:
    """All of a buffer, in its own shape."""
    dims = tuple(
        () if size == 1 else (Atom(size, ((d, 1),)),) for d, size in enumerate(buffer.shape)
    )
    return Tensor(buffer.name, buffer.dtype, buffer.device, dims, (0,) * len(buffer.shape))


def filled(value, dtype: DType, device: str, shape: Sequence[Size]) -> Tensor:
    return Tensor(Fill(value), dtype, device, tuple(_broadcast(size) for size in shape))


def merged(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
    """The same points with fewer atoms: extent one dropped, an outer atom that continues its inner
    one joined to it."""
    result: list[Atom] = []
    for atom in atoms:
        if atom.extent == 1:
            continue
        if result and result[-1].steps == atom.scaled(atom.extent):
            result[-1] = Atom(result[-1].extent * atom.extent, atom.steps)
        else:
            result.append(atom)
    return tuple(result)


def reshape(tensor: Tensor, shape: Sequence[Size]) -> Tensor | None:
    """Atoms regrouped; None where a group boundary falls inside an atom that does not divide
    there."""
    if 0 in shape:
        return replace(tensor, dims=tuple(_broadcast(size) for size in shape))
    pool = list(merged([atom for dim in tensor.dims for atom in dim]))
    dims: list[Dim] = []
    for size in reversed(shape):
        group = _take(pool, size)
        if group is None:
            return None
        dims.append(merged(group))
    return None if pool else replace(tensor, dims=tuple(reversed(dims)))


def _take(pool: list[Atom], size: Size) -> list[Atom] | None:
    """Atoms of product `size` off the inner end of `pool`, outermost first."""
    group: list[Atom] = []
    while size != 1:
        if not pool:
            return None
        atom = pool.pop()
        left = divide(size, atom.extent)
        if left is None:
            if divide(atom.extent, size) is None:
                return None
            outer, atom = atom.split(size)
            pool.append(outer)
            left = 1
        group.append(atom)
        size = left
    return group[::-1]


def permute(tensor: Tensor, order: Sequence[int]) -> Tensor:
    return replace(tensor, dims=tuple(tensor.dims[d] for d in order))


def expand(tensor: Tensor, shape: Sequence[Size]) -> Tensor:
    """`shape` as resolved (no -1); dimensions of extent one, and new ones on the left, become
    broadcasts."""
    dims = ((),) * (len(shape) - tensor.rank) + tensor.dims
    return replace(tensor, dims=tuple(dim or _broadcast(size) for dim, size in zip(dims, shape)))


def squeeze(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    return replace(tensor, dims=tuple(dim for d, dim in enumerate(tensor.dims) if d not in dims))


def unsqueeze(tensor: Tensor, at: int) -> Tensor:
    return replace(tensor, dims=(*tensor.dims[:at], (), *tensor.dims[at:]))


def slice_(tensor: Tensor, d: int, start: Size, length: Size, step: int = 1) -> Tensor | None:
    """`length` elements of dimension d from `start`, each `step` on (which may be negative)."""
    dim = tensor.dims[d]
    if extent(dim) == length and start == 0 and step == 1:
        return tensor
    if length == 0:
        return replace(tensor, dims=_with(tensor.dims, d, _broadcast(0)))
    if len(dim) <= 1:
        return _slice_atom(tensor, d, dim, start, length, step)
    inner = extent(dim[1:])
    first, count = divide(start, inner), divide(length, inner)
    if step != 1 or first is None or count is None:
        return None
    outer = _slice_atom(tensor, d, dim[:1], first, count, 1)
    return replace(outer, dims=_with(outer.dims, d, merged((*outer.dims[d], *dim[1:]))))


def _slice_atom(tensor: Tensor, d: int, dim: Dim, start: Size, length: Size, step: int) -> Tensor:
    steps = dim[0].steps if dim else ()
    base = _shifted(tensor.base, steps, start)
    return replace(
        tensor, base=base, dims=_with(tensor.dims, d, merged((Atom(length, _scale(steps, step)),)))
    )


def select(tensor: Tensor, d: int, index: Size) -> Tensor | None:
    """Element `index` (not negative) of dimension d, which goes away."""
    base = tensor.base
    dim = tensor.dims[d]
    for k, atom in enumerate(dim):
        inner = extent(dim[k + 1 :])
        if k == len(dim) - 1:
            at = index
        elif isinstance(index, int) and isinstance(inner, int):
            at, index = divmod(index, inner)
        elif (at := divide(index, inner)) is not None:
            index = 0
        else:
            return None
        base = _shifted(base, atom.steps, at)
    return replace(tensor, base=base, dims=tensor.dims[:d] + tensor.dims[d + 1 :])


def flip(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    """Each atom of the dimensions walked backwards."""
    base, flipped = tensor.base, list(tensor.dims)
    for d in dims:
        for atom in tensor.dims[d]:
            base = _shifted(base, atom.steps, atom.extent - 1)
        flipped[d] = tuple(Atom(a.extent, _scale(a.steps, -1)) for a in tensor.dims[d])
    return replace(tensor, base=base, dims=tuple(flipped))


def diagonal(tensor: Tensor, offset: int, d1: int, d2: int, length: Size) -> Tensor | None:
    """Elements [.., i, .., i + offset, ..] as a last dimension of `length`."""
    first, second = tensor.dims[d1], tensor.dims[d2]
    if len(first) > 1 or len(second) > 1:
        return None
    steps1, steps2 = (dim[0].steps if dim else () for dim in (first, second))
    base = _shifted(tensor.base, steps1, max(0, -offset))
    base = _shifted(base, steps2, max(0, offset))
    sums = dict(steps1)
    for source, coefficient in steps2:
        sums[source] = sums.get(source, 0) + coefficient
    kept = tuple(dim for d, dim in enumerate(tensor.dims) if d not in (d1, d2))
    atom = Atom(length, tuple(sorted((s, c) for s, c in sums.items() if c != 0)))
    return replace(tensor, base=base, dims=(*kept, merged((atom,))))


def unfold(tensor: Tensor, d: int, windows: Size, size: Size, step: int) -> Tensor | None:
    """Windows of `size` every `step` along d; the place in the window becomes the last
    dimension."""
    dim = tensor.dims[d]
    if len(dim) > 1:
        return None
    steps = dim[0].steps if dim else ()
    outer, inner = merged((Atom(windows, _scale(steps, step)),)), merged((Atom(size, steps),))
    return replace(tensor, dims=(*_with(tensor.dims, d, outer), inner))


def strided(
    buffer: Buffer, shape: Sequence[Size], strides: Sequence[Size], offset: Size
) -> Tensor | None:
    """as_strided on a buffer, where each stride is a sum of multiples of the buffer's and stays
    within its dimensions."""
    order = sorted(
        (d for d, s in enumerate(buffer.shape) if s != 1),
        key=lambda d: _rank(buffer.strides[d]),
        reverse=True,
    )
    base, dims = [0] * len(buffer.shape), []
    for d in order:
        if isinstance(offset, int) and isinstance(buffer.strides[d], int) and buffer.strides[d] > 0:
            base[d], offset = divmod(offset, buffer.strides[d])
    if offset != 0:
        return None
    for size, stride in zip(shape, strides):
        step = _step_within(buffer, order, size, stride)
        if step is None:
            return None
        dims.append(merged((Atom(size, step),)))
    candidate = Tensor(buffer.name, buffer.dtype, buffer.device, tuple(dims), tuple(base))
    return candidate if in_bounds(candidate, buffer.shape) else None


def _step_within(
    buffer: Buffer, order: list[int], size: Size, stride: Size
) -> tuple[tuple[int, Size], ...] | None:
    """A step of `stride` as steps along the buffer's dimensions. None: it is no sum of theirs."""
    if size == 1 or stride == 0:
        return ()
    known = [d for d in order if isinstance(buffer.strides[d], int) and buffer.strides[d] > 0]
    if len(known) < len(order) or not isinstance(stride, int):
        factors = ((d, divide(stride, buffer.strides[d])) for d in order if buffer.strides[d] != 0)
        return next((((d, factor),) for d, factor in factors if factor is not None), None)
    steps = []
    for d in known:  # the longest first
        factor, stride = divmod(stride, buffer.strides[d])
        steps += [(d, factor)] if factor else []
    return tuple(sorted(steps)) if stride == 0 else None


def in_bounds(tensor: Tensor, shape: Sequence[Size]) -> bool:
    """Whether every index stays inside a source of `shape`, as far as integers tell."""
    low, high = list(tensor.base), list(tensor.base)
    for atom in (a for dim in tensor.dims for a in dim):
        for d, c in atom.steps:
            if not (isinstance(c, int) and isinstance(atom.extent, int)):
                continue
            reach = c * (atom.extent - 1)
            low[d], high[d] = low[d] + min(0, reach), high[d] + max(0, reach)
    return all(not isinstance(lo, int) or lo >= 0 for lo in low) and all(
        not (isinstance(hi, int) and isinstance(n, int)) or hi < n for hi, n in zip(high, shape)
    )


def as_view(tensor: Tensor, buffer: Buffer) -> View | None:
    """The strided window that `tensor` is on `buffer`, or None where a dimension's atoms do not
    follow one stride."""
    strides = []
    for dim in tensor.dims:
        stride, count = 0, 1
        for atom in reversed(dim):
            step = _linear(atom.steps, buffer.strides)
            if count == 1:
                stride = step
            elif step != stride * count:
                return None
            count = count * atom.extent
        strides.append(stride)
    offset = sum((c * s for c, s in zip(tensor.base, buffer.strides)), 0)
    shape = tensor.shape
    if any(map(is_negative, strides)):
        return None
    return View(buffer.name, shape, _told(shape, strides), offset)


def _told(shape: Sequence[Size], strides: Sequence[Size]) -> tuple[Size, ...]:
    """`strides` with those that do not matter, of one element, as a dense tensor has them:
    libraries take their slow ways for others."""
    told: list[Size] = []
    for size, stride in zip(reversed(shape), reversed(strides)):
        inner = told[-1] * shape[len(shape) - len(told)] if told else 1
        told.append(inner if size == 1 else stride)
    return tuple(reversed(told))


def contiguous_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides; an extent of zero counts as one, as torch has it."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))


def dense_like(buffer: Buffer, name: str, shape: tuple[Size, ...]) -> Buffer:
    """A new buffer of that shape in row-major order, else like `buffer`."""
    return replace(
        buffer, name=name, shape=shape, strides=contiguous_strides(shape), frozen=False
    )


def is_dense(view: View) -> bool:
    """Whether the window's elements fill one stretch of memory, each once. False where symbols
    hide it."""
    dims = [(s, n) for s, n in zip(view.strides, view.shape) if n != 1]
    if not all(isinstance(s, int) for s, _ in dims):
        return view.strides == contiguous_strides(view.shape)
    step = 1
    for stride, size in sorted(dims, key=lambda dim: dim[0]):
        if stride != step:
            return False
        step = step * size
    return True


def same_layout(shape: Sequence[Size], left: Sequence[Size], right: Sequence[Size]) -> bool:
    """Whether two strides address the same elements of `shape`."""
    return 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, left, right))


def refine(left: Sequence[Size], right: Sequence[Size]) -> list[Size] | None:
    """The coarsest factorisation (outermost first) that both factorisations of one extent can be
    split into."""
    x, y, common = list(left), list(right), []
    while x and y:
        a, b = x.pop(), y.pop()
        if a == b:
            common.append(a)
        elif (rest := divide(a, b)) is not None:
            common.append(b)
            x.append(rest)
        elif (rest := divide(b, a)) is not None:
            common.append(a)
            y.append(rest)
        else:
            return None
    return None if x or y else common[::-1]


def split_to(dim: Dim, extents: Sequence[Size]) -> tuple[Atom, ...]:
    """The dimension's atoms split to exactly `extents`, a refinement of theirs."""
    pool, result = list(dim), []
    for size in reversed(extents):
        atom = pool.pop()
        if atom.extent != size:
            outer, atom = atom.split(size)
            pool.append(outer)
        result.append(atom)
    return tuple(reversed(result))


def _broadcast(size: Size) -> Dim:
    return () if size == 1 else (Atom(size, ()),)


def _with(dims: tuple[Dim, ...], d: int, dim: Dim) -> tuple[Dim, ...]:
    return (*dims[:d], dim, *dims[d + 1 :])


def _scale(steps, factor: Size):
    return tuple((d, c * factor) for d, c in steps)


def _shifted(base: tuple[Size, ...], steps, count: Size) -> tuple[Size, ...]:
    moved = list(base)
    for d, c in steps:
        moved[d] = moved[d] + c * count
    return tuple(moved)


def _linear(steps, strides: Sequence[Size]) -> Size:
    return sum((c * strides[d] for d, c in steps), 0)


def _rank(stride: Size) -> int:
    return stride if isinstance(stride, int) else 1 << 62

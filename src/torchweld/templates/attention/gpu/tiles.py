"""The tiles of a score nest on a GPU, each a face of one Triton function.

    rows x keys       scores and all that is pointwise on them; statistics are its rows
    rows x depth      the row factor of an inner contraction
    depth x keys      its key factor
    keys x columns    the key factor of an outer contraction
    rows x columns    the result of one, and what follows it

One more is of rows x keys where every key lies within the mask's bound: its conditions are true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchweld.codegen.triton.scalars import NEAR_ONE
from torchweld.core import dtypes
from torchweld.ir.access import linear, unmerged
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import (
    Buffer,
    Cast,
    Comp,
    Const,
    Index,
    Instr,
    Load,
    Op,
    Reduce,
    Value,
    needed,
)
from torchweld.ir.size import Size, product
from torchweld.ir.substitute import with_operands
from torchweld.templates.attention.gpu.edges import edge_of, implied
from torchweld.templates.attention.gpu.schedule import NestSchedule, batch_of, padded
from torchweld.templates.attention.nest import Nest
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule

LOG2_E = math.log2(math.e)
_MOST_LANES = 1024  # elements of a tile along a side
_NEAR = 2**29  # what is added to where a tile begins
_LARGE = 2.0**20  # a product with log2(e) is rounded by 0.06, which weights of a row all have


class Face(Kernel):
    """A Kernel whose tile indices have 32 bits, as no length has more. Where offsets in memory may
    have more, 64 are used for those alone, and for where a tile begins, not for each of its
    elements: 64-bit arithmetic costs registers. `image`: of a value, the one that is the same here.
    `begins`: where the indices of that name begin, and the lanes from there."""

    image: Mapping[Value, Value] = {}
    begins: dict[str, tuple[str, str]]

    @property
    def is_far(self) -> bool:
        """Whether offsets may not fit in 32 bits."""
        return self.index_type == "tl.int64"

    def facing(self, schedule: Schedule, rows: str = "r", columns: str = "c") -> Face:
        return super().facing(schedule, rows, columns)

    def dimension(self, side: str) -> str:
        """The name of the indices along the rows ("r") or the columns ("c") of the tile."""
        return self._names[side]

    def arg(self, value: Value) -> Value:
        """The first argument of an instruction."""
        return self.body[value].args[0]

    def block(self, name: str, number: str, points: int, axes, covered: Size | None) -> None:
        """The indices `name` of a block of `axes`, one of all that have `covered` points; number
        "" is the only one."""
        lanes = f"tl.arange(0, {points})[{':, None' if name[-1] == 'r' else 'None, :'}]"
        start = f"{number} * {points}" if number else ""
        self.define(name, start, lanes, axes, covered)
        if self.is_far:
            if start:
                self.line(f"{name}0 = tl.full((), {start}, tl.int64)")
            self.begins[name] = f"{name}0" if start else "", lanes

    def address(self, access, along: str, tile: bool = True) -> str:
        if not self.is_far:
            return super().address(access, along, tile)
        with self._products_within(0):
            scalars, lanes = self._parts(access.offset)
            lanes += [f"{self.value(v)} * {self.size(stride)}" for v, stride in access.refs]
        axes = access.offset.axes.union(*(self.axes[v] for v, _ in access.refs))
        if set(self.along(axes)) != set(along):
            lanes.append(f"tl.zeros({self.shape(along)}, tl.int32)")
        start = f"{self.pointer(access.buffer)} + ({' + '.join(scalars or ['0'])})"
        return f"{start} + ({' + '.join(lanes)})" if lanes else start

    def _parts(self, index: Affine) -> tuple[list[str], list[str]]:
        """The terms of a map: where the tile begins, and what is added for each element."""
        scalars, lanes = [self.size(index.const)] if index.const != 0 else [], []
        for axes, name in ((self.schedule.rows, "r"), (self.schedule.columns, "c")):
            name = self._names[name]
            factor = linear(self.accesses, index, axes)
            if factor is None or name not in self.begins:
                lanes += self._terms(index, axes, name)
            elif factor != 0:
                start, lane = self.begins[name]
                scalars += [f"{start} * {self.size(factor)}"] if start else []
                with self._products_within(_NEAR):
                    lanes.append(self._product(lane, factor, _MOST_LANES))
        own = {*self.schedule.rows, *self.schedule.columns}
        scalars += [self._term(a, c) for a, c in index.terms if a not in own]
        return scalars, lanes

    def _expression(self, value: Value) -> str:
        return self._edge(value) or self._distance(value) or super()._expression(value)

    def _edge(self, value: Value) -> str | None:
        """A comparison of a key with what is the same for a row, in 32 bits."""
        edge = None if self.is_far else edge_of(self.body, value, self.schedule.columns)
        if edge is None:
            return None
        place = self.axis_variable(edge.key)
        return f"({place} {'<' if edge.high else '>='} {self.offset(edge.at)})"

    def _distance(self, value: Value) -> str | None:
        """l - i in float32 as the difference of two floats, where that is exact: a conversion for
        each row and key, not for each score."""
        cast = self.body[value]
        index = self.body[cast.arg] if isinstance(cast, Cast) else None
        if not isinstance(index, Index) or cast.dtype != dtypes.f32:
            return None
        terms = dict(index.map.terms)
        tile = self.schedule
        sides = [frozenset(terms) & set(axes) for axes in (tile.rows, tile.columns)]
        if len(terms) != 2 or not all(sides) or not self._exact_in_float32(index.map):
            return None
        texts = [
            f"{self.axis_variable(a)}.to(tl.float32) * {float(c)}" for a, c in index.map.terms
        ]
        return " + ".join([*texts, f"{float(index.map.const)}"])

    def _exact_in_float32(self, index: Affine) -> bool:
        """Whether each of its terms, and each sum of them, is less than 2^24."""
        lengths = [(self.comp.extent(a), c) for a, c in index.terms]
        if not all(isinstance(n, int) for n in (index.const, *sum(lengths, ()))):
            return False
        return abs(index.const) + sum(n * abs(c) for n, c in lengths) < 1 << 24

    def _op(self, value: Value, instr: Op) -> str:
        if self.fast and instr.name == "exp" and (text := self._exp2(instr.args[0])):
            return text
        if self.fast and instr.name == "tanh" and self._rounds_results():
            return NEAR_ONE["tanh"].format(self.value(instr.args[0]))
        if self.fast and instr.name == "div" and self._is_one_side(instr.args[1]):
            return f"{self.value(instr.args[0])} * {self._reciprocal(instr.args[1])}"
        return super()._op(value, instr)

    def _rounds_results(self) -> bool:
        """Whether results have 16 bits. A tanh within 2e-7 of 1 is off by as much of its scale,
        which is 50 and more where scores are bound by it: float32 shows that."""
        stored = (self.body[s.value].dtype for s in self.comp.stores)
        return any(dtype.is_low_precision for dtype in stored)

    def _is_one_side(self, value: Value) -> bool:
        """Whether a value is the same for a row or for a column of the tile."""
        return self.along(self.axes[value]) != "rc"

    def _reciprocal(self, value: Value) -> str:
        """One division for each row or column, not for each point."""
        key = ("reciprocal", value)
        return self.known.get(key) or self.assign(key, f"1.0 / {self.value(value)}")

    def _exp2(self, value: Value) -> str | None:
        """exp(x * c - base), where base is the same for a row or a key, as a power of two. Of
        scores that may be large, the difference is taken first, which costs an operation more for
        each score. As one multiply-add, x * (c * log2(e)) - (base * log2(e)), it is off by the
        rounding of the second product: of -1e9, as masks have it, by up to 64, so that weights are
        2^64, or 2^-64, which float16 does not have."""
        difference = self.body[value]
        if not isinstance(difference, Op) or difference.name != "sub":
            return None
        x, base = difference.args
        if self._is_one_side(x) or not self._is_one_side(base):
            return None
        if self._may_be_large(x):
            return f"tl.exp2(({self.value(x)} - {self.value(base)}) * {LOG2_E!r})"
        text, factor = self.scaled(x)
        key = ("log2", base)
        shift = self.known.get(key) or self.assign(key, f"{self.value(base)} * {LOG2_E!r}")
        return f"tl.exp2({text} * {factor * LOG2_E!r} - {shift})"

    def _may_be_large(self, value: Value) -> bool:
        """Whether what is read, or a constant, is added to products. Products themselves are not
        meant: of so large ones a softmax has one key alone."""
        products = {v for v, i in enumerate(self.body) if isinstance(i, Reduce)}
        behind = (self.body[v] for v in needed(self.body, [value], products))
        return any(map(_is_large, behind))

    def scaled(self, value: Value) -> tuple[str, float]:
        """x and c > 0 where a value is x * c; itself and 1 where it is no such product."""
        instr = self.body[value]
        if value not in self.known and isinstance(instr, Op) and instr.name == "mul":
            for x, c in (instr.args, instr.args[::-1]):
                factor = self.body[c]
                if isinstance(factor, Const) and 0 < factor.value < math.inf:
                    return self.value(x), float(factor.value)
        return self.value(value), 1.0


def _is_large(instr: Instr) -> bool:
    """Whether an instruction gives numbers of any size, or a large one."""
    if isinstance(instr, Const):
        return instr.dtype.is_float and _LARGE < abs(instr.value) < math.inf
    return isinstance(instr, Load) and instr.dtype.is_float


@dataclass(frozen=True, slots=True)
class Tiles:
    """`batch`: axes of which a program has one point; `around`: axes of the keys of which it takes
    one point after the other, and walks over the others in blocks. Faces by the axes of their
    depth or columns."""

    comp: Comp
    nest: Nest
    schedule: NestSchedule
    batch: tuple[str, ...]
    around: tuple[str, ...]
    score: Face
    whole: Face
    left: Mapping[tuple[str, ...], Face] = field(hash=False)
    right: Mapping[tuple[str, ...], Face] = field(hash=False)
    mixed: Mapping[tuple[str, ...], Face] = field(hash=False)
    ends: Mapping[tuple[str, ...], Face] = field(hash=False)

    def points(self, axes: tuple[str, ...]) -> Size:
        return product(self.comp.extent(a) for a in axes)

    @property
    def rows(self) -> Size:
        return self.points(self.schedule.rows)

    @property
    def keys(self) -> Size:
        return self.points(self.schedule.keys)

    def count(self, axes: tuple[str, ...]) -> str:
        """How many points, as a text of 32 bits."""
        points = self.points(axes)
        return str(points) if isinstance(points, int) else f"n_{'_'.join(axes)}"

    @property
    def in_blocks(self) -> list[Face]:
        """The faces of what changes from block to block."""
        return [self.score, self.whole, *self.right.values(), *self.mixed.values()]


def tiles_of(
    comp: Comp, buffers: Mapping[str, Buffer], nest: Nest, s: NestSchedule, fast: bool
) -> Tiles:
    """The faces of `nest`, which `comp` is. `fast`: hardware's approximate functions."""

    def tile(rows, columns, block_rows: int, block_columns: int) -> Schedule:
        return Schedule("grid", rows, columns, block_rows, block_columns, s.num_warps)

    def size(axes: tuple[str, ...]) -> int:
        return padded(product(comp.extent(a) for a in axes))

    depths = tuple(dict.fromkeys(i.depth for i in nest.inners))
    columns = tuple(dict.fromkeys(o.columns for o in nest.outers))
    batch = batch_of(nest, s)
    around = (*(a for a in nest.keys if a not in s.keys), *nest.turns)
    accesses = unmerged(comp, buffers)
    dimensions = (batch, s.rows, s.keys, around, *depths, *columns)
    scores = tile(s.rows, s.keys, s.block_rows, s.block_keys)
    root = Face(accesses, buffers, scores, dimensions)
    root.fast, root.begins = fast, {}
    score, whole = root.facing(scores, "r", "lc"), root.facing(scores, "r", "lc")
    simplify_whole(whole, nest, s)
    left, right, mixed, ends = {}, {}, {}, {}
    for n, axes in enumerate(depths):
        wide = tile(s.rows, axes, s.block_rows, size(axes))
        left[axes] = root.facing(wide, "r", f"d{n}c")
        tall = tile(axes, s.keys, size(axes), s.block_keys)
        right[axes] = root.facing(tall, f"d{n}r", "lc")
    for n, axes in enumerate(columns):
        mixed[axes] = root.facing(tile(s.keys, axes, s.block_keys, size(axes)), "lr", f"e{n}c")
        ends[axes] = root.facing(tile(s.rows, axes, s.block_rows, size(axes)), "r", f"e{n}c")
    return Tiles(comp, nest, s, batch, around, score, whole, left, right, mixed, ends)


def simplify_whole(face: Face, nest: Nest, s: NestSchedule) -> None:
    """Where the bound holds, the conditions that it was made from are known. Its variables have
    names of their own: one that is a tile elsewhere may be a number here, and Triton takes a
    variable that changes in a loop for one of the loop's, whose type must not."""
    face.letter = "w"
    face.image, face.body = with_known(face.body, implied(face.comp, nest, s))


def with_known(
    body: tuple[Instr, ...], truths: Mapping[Value, bool]
) -> tuple[dict[Value, Value], tuple[Instr, ...]]:
    """Each value by the one that it is the same as where `truths` hold, and the body with operands
    replaced.

    where(le(l, i), s, -inf) of a true le(l, i)  ->  s
    """
    image: dict[Value, Value] = {}
    found: list[Instr] = []
    truths = dict(truths)
    for value, instr in enumerate(body):
        instr = with_operands(instr, lambda v: image.get(v, v))
        found.append(instr)
        if isinstance(instr, Op):
            same = _known(instr, truths)
            if isinstance(same, bool):
                truths[value] = same
            elif same is not None:
                image[value] = same
    return image, tuple(found)


def _known(instr: Op, truths: Mapping[Value, bool]) -> Value | bool | None:
    """What an operation is when some of its arguments are true or false."""
    first, *rest = (truths.get(v) for v in instr.args)
    if instr.name == "where" and first is not None:
        return instr.args[1] if first else instr.args[2]
    if instr.name == "logical_not" and first is not None:
        return not first
    if instr.name in ("bit_and", "bit_or"):
        neutral = instr.name == "bit_and"
        for known, other in ((first, instr.args[1]), (*rest, instr.args[0])):
            if known is not None:
                return truths.get(other, other) if known == neutral else known
    return None


def plain_load(face: Kernel, value: Value) -> Load | None:
    """A factor that is read from memory as it is."""
    instr = face.body[value]
    return instr if isinstance(instr, Load) and instr.guard is None else None

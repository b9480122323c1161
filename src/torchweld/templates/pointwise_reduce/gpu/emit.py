"""One Triton function under construction: indices, masks, loads, stores and pointwise values.

Every value is a tile: [1, 1] or a scalar, [BLOCK_R, 1] along rows, [1, BLOCK_C] along columns, or
[BLOCK_R, BLOCK_C]. Broadcasting does the rest. `r` and `c` are the linear indices of the two tile
dimensions; where a dimension has several axes and an access is not linear in them, each axis gets a
variable by division."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from math import frexp, gcd

from torchweld.codegen.source import BufferArg, GridDim, KernelArg, KernelSource, SizeArg
from torchweld.codegen.triton import scalars
from torchweld.codegen.triton.helpers import HELPERS
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.access import Access, Accesses, linear, turned
from torchweld.ir.affine import Affine, constant
from torchweld.ir.nodes import (
    Buffer,
    Cast,
    Const,
    Index,
    Instr,
    Load,
    Op,
    Pick,
    Scan,
    Value,
    instr_axes,
    needed,
    operands,
    store_axes,
)  # fmt: skip
from torchweld.ir.scalar import BITS, TABLE
from torchweld.ir.size import Size, divide, product
from torchweld.templates.pointwise_reduce.gpu.roundings import (
    are_coarse,
    compared_values,
    divides_a_reduction,
    rounded_products,
    sums_exponentials,
    values_added_to_one,
)
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule, extent

_ONE = "1"  # along nothing, but a tile: [1, 1]
_MOST_AHEAD = 24  # loads
_DEEP = 40  # values that one is made of: more are printed in order, not by calls within calls
_MOST_EXPONENT = 120  # of a power of two whose inverse is a normal float32, too
_LEAST_FAR = 2**31
_LITERAL_TYPES = (dtypes.f32, dtypes.i32, dtypes.i64)


@dataclass(frozen=True, slots=True)
class RowStart:
    """Where a row begins, for the accesses with `offset` in common: blocks of columns begin at the
    multiple of `lanes` elements before it, `row_aligned` (`row_shift` elements early)."""

    offset: Affine
    lanes: int


class _Lines:
    """The text so far, at the depth of the innermost block."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.depth = 1

    def add(self, text: str) -> None:
        self.texts.append("    " * self.depth + text)


class Kernel:
    """`rows`/`columns` below are the schedule's: the frame's, except in pointwise kernels, whose
    frame has rows alone. `letter`: what names of variables begin with."""

    letter = "v"
    pointers_of_rows = False  # see `address`
    _near = _LEAST_FAR  # products of an index with a step that may be larger are of 64 bits

    def __init__(
        self,
        accesses: Accesses,
        buffers: Mapping[str, Buffer],
        schedule: Schedule,
        dimensions: Iterable[tuple[str, ...]] | None = None,
    ) -> None:
        """`dimensions`: axes that share a linear index; all of them if None."""
        around = turned(accesses)
        self.scans_from_end = around is not None
        self.accesses, self.buffers, self.schedule = around or accesses, buffers, schedule
        self.comp, self.body = self.accesses.comp, self.accesses.comp.body
        self.axes = _tile_axes(self.body, schedule)
        self.known: dict = {}  # value, or (value, item) -> the variable that holds it
        self.partial_results: dict[Value, list[str]] = {}
        self.helpers: dict[str, str] = {}
        wide = is_wide(accesses, buffers, dimensions)
        self.index_type = "tl.int64" if wide else "tl.int32"
        self.fast = _stores_16_bits(accesses, buffers)
        self.near_one = values_added_to_one(self.body) if self.fast else frozenset()
        stored = [s.value for s in self.comp.stores]
        self.rounded = rounded_products(self.body, stored, coarse=self.fast)
        self.row_start: RowStart | None = None
        self._lines = _Lines()
        self._pointers: dict[str, str] = {}
        self._sizes: dict[Size, str] = {}
        self._masks: set[str] = set()  # tile dimensions that reach out of bounds
        self._names = {"r": "r", "c": "c"}

    def facing(self, schedule: Schedule, rows: str = "r", columns: str = "c") -> Kernel:
        """The same function with other tile dimensions: `schedule`'s, whose indices are named
        `rows` and `columns`. It shares the text, and indices of the same name."""
        other = copy(self)
        other.schedule, other.known = schedule, {}
        other._names = {"r": rows, "c": columns}
        return other

    # text

    def line(self, text: str) -> None:
        self._lines.add(text)

    @contextmanager
    def indented(self, header: str):
        """An indented block; what becomes known inside is forgotten after it."""
        self.line(header)
        known = dict(self.known)
        self._lines.depth += 1
        yield
        self._lines.depth -= 1
        self.known = known

    @property
    def text_lines(self) -> list[str]:
        """What has been written so far."""
        return self._lines.texts

    def range(self, steps: str) -> str:
        """What a loop runs over, its loads as many steps ahead as the schedule says."""
        stages = self.schedule.stages
        return f"tl.range({steps}, num_stages={stages})" if stages > 1 else f"range({steps})"

    def pointer(self, buffer: str) -> str:
        if buffer not in self._pointers:
            self._pointers[buffer] = "p_" + re.sub(r"\W", "_", buffer)
        return self._pointers[buffer]

    def size(self, size: Size) -> str:
        """A literal, or an argument times a literal: Triton finds alignment in the literal."""
        if isinstance(size, int):
            return str(size) if size >= 0 else f"({size})"
        factor = gcd(*(c for _, c in size.terms))
        name = self._sizes.setdefault(divide(size, factor), f"n{len(self._sizes)}")
        return name if factor == 1 else f"({name} * {factor})"

    def source(self, grid: Iterable[GridDim]) -> KernelSource:
        """What has been written, as a function named after the Comp."""
        name = re.sub(r"\W", "_", self.comp.name)
        args: list[KernelArg] = [BufferArg(b) for b in self._pointers]
        args += [SizeArg(s) for s in self._sizes]
        names = ", ".join([*self._pointers.values(), *self._sizes.values()])
        head = [f"\n\n@triton.jit\ndef {name}({names}):"]
        text = HEADER + "".join(self.helpers.values()) + "\n".join(head + self._lines.texts) + "\n"
        signature = [f"*{scalars.SIGNATURE[self.buffers[b].dtype]}" for b in self._pointers]
        signature += ["i64"] * len(self._sizes)
        warps = self.schedule.num_warps
        return KernelSource(
            "triton", name, text, tuple(args), tuple(grid), (), tuple(signature), warps
        )

    # tile dimensions

    @property
    def block_rows(self) -> int:
        return self.schedule.block_rows

    @property
    def block_columns(self) -> int:
        return self.schedule.block_columns

    @property
    def columns(self) -> Size:
        """How many."""
        return extent(self.accesses, self.schedule.columns)

    def define_rows(self, block: str, covered: Size | None) -> None:
        """`r` from the number of its block; `covered`: points that all programs and steps together
        cover, None if not known."""
        if self.schedule.rows:
            lanes = f"tl.arange(0, {self.block_rows})[:, None]"
            start = f"{block} * {self.block_rows}" if self.block_rows > 1 else block
            if self._one_of_rows:
                self.line(f"row = {block}")
                start = "row"
            name, axes = self._names["r"], self.schedule.rows
            self.define(name, start, lanes, axes, covered, one=self._one_of_rows)

    def define_apart(self, dimension: int) -> list[GridDim]:
        """The program's point of the row axes that it has one point of; their part of the grid, its
        `dimension`."""
        axes = self.schedule.apart
        if not axes:
            return []
        self.line(f"outer = {self.program(dimension)}")
        self.split_axes("outer", axes)
        return [GridDim(extent(self.accesses, axes))]

    @property
    def kept_points(self) -> tuple[Size, str]:
        """Of the rows: how many, and the linear index of those of this program, or ""."""
        rows = extent(self.accesses, self.schedule.rows)
        along = self._names["r"] if self.schedule.rows else ""
        if not self.schedule.apart:
            return rows, along
        points = extent(self.accesses, self.schedule.apart) * rows
        return points, f"outer * {self.size(rows)} + {along}"

    @property
    def _one_of_rows(self) -> bool:
        """Whether a block is one row, of several axes. Their indices are scalars then: a tile of
        one number would be loaded by each thread as often as the thread has columns."""
        return self.block_rows == 1 and len(self.schedule.rows) > 1

    def may_be_scalar(self, axes: frozenset[str]) -> bool:
        """Whether what varies along `axes`, of rows at least, may be a scalar in place of a tile of
        one number."""
        return self._one_of_rows and self.schedule.columns[-1] not in axes

    def define_columns(self, start: str, covered: Size | None) -> None:
        lanes = f"tl.arange(0, {self.block_columns})[None, :]"
        if self.row_start is not None:
            self.line(f"at = {start} + {lanes}")
            start, lanes = "at", "(-row_shift)"
        points = self.block_columns if start and self.row_start is None else 0
        self.define(self._names["c"], start, lanes, self.schedule.columns, covered, points)

    def start_of_row(self, access: Access) -> Affine | None:
        """The offset of its first column, if its columns are next to each other in memory."""
        if access.refs or linear(self.accesses, access.offset, self.schedule.columns) != 1:
            return None
        return self.without_columns(access.offset)

    @property
    def column(self) -> str:
        """The linear index along the columns."""
        return self._names["c"]

    def without_columns(self, index: Affine) -> Affine:
        return index.substitute({a: constant(0) for a in self.schedule.columns})

    def align_rows(self, offset: Affine, lanes: int) -> None:
        """From here on, blocks of columns begin at multiples of `lanes` elements (see RowStart)."""
        start = self.offset(offset)
        self.line(f"row_aligned = ({start}) // {lanes} * {lanes}")
        self.line(f"row_shift = {start} - row_aligned")
        self.row_start = RowStart(offset, lanes)

    def program(self, dimension: int) -> str:
        text = f"tl.program_id({dimension})"
        return text if self.index_type == "tl.int32" else f"{text}.to(tl.int64)"

    def define(
        self, name: str, start: str, lanes: str, axes: tuple[str, ...], covered: Size | None,
        uniform: int = 0, one: bool = False,
    ) -> None:  # fmt: skip
        """The linear index `name` of `axes`, and where it needs one its mask. `uniform`: the points
        of a block, if indices that are the same for all of it may be scalars. `one`: `start` is
        the only point, so that the indices of its axes are scalars."""
        self.line(f"{name} = {' + '.join(filter(None, (start, lanes)))}")
        length = extent(self.accesses, axes)
        if length == covered:
            self._masks.discard(name)
        else:
            self._masks.add(name)
            inside = f"{name} < {self.size(length)}"
            early = name == "c" and self.row_start is not None
            self.line(f"{name}m = ({name} >= 0) & ({inside})" if early else f"{name}m = {inside}")
        maps = self._maps() if len(axes) > 1 else ()
        if any(linear(self.accesses, m, axes) is None for m in maps):
            if uniform and length == covered and self._within_one(axes, uniform):
                self._split_start(start, lanes, axes, uniform)
            else:
                self.split_axes(start if one else name, axes)

    def _within_one(self, axes: tuple[str, ...], points: int) -> bool:
        """Whether each block of so many points lies within one step of all axes but the last."""
        inner = self.comp.extent(axes[-1])
        return isinstance(inner, int) and inner % points == 0

    def _split_start(self, start: str, lanes: str, axes: tuple[str, ...], points: int) -> None:
        """As `split_axes`: what is the same for all lanes is worked out, and loaded, once. Triton
        sees no alignment in a remainder, and would load element by element: it is told."""
        for k, axis in enumerate(axes):
            inner = extent(self.accesses, axes[k + 1 :])
            text = f"{start} // {inner}" if inner != 1 else start
            text += "" if k == 0 else f" % {self.comp.extent(axis)}"
            if axis == axes[-1]:
                text = f"tl.multiple_of({text}, {points}) + {lanes}"
            self.line(f"{self.axis_variable(axis)} = {text}")

    def _maps(self) -> Iterable[Affine]:
        yield from (a.offset for a in self.accesses.all)
        yield from (i.map for i in self.body if isinstance(i, Index))

    def split_axes(self, name: str, axes: tuple[str, ...]) -> None:
        """A variable for each of `axes`, from their linear index `name`."""
        for k, axis in enumerate(axes):
            inner = extent(self.accesses, axes[k + 1 :])
            text = name if inner == 1 else f"{name} // {_factor(self.size(inner))}"
            outer = "" if k == 0 else f" % {self.size(self.comp.extent(axis))}"
            self.line(f"{self.axis_variable(axis)} = {text}{outer}")

    def axis_variable(self, axis: str) -> str:
        prefix = "i"
        for axes, dimension in ((self.schedule.rows, "r"), (self.schedule.columns, "c")):
            name = self._names[dimension]
            if (axis,) == axes:
                return name
            if axis in axes and name != dimension:
                prefix = name
        return f"{prefix}_" + re.sub(r"\W", "_", axis)

    def along(self, axes: Iterable[str]) -> str:
        """Which tile dimensions a set of axes touches: "", "r", "c" or "rc"."""
        axes = set(axes)
        return "r" * bool(axes & set(self.schedule.rows)) + "c" * bool(
            axes & set(self.schedule.columns)
        )

    def mask(self, along: str, guard: str = "") -> str:
        """The conjunction of bounds that are needed, or ""."""
        names = (self._names[d] for d in along)
        parts = [f"{name}m" for name in names if name in self._masks]
        return " & ".join([*parts, guard] if guard else parts)

    def masked(self, name: str) -> bool:
        """Whether some points of a linear index are out of bounds."""
        return name in self._masks

    def shape(self, along: str) -> str:
        rows = self.block_rows if "r" in along else 1
        return f"[{rows}, {self.block_columns if 'c' in along else 1}]"

    # values

    def needed(self, targets: Iterable[Value]) -> list[Value]:
        """What has to be computed for `targets`, in order; known values are not entered."""
        return sorted(needed(self.body, targets, stop=self.known) - self.known.keys())

    def operands(self, value: Value) -> tuple[Value, ...]:
        return operands(self.body[value])

    def in_order(self, targets: Iterable[Value]) -> list[Value]:
        """What `targets` need, loads that depend on nothing first, so that many are in flight, but
        for more than registers hold (a window of 49 elements spilled 4 KB a thread). Constants
        appear at their first use as a variable."""
        needed = [v for v in self.needed(targets) if not isinstance(self.body[v], Const)]
        plain = [v for v in needed if isinstance(self.body[v], Load) and not self.operands(v)]
        return list(dict.fromkeys(plain + needed)) if len(plain) <= _MOST_AHEAD else needed

    def compute(self, targets: Iterable[Value]) -> None:
        """Emits the pointwise values that `targets` need."""
        for value in self.in_order(targets):
            self.value(value)

    def value(self, value: Value) -> str:
        """The variable that holds a value, emitting its definition at first use."""
        if value not in self.known:
            behind = self.needed([value])
            if len(behind) > _DEEP:
                self.compute(behind[:-1])
            instr = self.body[value]
            if isinstance(instr, Pick):
                self.known[value] = self.known[(instr.arg, instr.item)]
            else:
                self.assign(value, self._expression(value))
        return self.known[value]

    def assign(self, key, text: str) -> str:
        """A new variable for a result of a reduction."""
        name = self.letter + (str(key) if isinstance(key, int) else f"{key[0]}_{key[1]}")
        if text != name:
            self.line(f"{name} = {text}")
        self.known[key] = name
        return name

    def helper(self, text: str) -> str:
        """`text`, with the helper functions that it calls added to the source."""
        for name in re.findall(r"\b_[a-z_]\w*(?=\()", text):
            if name not in self.helpers:
                source = HELPERS[name]
                self.helper(source.replace(f"def {name}(", ""))
                self.helpers[name] = "\n" + source
        return text

    def cast(self, text: str, source: DType, target: DType) -> str:
        return self.helper(scalars.cast(text, source, target))

    def operation(self, name: str, kind: str, *args: str) -> str:
        return self.helper(scalars.operation(name, kind, self.fast).format(*args))

    def _expression(self, value: Value) -> str:
        instr = self.body[value]
        if isinstance(instr, Const):
            return scalars.typed(instr.value, instr.dtype)
        if isinstance(instr, Index):
            return self._index(instr)
        if isinstance(instr, Load):
            return self._load(value, instr)
        if isinstance(instr, Op) and value in self.near_one and instr.name in scalars.NEAR_ONE:
            return self.helper(scalars.NEAR_ONE[instr.name].format(self.value(instr.args[0])))
        if value in self.rounded:
            return f"libdevice.mul_rn({', '.join(map(self.value, instr.args))})"
        if isinstance(instr, Op):
            return self._op(value, instr)
        if isinstance(instr, Cast):
            return self.cast(self.value(instr.arg), self.body[instr.arg].dtype, instr.dtype)
        raise AssertionError(f"{instr} is emitted by the form of the kernel")

    def _index(self, instr: Index) -> str:
        if not instr.map.axes:
            return f"tl.full((), {self.size(instr.map.const)}, {scalars.TYPES[instr.dtype]})"
        return f"({self.offset(instr.map)}).to({scalars.TYPES[instr.dtype]})"

    def _op(self, value: Value, instr: Op) -> str:
        kind = self.body[instr.args[-1]].dtype.kind
        if TABLE[instr.name].result == "bool":
            kind = self.body[instr.args[0]].dtype.kind
        if power := self._power(instr):
            return power
        args = [self._argument(instr, v) for v in instr.args]
        if instr.name == "div" and self.fast and sums_exponentials(self.body, instr.args[1]):
            return f"{args[0]} * (1 / {args[1]})"  # one division for each row; the sum is >= 1
        above = self.body[instr.args[0]]
        if instr.name == "div" and isinstance(above, Const) and above.value == 1:
            return self.operation("reciprocal", kind, args[1])
        if inverse := self._exact_inverse(instr):
            return f"{args[0]} * {inverse}"
        if divides_a_reduction(self.body, instr):
            return scalars.FLOAT["div"].format(*args)
        if self._shares_divisor(value) and not self.fast:
            return self.helper(scalars.QUOTIENT.format(*args))
        return self.operation(instr.name, "int" if kind == "uint" else kind, *args)

    def _shares_divisor(self, value: Value) -> bool:
        """Whether it is a quotient of float32 whose divisor is the same along a tile dimension."""
        instr = self.body[value]
        if instr.name != "div" or instr.dtype != dtypes.f32:
            return False
        along, divisor = (self.along(self.axes[v]) for v in (value, instr.args[1]))
        return len(divisor) < len(along)

    def _exact_inverse(self, instr: Op) -> str:
        """Of what is divided by, if it is a power of two: a product with it has the same bits, and
        takes one instruction. "" if it is none."""
        divisor = self.body[instr.args[-1]]
        known = instr.name == "div" and isinstance(divisor, Const)
        if not known or instr.dtype not in (dtypes.f32, dtypes.f64):
            return ""
        fraction, exponent = frexp(divisor.value)
        exact = abs(fraction) == 0.5 and abs(exponent) < _MOST_EXPONENT
        return scalars.literal(1 / divisor.value, divisor.dtype) if exact else ""

    def _power(self, instr: Op) -> str:
        """A float to a power that is known and simple, or ""."""
        exponent = self.body[instr.args[-1]]
        if instr.name != "pow" or not isinstance(exponent, Const) or not instr.dtype.is_float:
            return ""
        base = self.value(instr.args[0])
        return self.helper(scalars.power(base, exponent.value, self.fast))

    def _argument(self, instr: Op, value: Value) -> str:
        const = self.body[value]
        others = [v for v in instr.args if not isinstance(self.body[v], Const)]
        literal = instr.name in scalars.LITERAL_ARGUMENTS and others
        if literal and isinstance(const, Const) and const.dtype in _LITERAL_TYPES:
            return scalars.literal(const.value, const.dtype)
        return self.value(value)

    # memory

    def offset(self, index: Affine) -> str:
        """Text of an affine map; a dimension that the map is linear in takes one product."""
        if self._starts_aligned(index):
            return "row_aligned + at"
        rows, columns, same = self._parts_of(index)
        return " + ".join(rows + columns + same or ["0"])

    def _parts_of(self, index: Affine) -> tuple[list[str], list[str], list[str]]:
        """The terms that vary along rows, along columns, and those that all lanes have alike."""
        with self._products_within(self._nearest(index)):
            rows, columns = (
                self._terms(index, axes, self._names[name])
                for axes, name in ((self.schedule.rows, "r"), (self.schedule.columns, "c"))
            )
            same = [self._term(a, c) for a, c in index.terms if a not in self._own]
        return rows, columns, same + ([self.size(index.const)] if index.const != 0 else [])

    def _nearest(self, index: Affine) -> int:
        """Products below it have a sum of 32 bits."""
        if self.index_type == "tl.int32" or _fits_32_bits(index, self.comp.extents):
            return _LEAST_FAR
        share = _LEAST_FAR // (1 + len(index.terms))
        near = isinstance(index.const, int) and abs(index.const) < share
        return min(self._near, share if near else 0)

    @contextmanager
    def _products_within(self, near: int):
        before, self._near = self._near, near
        yield
        self._near = before

    def _starts_aligned(self, index: Affine) -> bool:
        return (
            self.row_start is not None
            and linear(self.accesses, index, self.schedule.columns) == 1
            and self.without_columns(index) == self.row_start.offset
        )

    @property
    def _own(self) -> tuple[str, ...]:
        return self.schedule.rows + self.schedule.columns

    def _terms(self, index: Affine, axes: tuple[str, ...], name: str) -> list[str]:
        factor = linear(self.accesses, index, axes)
        if factor is not None:
            return [] if factor == 0 else [self._product(name, factor, extent(self.accesses, axes))]
        return [self._term(a, index.coefficient(a)) for a in axes if index.coefficient(a) != 0]

    def _term(self, axis: str, coefficient: Size) -> str:
        return self._product(self.axis_variable(axis), coefficient, self.comp.extent(axis))

    def _product(self, name: str, factor: Size, points: Size) -> str:
        """Of an index of so many points."""
        reach = abs(factor) * points if isinstance(factor, int) else factor
        if self._near < _LEAST_FAR and not (isinstance(reach, int) and reach < self._near):
            name = f"{name}.to(tl.int64)"
        return name if factor == 1 else f"{name} * {self.size(factor)}"

    def address(self, access: Access, along: str, tile: bool = True) -> str:
        """A tile of pointers over the dimensions `along`; one pointer where it is "". Without
        `tile` also one where all lanes read the same. With `pointers_of_rows`, tiles that are not
        read in vectors have a pointer for each row, from which columns are known steps away: an
        instruction holds such a step, and no register the sum."""
        apart = self.pointers_of_rows and along == "rc" and self._not_in_vectors(access)
        if apart:
            terms = [" + ".join(part) for part in self._parts_of(access.offset) if part]
        else:
            terms = [self.offset(access.offset)]
            terms += [f"{self.value(v)} * {self.size(stride)}" for v, stride in access.refs]
        axes = access.offset.axes.union(*(self.axes[v] for v, _ in access.refs))
        by_axes = access.refs or linear(self.accesses, access.offset, self.schedule.rows) is None
        scalar = by_axes and along and self.may_be_scalar(axes)
        if set(self.along(axes)) != set(along) or (tile and scalar):
            terms.append(f"tl.zeros({self.shape(along)}, tl.int32)")
        steps = terms if apart else [" + ".join(terms)]
        return " + ".join([self.pointer(access.buffer), *(f"({step})" for step in steps)])

    def _not_in_vectors(self, access: Access) -> bool:
        """Whether columns are not next to each other, or rows begin at no multiple of four."""
        if access.refs or self._starts_aligned(access.offset):
            return False
        others = self.without_columns(access.offset).terms
        beside = linear(self.accesses, access.offset, self.schedule.columns) == 1
        return not beside or any(not isinstance(c, int) or c % 4 for _, c in others)

    def _load(self, value: Value, instr: Load) -> str:
        access = self.accesses.loads[value]
        along = self.along(self.axes[value])
        guard = "" if instr.guard is None else self.value(instr.guard)
        mask = self.mask(along, guard)
        arguments = [self.address(access, along, tile=bool(mask))]
        if mask:
            arguments.append(f"mask={mask}")
        if guard:
            arguments.append(f"other={scalars.literal(instr.fill, instr.dtype)}")
        if along == "c" and self.schedule.rows:
            arguments.append('eviction_policy="evict_last"')  # every program reads it
        return f"tl.load({', '.join(arguments)})"

    def store(self, position: int) -> None:
        """Store number `position` of the Comp. One that combines happens at every point, also along
        axes where all tensors are expanded."""
        store, access = self.comp.stores[position], self.accesses.stores[position]
        along = self.along(self.store_axes(position))
        guard = "" if store.guard is None else self.value(store.guard)
        value = self.value(store.value)
        address = self.address(access, along or _ONE)
        mask = self.mask(along, guard)
        if store.combine is None:
            return self.write("store", address, value, mask)
        value = f"tl.broadcast_to({value}, {self.shape(along)})"
        self.write(f"atomic_{store.combine}", address, value, mask, ', sem="relaxed"')

    def write(self, function: str, address: str, value: str, mask: str, how: str = "") -> None:
        self.line(f"tl.{function}({address}, {value}{f', mask={mask}' if mask else ''}{how})")

    def store_axes(self, position: int) -> frozenset[str]:
        return store_axes(self.comp, self.comp.stores[position], self.axes)


def _tile_axes(body: tuple[Instr, ...], schedule: Schedule) -> tuple[frozenset[str], ...]:
    """For each value, the axes that its tile has. A scan's has all rows of a block, even where they
    are the same: in blocks of several rows Triton (3.6) scans [1, BLOCK_C] wrongly, or not at all.
    """
    rows = frozenset(schedule.rows if schedule.block_rows > 1 else ())
    found: list[frozenset[str]] = []
    for instr in body:
        axes = instr_axes(instr, found)
        found.append(axes | rows if isinstance(instr, Scan) else axes)
    return tuple(found)


def is_wide(
    accesses: Accesses,
    buffers: Mapping[str, Buffer],
    dimensions: Iterable[tuple[str, ...]] | None = None,
) -> bool:
    """Whether some index may not fit into 32 bits; so for every size that is not known.
    `dimensions`: axes that share a linear index."""
    comp = accesses.comp
    extents = comp.extents
    if not all(isinstance(e, int) for e in extents.values()):
        return True
    maps = [a.offset for a in accesses.all] + [i.map for i in comp.body if isinstance(i, Index)]
    spans = [_span(buffers[a.buffer]) for a in accesses.all if a.refs]
    spans += [_points([extents[a] for a in axes]) for axes in dimensions or [tuple(extents)]]
    small = all(isinstance(s, int) and s < _LEAST_FAR for s in spans)
    return not (small and all(_fits_32_bits(m, extents) for m in maps))


def _fits_32_bits(index: Affine, extents: Mapping[str, Size]) -> bool:
    """Whether it does wherever its axes are, and each of its products."""
    reach = [abs(c) * extents.get(n, 1) if isinstance(c, int) else c for n, c in index.terms]
    if not all(isinstance(size, int) for size in (*reach, index.const)):
        return False
    return sum(reach) + abs(index.const) < _LEAST_FAR


def _points(extents: Iterable[int]) -> int:
    """Twice as many as there are: tiles reach beyond the last one by less than as much again."""
    return product([2, *(max(1, e) for e in extents)])


def _span(buffer: Buffer) -> Size:
    return sum(e * s for e, s in zip(buffer.shape, buffer.strides))


def _factor(text: str) -> str:
    return text if text.isalnum() else f"({text})"


def _stores_16_bits(accesses: Accesses, buffers: Mapping[str, Buffer]) -> bool:
    """All results are rounded to 16 bits (sums apart, in which errors cancel), and no intermediate
    value decides anything discrete."""
    body = accesses.comp.body
    computed = [s for s in accesses.comp.stores if not isinstance(body[s.value], Const)]
    results = [s for s in computed if not s.combine] or computed
    narrow = all(buffers[s.buffer].dtype.is_low_precision for s in results)
    return narrow and not _decides(body)


def _decides(body: tuple[Instr, ...]) -> bool:
    rounds = ("floor", "ceil", "round", "trunc", "floor_div", "remainder", *BITS)
    rounded = any(isinstance(i, Op) and i.name in rounds for i in body)
    return rounded or are_coarse(body, compared_values(body))


HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

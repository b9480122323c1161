"""The IR: a graph of computations over buffers. Its grammar:

    Graph   = symbols, buffers, nodes (in an order that respects data flow), inputs, outputs
    Node    = Comp | Extern
    Comp    = axes, body, stores              one loop nest; after planning, one kernel
    Extern  = target, args, outputs           a library call: ATen, cuBLAS, oneDNN, SDPA
    body    = (Const | Index | Load | Op | Cast | Reduce | Scan | Pick)*  SSA: value k is the k-th
    Store   = buffer[index...] <- value, optionally combined with what is there

A lowered ATen operation and a fused kernel are the same thing, a `Comp`: fusion concatenates
bodies. A value lives at the points of the axes that it depends on: `Load` and `Index` on those in
their maps, `Op` and `Cast` on those of their arguments, `Reduce` on its argument's less the reduced
ones. A view, permute, slice, expand or broadcast is an index map, never a node. Softmax over j, for
example, is one Comp:

    comp softmax [i:1024, j:768] {
      %0 = load x[i, j] : f32
      %1 = reduce.max[j] %0 : f32
      %2 = sub %0 %1 : f32
      %3 = exp %2 : f32
      %4 = reduce.sum[j] %3 : f32
      %5 = div %3 %4 : f32
      store y[i, j] %5
    }

Numbers: arithmetic on 16-bit floats is written out: `Load` gives the stored dtype, `Cast` widens to
f32, `Cast` narrows before the `Store`. A narrowing followed by a widening disappears in fusion
unless it is marked `must_round`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

from torchweld.core.dtypes import DType
from torchweld.core.once import once
from torchweld.ir.affine import Affine
from torchweld.ir.size import Size

Value = int  # position of an instruction in its body


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    extent: Size


@dataclass(frozen=True, slots=True)
class Ref:
    """An index that is a computed integer value (embedding, gather, scatter): already in range,
    never negative."""

    value: Value


IndexMap = tuple[Union[Affine, Ref], ...]  # one entry per buffer dimension


@dataclass(frozen=True, slots=True)
class Const:
    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, slots=True)
class Index:
    """The value of an affine map at the current point, i64 (i32 where a kernel is generated:
    narrow.py); a map without axes is a size."""

    map: Affine
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    """buffer[index], or `fill` where `guard` (a b1 value) is false, without touching memory there.

    `exact`: the consumer needs the value as stored (rounded), even when the producer is fused in.
    """

    buffer: str
    index: IndexMap
    dtype: DType
    guard: Value | None = None
    fill: float | int | bool = 0
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    name: str  # a row of ir.scalar.TABLE
    args: tuple[Value, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast:
    """Conversion by value, as torch's `to`. `must_round`: the user asked for it, so fusion keeps
    it."""

    arg: Value
    dtype: DType
    must_round: bool = False


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction of a value over `axes` by a monoid of ir.monoid.TABLE.

    One argument and one result for most. Tuple monoids have several results, read with `Pick`:
    argmax, argmin: args (value, index) -> (value, index), the first of equal ones, NaN wins; an
    index is i64, or i32 in a kernel where 32 bits hold it;
    welford: args (value,) -> (mean, M2), by Chan's merge;
    logsumexp: args (value,) -> (max, sum of exp(value - max)).
    `dtype` is that of result 0.
    """

    monoid: str
    args: tuple[Value, ...]
    axes: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Scan:
    """Inclusive prefix of a value along one axis by a monoid (sum, prod, max, min, logaddexp)."""

    monoid: str
    arg: Value
    axis: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Pick:
    """Result `item` of a tuple reduction."""

    arg: Value
    item: int
    dtype: DType


Instr = Union[Const, Index, Load, Op, Cast, Reduce, Scan, Pick]


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] <- value. `combine`: None overwrites; "add", "max", "min", "mul" combine with
    what is there, in any order (scatter), on a buffer that `init` (a number) fills first, or that
    holds a copy of buffer `init` (a name). "add_runs": "add" of points whose places come in
    ascending order along one axis, to zeros; 16-bit floats are added in float32 and rounded once.
    `guard`: a b1 value; nothing is written where it is false."""

    buffer: str
    index: IndexMap
    value: Value
    combine: str | None = None
    init: float | int | str | None = None
    guard: Value | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node came from: the ATen overload, the module path and the user's source line
    (file:line)."""

    op: str
    module: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Comp:
    """One loop nest. Every store covers all points of the axes that its value and its place depend
    on; one that combines, of all axes that are not reduced."""

    name: str
    axes: tuple[Axis, ...]
    body: tuple[Instr, ...]
    stores: tuple[Store, ...]
    origins: tuple[Origin, ...] = ()
    # Asked for by every pass, of every node: worked out once.
    _reads: tuple[str, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _writes: tuple[str, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers read, each once, in order of first use."""
        if self._reads is None:
            loaded = [i.buffer for i in self.body if isinstance(i, Load)]
            copied = [s.init for s in self.stores if isinstance(s.init, str)]
            object.__setattr__(self, "_reads", tuple(dict.fromkeys(loaded + copied)))
        return self._reads

    @property
    def writes(self) -> tuple[str, ...]:
        if self._writes is None:
            found = tuple(dict.fromkeys(s.buffer for s in self.stores))
            object.__setattr__(self, "_writes", found)
        return self._writes

    @property
    def extents(self) -> dict[str, Size]:
        """Of each axis, by its name."""
        return {a.name: a.extent for a in self.axes}

    def extent(self, axis: str) -> Size:
        for own in self.axes:
            if own.name == axis:
                return own.extent
        raise KeyError(axis)


@dataclass(frozen=True, slots=True)
class View:
    """A strided window on a buffer's memory, as torch.as_strided: `strides` and `offset` in
    elements."""

    buffer: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0

    @property
    def transposed(self) -> View:
        """With its dimensions in reverse order."""
        return View(self.buffer, self.shape[::-1], self.strides[::-1], self.offset)


@dataclass(frozen=True, slots=True)
class Attr:
    """A non-numeric constant argument, by name: Attr("dtype", "bf16"), Attr("layout", "strided"),
    Attr("device", "cuda:0"), Attr("memory_format", "channels_last")."""

    kind: str
    name: str


# float and int stand for themselves; a str is a plain string argument.
Arg = Union[View, Attr, Size, float, bool, str, None, tuple["Arg", ...]]


@dataclass(frozen=True, slots=True)
class Extern:
    """A library call. `target` is an ATen overload ("aten.addmm.default") or a name of
    templates/library/calls.py ("torchweld.linear"). `outputs` name the buffers that receive the
    results, None for a result nobody uses. The buffers' strides are what eager returns; the
    runtime copies if a call ever returns another layout."""

    name: str
    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    outputs: tuple[str | None, ...]
    mutates: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    _reads: tuple[str, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def reads(self) -> tuple[str, ...]:
        if self._reads is None:
            keyword = tuple(arg for _, arg in self.kwargs)
            found = tuple(dict.fromkeys(v.buffer for v in views(self.args + keyword)))
            object.__setattr__(self, "_reads", found)
        return self._reads

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(o for o in self.outputs if o) + self.mutates


Node = Union[Comp, Extern]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory. `strides` in elements; `device` as torch prints it. `frozen`: a parameter
    or constant that does not change between calls unless its version counter says so: what is
    derived from it may be kept. `slack`: elements behind each row that are nobody's, which a kernel
    may write: rows are apart for the sake of their alignment."""

    name: str
    shape: tuple[Size, ...]
    dtype: DType
    strides: tuple[Size, ...]
    device: str = "cpu"
    frozen: bool = False
    slack: int = 0

    @property
    def view(self) -> View:
        """All of it."""
        return View(self.name, self.shape, self.strides)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A shape symbol and how its value is found at a call.

    source: ("size", input position, dimension), ("stride", input position, dimension),
    ("int", input position), or (operation, size, size) with operation floor_div, mod, min or max
    over symbols bound before it.
    `hint`: the value seen at capture.
    """

    name: str
    source: tuple
    hint: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole captured program. `inputs` are positional: a buffer's name, or None for an argument
    that is no tensor or that nothing reads. `outputs`: a View for a tensor, else the Size or
    constant itself."""

    name: str
    symbols: tuple[Symbol, ...]
    buffers: Mapping[str, Buffer] = field(hash=False)
    nodes: tuple[Node, ...]
    inputs: tuple[str | None, ...]
    outputs: tuple[Arg, ...]

    @property
    def hints(self) -> dict[str, int]:
        return {s.name: s.hint for s in self.symbols}


def views(args) -> list[View]:
    """Every View in nested arguments, in order."""
    found: list[View] = []
    for arg in args:
        if isinstance(arg, View):
            found.append(arg)
        elif isinstance(arg, tuple):
            found.extend(views(arg))
    return found


def readers(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """For each buffer that is read, who reads it, in order."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.reads:
            found.setdefault(name, []).append(node)
    return found


def operands(instr: Instr) -> tuple[Value, ...]:
    """The values that an instruction uses."""
    if isinstance(instr, (Op, Reduce)):
        return instr.args
    if isinstance(instr, (Cast, Scan, Pick)):
        return (instr.arg,)
    if isinstance(instr, Load):
        indirect = tuple(r.value for r in instr.index if isinstance(r, Ref))
        return indirect + (() if instr.guard is None else (instr.guard,))
    return ()


def store_operands(store: Store) -> tuple[Value, ...]:
    indirect = tuple(r.value for r in store.index if isinstance(r, Ref))
    return (store.value, *indirect) + (() if store.guard is None else (store.guard,))


def needed(
    body: Sequence[Instr], values: Iterable[Value], stop: Container[Value] = ()
) -> set[Value]:
    """`values` and all that they are made of; those in `stop` are not taken apart."""
    found: set[Value] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if value not in found:
            found.add(value)
            todo.extend(() if value in stop else operands(body[value]))
    return found


def in_order_of_use(body: Sequence[Instr], values: Iterable[Value]) -> list[Value]:
    """`values` and all that they are made of, as these ask for them: each behind its operands, the
    first operand first. No recursion: a body may be thousands of values deep."""
    found: dict[Value, None] = {}
    todo = list(values)[::-1]
    while todo:
        missing = [v for v in operands(body[todo[-1]]) if v not in found]
        if missing and todo[-1] not in found:
            todo.extend(reversed(missing))
        else:
            found.setdefault(todo.pop())
    return list(found)


def store_axes(comp: Comp, store: Store, axes: Sequence[frozenset[str]]) -> frozenset[str]:
    """The axes at whose points a store happens, once at each. `axes`: of each value."""
    found = map_axes(store.index).union(*(axes[v] for v in store_operands(store)))
    if store.combine is None:
        return found
    return found | (frozenset(comp.extents) - reduced_axes(comp))


def reduced_axes(comp: Comp) -> frozenset[str]:
    """The axes that something is reduced along."""
    return frozenset(a for i in comp.body if isinstance(i, Reduce) for a in i.axes)


def map_axes(index: IndexMap) -> frozenset[str]:
    """The axes that the affine entries of an index map depend on."""
    return frozenset().union(*(i.axes for i in index if isinstance(i, Affine)))


def value_axes(body: tuple[Instr, ...]) -> tuple[frozenset[str], ...]:
    """For each value, the axes that it varies along."""
    return _value_axes(tuple(body))


@once(1024)
def _value_axes(body: tuple[Instr, ...]) -> tuple[frozenset[str], ...]:
    found: list[frozenset[str]] = []
    for instr in body:
        found.append(instr_axes(instr, found))
    return tuple(found)


def instr_axes(instr: Instr, known: Sequence[frozenset[str]]) -> frozenset[str]:
    """The axes that one value varies along; `known`: those of the values before it."""
    if isinstance(instr, Index):
        return instr.map.axes
    axes = frozenset().union(*(known[v] for v in operands(instr)))
    if isinstance(instr, Load):
        return axes | map_axes(instr.index)
    if isinstance(instr, Reduce):
        return axes - frozenset(instr.axes)
    return axes | {instr.axis} if isinstance(instr, Scan) else axes


def depends_on_loads(comp: Comp) -> tuple[bool, ...]:
    """For each value, whether it is more than arithmetic on indices and constants."""
    return _depends_on_loads(comp.body)


@once(1024)
def _depends_on_loads(body: tuple[Instr, ...]) -> tuple[bool, ...]:
    found: list[bool] = []
    for instr in body:
        found.append(isinstance(instr, Load) or any(found[v] for v in operands(instr)))
    return tuple(found)

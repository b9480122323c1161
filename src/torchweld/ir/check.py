"""The rules of the IR, checked. Run between passes: a violation is a bug of the pass before.

Each rule raises InvalidIR with the text of the instruction that breaks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import singledispatchmethod

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.errors import InvalidIR
from torchweld.ir import monoid
from torchweld.ir.affine import Affine
from torchweld.ir.bind import SOURCES
from torchweld.ir.in_place import written_elsewhere
from torchweld.ir.nodes import (
    Buffer,
    Cast,
    Comp,
    Const,
    Extern,
    Graph,
    Index,
    IndexMap,
    Instr,
    Load,
    Node,
    Op,
    Pick,
    Reduce,
    Ref,
    Scan,
    Store,
    View,
    map_axes,
    operands,
    store_operands,
    value_axes,
    views,
)
from torchweld.ir.printer import arg_text, instr_text, store_text
from torchweld.ir.scalar import BITS, TABLE
from torchweld.ir.size import Poly, Size, evaluate, symbols

COMBINES = (None, "add", "add_runs", "max", "min", "mul")
_KIND = {"float": "f", "int": "i", "uint": "i", "bool": "b"}


def check_graph(graph: Graph) -> None:
    """Raises InvalidIR unless `graph` obeys every rule. Index bounds are checked at the sizes'
    hints."""
    _check_symbols(graph)
    where = f"graph {graph.name}"
    ready = {n for n in graph.inputs if n is not None}
    _require(ready <= set(graph.buffers), "an input names no buffer", where)
    for node in graph.nodes:
        _check_data_flow(node, graph, ready)
        if isinstance(node, Comp):
            check_comp(node, graph.buffers, graph.hints)
        for view in views(_arguments(node)):
            _check_view(view, graph, f"extern {node.name}")
        ready |= set(node.writes)
    for view in views(graph.outputs):
        _require(view.buffer in ready, f"output {arg_text(view)} is never written", where)
        _check_view(view, graph, where)


def check_comp(
    comp: Comp,
    buffers: Mapping[str, Buffer] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Raises InvalidIR unless `comp` obeys every rule. With `buffers`, ranks and dtypes are checked
    against them; index bounds, where extents are known from numbers or `sizes`."""
    names = [a.name for a in comp.axes]
    _require(len(set(names)) == len(names), "two axes of one name", f"comp {comp.name}")
    _require(comp.stores, "nothing is stored", f"comp {comp.name}")
    checker = _Checker(comp, buffers, sizes or {})
    for position, instr in enumerate(comp.body):
        checker.check_instr(position, instr)
    for store in comp.stores:
        checker.check_store(store)


def _require(condition, what: str, where: str) -> None:
    if not condition:
        raise InvalidIR(what, where=where)


# -- graphs --


def _check_data_flow(node: Node, graph: Graph, ready: set[str]) -> None:
    where = f"{type(node).__name__.lower()} {node.name}"
    mutated = node.mutates if isinstance(node, Extern) else ()
    for name in (*node.reads, *mutated):
        _require(name in graph.buffers, f"{name} is no buffer", where)
        _require(name in ready, f"{name} is read before it is written", where)
    for name in node.writes:
        _require(name in graph.buffers, f"{name} is no buffer", where)
        overwrites = isinstance(node, Comp) and (name in graph.inputs or name in node.reads)
        may_be_there = name in mutated or overwrites
        _require(may_be_there or name not in ready, f"{name} is written twice", where)


def _arguments(node: Node) -> tuple:
    return node.args + tuple(a for _, a in node.kwargs) if isinstance(node, Extern) else ()


def _check_symbols(graph: Graph) -> None:
    known: set[str] = set()
    for s in graph.symbols:
        where = f"symbol {s.name}"
        _require(s.name not in known, "bound twice", where)
        _require(s.source and s.source[0] in SOURCES, f"unknown source {s.source!r}", where)
        _require(_symbols_of(s.source) <= known, "its source is bound later", where)
        known.add(s.name)
    for buffer in graph.buffers.values():
        unknown = _symbols_of(buffer.shape + buffer.strides) - known
        _require(not unknown, f"unknown symbol {sorted(unknown)}", f"buffer {buffer.name}")
    for node in graph.nodes:
        unknown = _symbols_of(_sizes(node) if isinstance(node, Comp) else _arguments(node)) - known
        _require(not unknown, f"unknown symbol {sorted(unknown)}", f"node {node.name}")


def _sizes(comp: Comp) -> Iterable[Size]:
    """Every size in a Comp: extents, and what its maps are made of."""
    yield from (a.extent for a in comp.axes)
    loads = [i for i in comp.body if isinstance(i, Load)]
    maps = [e for access in (*loads, *comp.stores) for e in access.index if isinstance(e, Affine)]
    for index in maps + [i.map for i in comp.body if isinstance(i, Index)]:
        yield index.const
        yield from (c for _, c in index.terms)


def _symbols_of(args: Iterable) -> set[str]:
    found: set[str] = set()
    for arg in args:
        if isinstance(arg, Poly):
            found |= symbols(arg)
        elif isinstance(arg, tuple):
            found |= _symbols_of(arg)
        elif isinstance(arg, View):
            found |= _symbols_of((*arg.shape, *arg.strides, arg.offset))
    return found


def _check_view(view: View, graph: Graph, where: str) -> None:
    """A view stays inside its buffer's memory."""
    where = f"{where}, {arg_text(view)}"
    _require(view.buffer in graph.buffers, "unknown buffer", where)
    _require(len(view.shape) == len(view.strides), "one stride for each dimension", where)
    buffer, hints = graph.buffers[view.buffer], graph.hints
    shape = [evaluate(s, hints) for s in view.shape]
    if 0 in shape:
        return
    low = high = evaluate(view.offset, hints)
    for extent, stride in zip(shape, view.strides):
        reach = (extent - 1) * evaluate(stride, hints)
        low, high = low + min(reach, 0), high + max(reach, 0)
    _require(low >= 0 and high < _span(buffer, hints), "outside the buffer's memory", where)


def _span(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    """Elements from the first to the last of a buffer."""
    shape = [evaluate(s, sizes) for s in buffer.shape]
    strides = [evaluate(s, sizes) for s in buffer.strides]
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides))


# -- Comps --


def _place(store: Store) -> tuple:
    return store.buffer, store.index, store.guard


class _Checker:
    def __init__(self, comp: Comp, buffers, sizes: Mapping[str, int]) -> None:
        self.comp, self.buffers, self.sizes = comp, buffers, sizes
        self.axes = comp.extents
        self.written = written_elsewhere(comp)
        self.at: tuple[int, Instr] | Store | None = None

    @property
    def where(self) -> str:
        """Written where a rule is broken alone: an instruction's text takes longer than its
        rules."""
        text = store_text(self.at) if isinstance(self.at, Store) else instr_text(*self.at)
        return f"comp {self.comp.name}, {text}"

    def check_instr(self, position: int, instr: Instr) -> None:
        self.at = position, instr
        self._check_values(operands(instr), position)
        for value in operands(instr):
            whole = isinstance(instr, Pick) or not self._is_tuple(value)
            self._require(whole, f"%{value} has several results: read them with pick")
        self._rule(instr)

    def check_store(self, store: Store) -> None:
        self.at = store
        self._check_values(store_operands(store), len(self.comp.body))
        self._require(not self._is_tuple(store.value), f"%{store.value} has several results")
        self._require(store.combine in COMBINES, f"unknown combine {store.combine!r}")
        self._require(store.combine is None or store.init is not None, "combines with nothing")
        if isinstance(store.init, str):
            same = self.buffers[store.init].shape == self.buffers[store.buffer].shape
            self._require(same, f"begins as {store.init}, which has another shape")
        self._check_access(store.buffer, store.index, self._dtype(store.value), store.guard)
        self._check_cover(store)

    def _check_number(self, value, dtype) -> None:
        self._require(isinstance(value, (int, float)), "a constant is a number")
        self._require(dtype.is_float or not isinstance(value, float), "a float in an integer type")

    @singledispatchmethod
    def _rule(self, instr) -> None:
        self._require(False, "no instruction")

    @_rule.register
    def _(self, i: Const) -> None:
        self._check_number(i.value, i.dtype)

    @_rule.register
    def _(self, i: Index) -> None:
        self._require(i.dtype in (dtypes.i32, dtypes.i64), "an index is i64, or i32")
        self._check_axes(i.map.axes)

    @_rule.register
    def _(self, i: Load) -> None:
        elsewhere = i.buffer in self.written
        self._require(not elsewhere, f"{i.buffer} is written elsewhere by the same comp")
        self._check_access(i.buffer, i.index, i.dtype, i.guard)
        self._check_number(i.fill, i.dtype)

    @_rule.register
    def _(self, i: Op) -> None:
        self._require(i.name in TABLE, f"{i.name} is not in the table of scalar operations")
        row, types = TABLE[i.name], [self._dtype(a) for a in i.args]
        self._require(len(types) == row.arity, f"{i.name} takes {row.arity} arguments")
        if row.result == "where":
            self._require(types[0] == dtypes.b1, "the condition is not b1")
            types = types[1:]
        for dtype in types:
            self._require(_KIND[dtype.kind] in row.kinds, f"{i.name} does not take {dtype}")
        self._require(len(set(types)) == 1, f"arguments of several types: {types}")
        expected = {"bool": dtypes.b1, "free": i.dtype}.get(row.result, types[-1])
        taken = (types[0], i.dtype)
        self._require(BITS.get(i.name, taken) == taken, f"{i.name} of {types[0]} is no {i.dtype}")
        self._require(i.dtype == expected, f"the result is {expected}")

    @_rule.register
    def _(self, i: Cast) -> None:
        pass  # any type to any type

    @_rule.register
    def _(self, i: Reduce) -> None:
        row = monoid.TABLE.get(i.monoid)
        self._require(row is not None, f"unknown monoid {i.monoid}")
        self._require(row.over is not None, f"no reduction by {i.monoid}")
        self._require(i.axes and len(set(i.axes)) == len(i.axes), "axes, each once")
        self._check_axes(i.axes)
        types = [self._dtype(a) for a in i.args]
        position = types[1:] if i.monoid.startswith("arg") else []
        known = all(dtype in (dtypes.i32, dtypes.i64) for dtype in position)
        counted = len(types) == 1 + i.monoid.startswith("arg")
        self._require(known and counted and types[0] == i.dtype, f"arguments of types {types}")
        self._check_monoid_dtype(i.monoid, i.dtype)

    @_rule.register
    def _(self, i: Scan) -> None:
        row = monoid.TABLE.get(i.monoid)
        self._require(row is not None and row.scan is not None, f"no scan by {i.monoid}")
        self._check_axes((i.axis,))
        self._require(self._dtype(i.arg) == i.dtype, "the result has its argument's type")
        self._check_monoid_dtype(i.monoid, i.dtype)

    @_rule.register
    def _(self, i: Pick) -> None:
        reduce = self.comp.body[i.arg]
        self._require(self._is_tuple(i.arg), f"%{i.arg} has one result")
        self._require(0 <= i.item < monoid.TABLE[reduce.monoid].results, "no such result")
        position = reduce.monoid.startswith("arg") and i.item == 1
        dtype = self._dtype(reduce.args[1]) if position else reduce.dtype
        self._require(i.dtype == dtype, "of another type")

    def _check_monoid_dtype(self, name: str, dtype: DType) -> None:
        logical = name in ("any", "all")
        self._require(not logical or dtype == dtypes.b1, f"{name} is of b1")
        numeric = name in ("welford", "logsumexp", "logaddexp")
        self._require(not numeric or dtype.is_float, f"{name} is of floats")

    def _check_values(self, values: Iterable[int], before: int) -> None:
        for value in values:
            self._require(0 <= value < before, f"%{value} is not computed before")

    def _check_axes(self, names: Iterable[str]) -> None:
        for name in names:
            self._require(name in self.axes, f"unknown axis {name}")

    def _check_access(self, buffer: str, index: IndexMap, dtype: DType, guard: int | None) -> None:
        self._check_axes(map_axes(index))
        for entry in index:
            if isinstance(entry, Ref):
                self._require(self._dtype(entry.value).is_integral, f"%{entry.value} is no integer")
        self._require(guard is None or self._dtype(guard) == dtypes.b1, "the guard is not b1")
        if self.buffers is None:
            return
        self._require(buffer in self.buffers, f"unknown buffer {buffer}")
        layout = self.buffers[buffer]
        self._require(layout.dtype == dtype, f"{buffer} is {layout.dtype}, the value {dtype}")
        self._require(
            len(layout.shape) == len(index), f"{buffer} has {len(layout.shape)} dimensions"
        )
        if guard is None:
            self._check_bounds(index, layout)

    def _check_bounds(self, index: IndexMap, layout: Buffer) -> None:
        """An affine index without a guard stays inside the buffer, where all sizes are known."""
        if any(self._known(extent) == 0 for extent in self.axes.values()):
            return
        for dim, (entry, extent) in enumerate(zip(index, layout.shape)):
            bounds, size = self._bounds(entry), self._known(extent)
            if bounds is not None and size is not None:
                low, high = bounds
                inside = low >= 0 and high < size
                self._require(inside, f"dimension {dim}: [{low}, {high}] is outside [0, {size})")

    def _bounds(self, entry: Affine | Ref) -> tuple[int, int] | None:
        if isinstance(entry, Ref) or self._known(entry.const) is None:
            return None
        low = high = self._known(entry.const)
        for name, coefficient in entry.terms:
            step, extent = self._known(coefficient), self._known(self.axes[name])
            if step is None or extent is None:
                return None
            reach = step * (extent - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def _check_cover(self, store: Store) -> None:
        """A value that varies along an axis is stored to a place that does too, or combined."""
        spans = value_axes(self.comp.body)
        place = map_axes(store.index).union(*(spans[v] for v in store_operands(store)[1:]))
        missing = {a for a in spans[store.value] - place if self.axes[a] != 1}
        self._require(
            store.combine or not missing, f"the place does not vary along {sorted(missing)}"
        )
        same = [s for s in self.comp.stores if _place(s) == _place(store)]
        self._require(len(same) == 1 or store.combine, "stored twice")

    def _known(self, size) -> int | None:
        if isinstance(size, int):
            return size
        return evaluate(size, self.sizes) if symbols(size) <= set(self.sizes) else None

    def _dtype(self, value: int) -> DType:
        return self.comp.body[value].dtype

    def _is_tuple(self, value: int) -> bool:
        instr = self.comp.body[value]
        return isinstance(instr, Reduce) and monoid.TABLE[instr.monoid].results > 1

    def _require(self, condition, what: str) -> None:
        if not condition:
            raise InvalidIR(what, where=self.where)

"""The textual form of the IR, one line for each instruction. `ir/parser.py` reads it back exactly.

graph mlp {
  symbol s0 = ["size", 0, 0] hint 8
  buffer x : f32[s0, 768] strides [768, 1] on cpu
  input x, _
  comp softmax [i:s0, j:768] {
    from "aten.softmax.int" "model.attn" "model.py:7"
    %0 = const 0.5 : f32
    %1 = index 2*i+j : i64
    %2 = load x[i, j] if %9 else 0.0 exact : f32
    %3 = load table[%1, j] : f32                 an indirect index
    %4 = cast %2 : f32                           cast.round: must_round
    %5 = add %2 %4 : f32
    %6 = reduce.argmax[j] %5 %1 : f32
    %7 = pick.1 %6 : i64
    %8 = scan.sum[j] %5 : f32
    store y[i, j] %8 if %9
    store.add z[%1] %8 init 0.0                  init copy x: z starts as a copy of x
  }
  extern mm out, _ = "aten.mm.default"(view(x, [s0, 768], [768, 1], 0), 1.5, key=True) mutates x {
    from "aten.mm.default" "" ""
  }
  output view(y, [s0], [1], 0), 3
}
"""

from __future__ import annotations

import json
import re
from functools import singledispatch

from torchweld.ir.affine import Affine
from torchweld.ir.nodes import (
    Attr,
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
    Op,
    Origin,
    Pick,
    Reduce,
    Ref,
    Scan,
    Store,
    Symbol,
    View,
)
from torchweld.ir.size import Poly

_BARE = re.compile(r"[A-Za-z][\w.]*|_\w[\w.]*")


def text(thing: Graph | Comp | Extern) -> str:
    """The program as text, without a final newline."""
    return "\n".join(_lines(thing))


def instr_text(value: int, instr: Instr) -> str:
    """One instruction: '%3 = exp %2 : f32'."""
    return f"%{value} = {_right_side(instr)} : {instr.dtype}"


def store_text(store: Store) -> str:
    head = f"store.{store.combine}" if store.combine else "store"
    init = "" if store.init is None else f" init {_init(store.init)}"
    place = name_text(store.buffer) + index_text(store.index)
    return f"{head} {place} %{store.value}{init}{_guard(store.guard)}"


def buffer_text(buffer: Buffer) -> str:
    more = " frozen" if buffer.frozen else ""
    more += f" slack {buffer.slack}" if buffer.slack else ""
    place = f"strides {_sizes(buffer.strides)} on {buffer.device}{more}"
    return f"buffer {name_text(buffer.name)} : {buffer.dtype}{_sizes(buffer.shape)} {place}"


def index_text(index: IndexMap) -> str:
    return "[" + ", ".join(f"%{i.value}" if isinstance(i, Ref) else repr(i) for i in index) + "]"


def arg_text(arg) -> str:
    """One argument of an Extern or one output of a graph."""
    if isinstance(arg, View):
        window = f"{_sizes(arg.shape)}, {_sizes(arg.strides)}, {arg.offset!r}"
        return f"view({name_text(arg.buffer)}, {window})"
    if isinstance(arg, Attr):
        return f"attr({json.dumps(arg.kind)}, {json.dumps(arg.name)})"
    if isinstance(arg, tuple):
        return "[" + ", ".join(map(arg_text, arg)) + "]"
    return json.dumps(arg) if isinstance(arg, str) else repr(arg)


def name_text(name: str | None) -> str:
    """`_` stands for None; a name that is no word is quoted."""
    if name is None:
        return "_"
    return name if _BARE.fullmatch(name) else json.dumps(name)


@singledispatch
def _lines(thing) -> list[str]:
    raise TypeError(f"{type(thing).__name__} has no textual form")


@_lines.register
def _(comp: Comp) -> list[str]:
    axes = ", ".join(f"{a.name}:{a.extent!r}" for a in comp.axes)
    body = [instr_text(v, i) for v, i in enumerate(comp.body)]
    inside = _origins(comp.origins) + body + [store_text(s) for s in comp.stores]
    return [f"comp {name_text(comp.name)} [{axes}] {{", *_indent(inside), "}"]


@_lines.register
def _(extern: Extern) -> list[str]:
    outputs = ", ".join(map(name_text, extern.outputs))
    arguments = [*map(arg_text, extern.args), *(f"{k}={arg_text(a)}" for k, a in extern.kwargs)]
    mutates = " mutates " + ", ".join(map(name_text, extern.mutates)) if extern.mutates else ""
    call = f"{json.dumps(extern.target)}({', '.join(arguments)}){mutates}"
    head = f"extern {name_text(extern.name)} {outputs} = {call} {{"
    return [head, *_indent(_origins(extern.origins)), "}"]


@_lines.register
def _(graph: Graph) -> list[str]:
    inside = [_symbol(s) for s in graph.symbols] + [buffer_text(b) for b in graph.buffers.values()]
    inside.append("input " + ", ".join(map(name_text, graph.inputs)))
    for node in graph.nodes:
        inside += _lines(node)
    inside.append("output " + ", ".join(map(arg_text, graph.outputs)))
    return [f"graph {name_text(graph.name)} {{", *_indent(inside), "}"]


@singledispatch
def _right_side(instr) -> str:
    raise TypeError(f"{instr!r} is no instruction")


@_right_side.register
def _(i: Const) -> str:
    return f"const {i.value!r}"


@_right_side.register
def _(i: Index) -> str:
    return f"index {i.map!r}"


@_right_side.register
def _(i: Load) -> str:
    fill = "" if i.guard is None and repr(i.fill) == "0" else f" else {i.fill!r}"
    place = name_text(i.buffer) + index_text(i.index)
    return f"load {place}{_guard(i.guard)}{fill}{' exact' if i.exact else ''}"


@_right_side.register
def _(i: Op) -> str:
    return f"{i.name} {_values(i.args)}"


@_right_side.register
def _(i: Cast) -> str:
    return f"cast.round %{i.arg}" if i.must_round else f"cast %{i.arg}"


@_right_side.register
def _(i: Reduce) -> str:
    return f"reduce.{i.monoid}[{', '.join(i.axes)}] {_values(i.args)}"


@_right_side.register
def _(i: Scan) -> str:
    return f"scan.{i.monoid}[{i.axis}] %{i.arg}"


@_right_side.register
def _(i: Pick) -> str:
    return f"pick.{i.item} %{i.arg}"


def _symbol(symbol: Symbol) -> str:
    return f"symbol {name_text(symbol.name)} = {arg_text(symbol.source)} hint {symbol.hint}"


def _origins(origins: tuple[Origin, ...]) -> list[str]:
    return [" ".join(["from", *map(json.dumps, (o.op, o.module, o.source))]) for o in origins]


def _values(values: tuple[int, ...]) -> str:
    return " ".join(f"%{v}" for v in values)


def _guard(guard: int | None) -> str:
    return "" if guard is None else f" if %{guard}"


def _init(init: float | int | str) -> str:
    return f"copy {name_text(init)}" if isinstance(init, str) else repr(init)


def _sizes(sizes: tuple[int | Poly | Affine, ...]) -> str:
    return "[" + ", ".join(map(repr, sizes)) + "]"


def _indent(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]

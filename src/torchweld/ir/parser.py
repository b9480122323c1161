"""Reads the textual form of the IR (grammar: `ir/printer.py`): parse_comp(text(comp)) == comp.

Blank lines and `# comments` are allowed. A name inside an index is an axis if the Comp has one of
that name, else a symbol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import torch

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.errors import InvalidIR
from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import (
    Attr,
    Axis,
    Buffer,
    Cast,
    Comp,
    Const,
    Extern,
    Graph,
    Index,
    Load,
    Node,
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
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import Poly, Size, symbol

_TOKEN = re.compile(
    r"""\s*(?: \#.* | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<float>\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+) | (?P<int>\d+)
    | (?P<value>%\d+) | (?P<name>[A-Za-z_][\w.]*) | (?P<sign>[][{}(),:=*+-]) )""",
    re.VERBOSE,
)
_NUMBERS = {"inf": float("inf"), "nan": float("nan"), "True": True, "False": False}


def parse_comp(text: str) -> Comp:
    """The Comp that `text` describes. Raises InvalidIR with the line number."""
    return _whole(text, lambda lines: _comp(lines, lines.next()))


def parse_graph(text: str) -> Graph:
    """The Graph that `text` describes. Raises InvalidIR with the line number."""
    return _whole(text, _graph)


class _Line:
    """A cursor over the tokens (kind, text) of one line."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text, self.at = number, text, 0
        self.tokens: list[tuple[str, str]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error(f"cannot read {text[position:].strip()!r}")
            position = match.end()
            if match.lastgroup:
                self.tokens.append((match.lastgroup, match[match.lastgroup]))

    def error(self, what: str) -> InvalidIR:
        return InvalidIR(what, where=f"line {self.number}: {self.text.strip()}")

    @property
    def done(self) -> bool:
        return self.at == len(self.tokens)

    def sees(self, token: str) -> bool:
        return not self.done and self.tokens[self.at] == self._key(token)

    def accept(self, token: str) -> bool:
        found = self.sees(token)
        self.at += found
        return found

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected {token!r}, found {self._rest()}")

    def take(self, *kinds: str) -> str:
        if self.done or self.tokens[self.at][0] not in kinds:
            raise self.error(f"expected a {' or '.join(kinds)}, found {self._rest()}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def finish(self) -> None:
        if not self.done:
            raise self.error(f"unexpected {self._rest()}")

    def sequence(self, item: Callable, close: str) -> tuple:
        """item, item, ... close"""
        items = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item(self))
        return tuple(items)

    def list(self, item: Callable) -> tuple:
        """item, item, ... to the end of the list: what follows is no comma"""
        items = [item(self)]
        while self.accept(","):
            items.append(item(self))
        return tuple(items)

    def _rest(self) -> str:
        return "the end of the line" if self.done else repr(self.tokens[self.at][1])

    @staticmethod
    def _key(token: str) -> tuple[str, str]:
        return ("name" if token[0].isalpha() or token[0] == "_" else "sign"), token


class _Lines:
    def __init__(self, text: str) -> None:
        lines = [_Line(n, t) for n, t in enumerate(text.splitlines(), 1)]
        self.lines, self.at = [line for line in lines if line.tokens], 0

    def next(self) -> _Line:
        if self.at == len(self.lines):
            last = self.lines[-1] if self.lines else _Line(1, "")
            raise last.error("the text ends too early")
        self.at += 1
        return self.lines[self.at - 1]


def _whole(text: str, read: Callable):
    lines = _Lines(text)
    result = read(lines)
    if lines.at != len(lines.lines):
        raise lines.next().error("unexpected text after the end")
    return result


# -- graphs --


def _graph(lines: _Lines) -> Graph:
    line = lines.next()
    line.expect("graph")
    name = _name(line)
    line.expect("{")
    symbols, buffers, nodes, inputs, outputs = [], {}, [], (), ()
    while not (line := lines.next()).sees("}"):
        if line.accept("symbol"):
            symbols.append(_symbol(line))
        elif line.accept("buffer"):
            buffer = _buffer(line)
            buffers[buffer.name] = buffer
        elif line.accept("input"):
            inputs = () if line.done else line.list(_optional_name)
        elif line.accept("output"):
            outputs = () if line.done else line.list(_arg)
        else:
            nodes.append(_node(lines, line))
            continue
        line.finish()
    return Graph(name, tuple(symbols), buffers, tuple(nodes), inputs, outputs)


def _node(lines: _Lines, line: _Line) -> Node:
    return _extern(lines, line) if line.sees("extern") else _comp(lines, line)


def _symbol(line: _Line) -> Symbol:
    name = _name(line)
    line.expect("=")
    source = _arg(line)
    line.expect("hint")
    return Symbol(name, source, _integer(line))


def _buffer(line: _Line) -> Buffer:
    name = _name(line)
    line.expect(":")
    dtype, shape = _dtype(line), _sizes(line)
    line.expect("strides")
    strides = _sizes(line)
    line.expect("on")
    device = line.take("name")
    if line.accept(":"):
        device += ":" + line.take("int")
    frozen = line.accept("frozen")
    slack = int(line.take("int")) if line.accept("slack") else 0
    return Buffer(name, shape, dtype, strides, device, frozen, slack)


def _extern(lines: _Lines, line: _Line) -> Extern:
    line.expect("extern")
    name = _name(line)
    outputs = () if line.sees("=") else line.list(_optional_name)
    line.expect("=")
    target = json.loads(line.take("string"))
    line.expect("(")
    args, kwargs = [], []
    for key, arg in line.sequence(_keyword, ")"):
        if key is None:
            args.append(arg)
        else:
            kwargs.append((key, arg))
    mutates = line.list(_name) if line.accept("mutates") else ()
    line.expect("{")
    line.finish()
    origins = []
    while not (line := lines.next()).sees("}"):
        origins.append(_origin(line))
    return Extern(name, target, tuple(args), tuple(kwargs), outputs, mutates, tuple(origins))


def _keyword(line: _Line):
    following = line.tokens[line.at + 1 : line.at + 2]
    if following != [("sign", "=")]:
        return None, _arg(line)
    key = line.take("name")
    line.expect("=")
    return key, _arg(line)


def _arg(line: _Line):
    if line.accept("["):
        return line.sequence(_arg, "]")
    if line.accept("view"):
        return _view(line)
    if line.accept("attr"):
        line.expect("(")
        kind, name = line.sequence(lambda l: json.loads(l.take("string")), ")")
        return Attr(kind, name)
    if line.accept("None"):
        return None
    if not line.done and line.tokens[line.at][0] == "string":
        return json.loads(line.take("string"))
    return _number(line) if _is_number(line) else _size(line)


def _view(line: _Line) -> View:
    line.expect("(")
    buffer = _name(line)
    line.expect(",")
    shape = _sizes(line)
    line.expect(",")
    strides = _sizes(line)
    line.expect(",")
    offset = _size(line)
    line.expect(")")
    return View(buffer, shape, strides, offset)


# -- Comps --


def _comp(lines: _Lines, line: _Line) -> Comp:
    line.expect("comp")
    name = _name(line)
    line.expect("[")
    axes = line.sequence(_axis, "]")
    line.expect("{")
    line.finish()
    names = frozenset(a.name for a in axes)
    origins, body, stores = [], [], []
    while not (line := lines.next()).sees("}"):
        if line.sees("from"):
            origins.append(_origin(line))
        elif not line.done and line.tokens[0][0] == "value":
            body.append(_instr(line, names, len(body)))
        else:
            stores.append(_store(line, names))
        line.finish()
    return Comp(name, axes, tuple(body), tuple(stores), tuple(origins))


def _axis(line: _Line) -> Axis:
    name = line.take("name")
    line.expect(":")
    return Axis(name, _size(line))


def _origin(line: _Line) -> Origin:
    line.expect("from")
    return Origin(*(json.loads(line.take("string")) for _ in range(3)))


def _instr(line: _Line, axes: frozenset[str], position: int):
    value = _value(line)
    if value != position:
        raise line.error(f"expected %{position}: values are numbered in order")
    line.expect("=")
    head, _, rest = line.take("name").partition(".")
    read = _INSTRUCTIONS.get(head, _op if head in TABLE else None)
    if read is None:
        raise line.error(f"{head!r} is no instruction and not in the table of scalar operations")
    fields = read(line, axes, rest if head in _INSTRUCTIONS else head)
    line.expect(":")
    return fields(_dtype(line))


# Each reads what stands between the name and the dtype, and returns a function of the dtype.


def _const(line, axes, _):
    value = _number(line)
    return lambda dtype: Const(value, dtype)


def _index(line, axes, _):
    index = _affine(line, axes)
    return lambda dtype: Index(index, dtype)


def _load(line, axes, _):
    buffer, index = _name(line), _index_map(line, axes)
    guard = _value(line) if line.accept("if") else None
    fill = _number(line) if line.accept("else") else 0
    exact = line.accept("exact")
    return lambda dtype: Load(buffer, index, dtype, guard, fill, exact)


def _op(line, axes, name):
    args = _values(line)
    return lambda dtype: Op(name, args, dtype)


def _cast(line, axes, mark):
    arg = _value(line)
    return lambda dtype: Cast(arg, dtype, mark == "round")


def _reduce(line, axes, monoid):
    line.expect("[")
    over = line.sequence(lambda l: l.take("name"), "]")
    args = _values(line)
    return lambda dtype: Reduce(monoid, args, over, dtype)


def _scan(line, axes, monoid):
    line.expect("[")
    axis = line.take("name")
    line.expect("]")
    arg = _value(line)
    return lambda dtype: Scan(monoid, arg, axis, dtype)


def _pick(line, axes, item):
    arg = _value(line)
    return lambda dtype: Pick(arg, int(item), dtype)


_INSTRUCTIONS = {
    "const": _const,
    "index": _index,
    "load": _load,
    "cast": _cast,
    "reduce": _reduce,
    "scan": _scan,
    "pick": _pick,
}


def _store(line: _Line, axes: frozenset[str]) -> Store:
    head, _, combine = line.take("name").partition(".")
    if head != "store":
        raise line.error(f"expected an instruction, 'store', 'from' or '}}', found {head!r}")
    buffer, index, value = _name(line), _index_map(line, axes), _value(line)
    init = None
    if line.accept("init"):
        init = _name(line) if line.accept("copy") else _number(line)
    guard = _value(line) if line.accept("if") else None
    return Store(buffer, index, value, combine or None, init, guard)


def _index_map(line: _Line, axes: frozenset[str]):
    line.expect("[")
    return line.sequence(lambda l: _index_entry(l, axes), "]")


def _index_entry(line: _Line, axes: frozenset[str]) -> Affine | Ref:
    if line.tokens[line.at : line.at + 1] and line.tokens[line.at][0] == "value":
        return Ref(_value(line))
    return _affine(line, axes)


# -- names, numbers, sizes --


def _name(line: _Line) -> str:
    token = line.take("name", "string")
    return json.loads(token) if token.startswith('"') else token


def _optional_name(line: _Line) -> str | None:
    return None if line.accept("_") else _name(line)


def _dtype(line: _Line) -> DType:
    name = line.take("name")
    if name in dtypes.BY_NAME:
        return dtypes.BY_NAME[name]
    opaque = getattr(torch, name, None)  # one that only library calls read and write
    if not isinstance(opaque, torch.dtype):
        raise line.error(f"unknown dtype {name!r}")
    return DType(name, "opaque", opaque.itemsize * 8)


def _value(line: _Line) -> int:
    return int(line.take("value")[1:])


def _values(line: _Line) -> tuple[int, ...]:
    values = []
    while not line.done and line.tokens[line.at][0] == "value":
        values.append(_value(line))
    return tuple(values)


def _is_number(line: _Line) -> bool:
    """A float or bool literal is next (an integer alone is a size)."""
    at = line.at + line.sees("-")
    kind, token = line.tokens[at] if at < len(line.tokens) else ("", "")
    return kind == "float" or token in _NUMBERS


def _number(line: _Line) -> float | int | bool:
    negative = line.accept("-")
    token = line.take("float", "int", "name")
    if token in _NUMBERS:
        number = _NUMBERS[token]
    elif token[0].isdigit():
        number = int(token) if token.isdigit() else float(token)
    else:
        raise line.error(f"{token!r} is no number")
    return -number if negative else number


def _integer(line: _Line) -> int:
    size = _size(line)
    if isinstance(size, Poly):
        raise line.error(f"expected an integer, found {size!r}")
    return size


def _sizes(line: _Line) -> tuple[Size, ...]:
    line.expect("[")
    return line.sequence(_size, "]")


def _size(line: _Line) -> Size:
    """term (+|- term)*"""
    total = _term(line)
    while line.sees("+") or line.sees("-"):
        sign = 1 if line.accept("+") else (line.expect("-"), -1)[1]
        total = total + sign * _term(line)
    return total


def _term(line: _Line) -> Size:
    product = _factor(line)
    while line.accept("*"):
        product = product * _factor(line)
    return product


def _factor(line: _Line) -> Size:
    if line.accept("-"):
        return -_factor(line)
    if line.accept("("):
        inner = _size(line)
        line.expect(")")
        return inner
    token = line.take("int", "name")
    return int(token) if token.isdigit() else symbol(token)


def _affine(line: _Line, axes: frozenset[str]) -> Affine:
    """A polynomial in axes and symbols, linear in the axes."""
    size = _size(line)
    result = affine.constant(0)
    for monomial, coefficient in size.terms if isinstance(size, Poly) else (((), size),):
        over = [name for name in monomial if name in axes]
        if len(over) > 1:
            raise line.error(f"{'*'.join(over)} is not affine")
        factor = coefficient
        for name in monomial:
            factor = factor if name in axes else factor * symbol(name)
        result = result + (affine.axis(over[0]) * factor if over else factor)
    return result

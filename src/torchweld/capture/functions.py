"""Functions that are like others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType


def with_code(function: FunctionType, code: CodeType, closure: tuple | None) -> FunctionType:
    """`function` with other code for the same arguments, which closes over the cells `closure`."""
    made = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    return made


def locals_of(function: FunctionType) -> Callable[..., dict] | None:
    """A function that gives its arguments by the names that `function` has for them, and what that
    closes over. None where a name is none of Python's, as a comprehension's, or a cell is empty."""
    code, cells = function.__code__, dict(zip(function.__code__.co_freevars, _cells(function)))
    names, rest, keywords = inspect.getargs(code)
    listed, positional = list(names), code.co_argcount
    if rest or len(names) > positional:
        listed.insert(positional, f"*{rest or ''}")
    if code.co_posonlyargcount:
        listed.insert(code.co_posonlyargcount, "/")
    if keywords:
        listed.append(f"**{keywords}")
    known = [n for n in (*names, rest, keywords, *cells) if n is not None]
    if not all(n.isidentifier() for n in known) or not all(map(_is_filled, cells.values())):
        return None
    given = ", ".join(f"{n!r}: {n}" for n in known)
    text = f"def outer({', '.join(cells)}):\n  return lambda {', '.join(listed)}: {{{given}}}"
    namespace: dict = {}
    exec(text, namespace)
    made = namespace["outer"](*cells)
    closure = tuple(cells[n] for n in made.__code__.co_freevars)
    return with_code(function, made.__code__, closure)


def _cells(function: FunctionType) -> tuple:
    return function.__closure__ or ()


def _is_filled(cell) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True

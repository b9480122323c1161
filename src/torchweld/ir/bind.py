"""The value of each shape symbol at a call."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from torchweld.ir.nodes import Symbol
from torchweld.ir.size import evaluate

_FROM_INPUT = {
    "size": lambda inputs, position, dim: inputs[position].shape[dim],
    "stride": lambda inputs, position, dim: inputs[position].stride(dim),
    "int": lambda inputs, position: inputs[position],
}
_FROM_SIZES = {"floor_div": operator.floordiv, "mod": operator.mod, "min": min, "max": max}
SOURCES = frozenset(_FROM_INPUT) | frozenset(_FROM_SIZES)


def bind(symbols: Iterable[Symbol], inputs: Sequence) -> dict[str, int]:
    """Symbol name -> value, from the positional inputs of the graph."""
    values: dict[str, int] = {}
    for symbol in symbols:
        kind, *arguments = symbol.source
        if kind in _FROM_INPUT:
            values[symbol.name] = int(_FROM_INPUT[kind](inputs, *arguments))
        else:
            values[symbol.name] = _FROM_SIZES[kind](*(evaluate(a, values) for a in arguments))
    return values

"""Torch's symbolic sizes -> ir.size: polynomials as they are, anything else (floor division, mod,
...) a symbol of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchweld.core.errors import NotLowered
from torchweld.ir import size as sizes
from torchweld.ir.nodes import Symbol
from torchweld.ir.size import Size

# sympy class -> operation of a derived symbol
_DERIVED = {
    "FloorDiv": "floor_div", "CleanDiv": "floor_div", "Mod": "mod", "PythonMod": "mod",
    "Min": "min", "Max": "max",
}  # fmt: skip
_UNKNOWN = 64
_MEANING = {"floor_div": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max}


class Sizes:
    """Collects the symbols of a graph as sizes are converted."""

    def __init__(self) -> None:
        self.symbols: list[Symbol] = []
        self._known: dict[object, Size] = {}

    @property
    def hints(self) -> dict[str, int]:
        return {s.name: s.hint for s in self.symbols}

    def bind_inputs(self, values: Sequence) -> None:
        """Symbols of a graph's inputs, from whole sizes first, then from sizes that are a multiple
        of one plus a constant. Sizes that cannot be computed from these are symbols, too."""
        sources = [(v, ("int", k)) for k, v in enumerate(values) if isinstance(v, torch.SymInt)]
        tensors = [(k, v) for k, v in enumerate(values) if isinstance(v, torch.Tensor)]
        sources += [(n, ("size", k, d)) for k, t in tensors for d, n in enumerate(t.shape)]
        sources += [(n, ("stride", k, d)) for k, t in tensors for d, n in enumerate(t.stride())]
        sources = [(v, source) for v, source in sources if isinstance(v, torch.SymInt)]
        for simple in (True, False):
            for value, source in sources:
                if value.node.expr.is_Symbol == simple:
                    self.bind(value, source)
        for value, source in sources:
            if not self._is_computed(value.node.expr):
                name = f"given{len(self.symbols)}"
                self._known[value.node.expr] = self._symbol(name, source, _hint(value))

    def _is_computed(self, expr) -> bool:
        """Whether `convert` can say it in the symbols so far."""
        if expr in self._known or expr.is_Integer:
            return True
        power = expr.is_Pow and expr.exp.is_Integer and expr.exp > 0
        known = expr.is_Add or expr.is_Mul or power or type(expr).__name__ in _DERIVED
        return known and all(map(self._is_computed, expr.args))

    def bind(self, value, source: tuple) -> None:
        """`value`, an int or SymInt, can be read at a call from `source`. Binds the symbol in it
        if it has a new one."""
        if isinstance(value, int):
            return
        expr = value.node.expr
        free = [s for s in expr.free_symbols if s not in self._known]
        if expr.is_Symbol and free:
            self._known[expr] = self._symbol(str(expr), source, _hint(value))
        elif len(free) == 1 and expr.is_Add | expr.is_Mul:
            self._solve(expr, free[0], source, _hint(value))

    def convert(self, value) -> Size:
        """An int or SymInt as a Size. Raises NotLowered where it depends on data."""
        if isinstance(value, int):
            return value
        return self.of(value.node.expr)

    def of(self, expr) -> Size:
        """As `convert`, of an expression of sympy's."""
        if expr not in self._known:
            self._known[expr] = self._convert(expr)
        return self._known[expr]

    def many(self, values) -> tuple[Size, ...]:
        return tuple(v if type(v) is int else self.convert(v) for v in values)

    def hint(self, size: Size) -> int:
        return size if isinstance(size, int) else sizes.evaluate(size, self.hints)

    def _symbol(self, name: str, source: tuple, hint: int) -> Size:
        self.symbols.append(Symbol(name, source, hint))
        return sizes.symbol(name)

    def _solve(self, expr, symbol, source: tuple, hint: int) -> None:
        """expr = factor * symbol + rest with integers: a symbol for expr, and one derived from
        it."""
        rest, factor = expr.as_coeff_Add()
        factor, left = factor.as_coeff_Mul()
        if left != symbol:
            return
        total = self._symbol(f"{symbol}_total", source, hint)
        given = ("floor_div", total - int(rest), int(factor))
        self._known[symbol] = self._symbol(str(symbol), given, (hint - int(rest)) // int(factor))

    def _convert(self, expr) -> Size:
        if expr in self._known:
            return self._known[expr]
        if expr.is_Integer:
            return int(expr)
        if expr.is_Add:
            return sum((self._convert(a) for a in expr.args), 0)
        if expr.is_Mul:
            return sizes.product(self._convert(a) for a in expr.args)
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            return sizes.product([self._convert(expr.base)] * int(expr.exp))
        return self._derive(expr)

    def _derive(self, expr) -> Size:
        if expr.is_Symbol:
            raise NotLowered(f"the size {expr} depends on data")
        operation = _DERIVED.get(type(expr).__name__)
        if operation is None:
            raise NotLowered(f"the size {expr} has no expression in the input sizes")
        args = [self._convert(a) for a in expr.args]
        result = args[0]
        for arg in args[1:]:
            hint = _MEANING[operation](self.hint(result), self.hint(arg))
            result = self._symbol(f"d{len(self.symbols)}", (operation, result, arg), hint)
        self._known[expr] = result
        return result


def _hint(value: torch.SymInt) -> int:
    """What a size is likely to be. One that depends on data is known only at the call."""
    hint = value.node.hint
    return _UNKNOWN if hint is None else int(hint)

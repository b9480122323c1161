"""The lowering table: ATen overload -> the function that writes it as Comps. What has no row is an
Extern."""

from __future__ import annotations

from collections.abc import Callable

ROWS: dict[str, Callable] = {}


def lowers(*overloads: str) -> Callable:
    """Registers `function(call, *args, **kwargs)` for overloads as `str` prints them
    ("aten.add.Tensor").

    Arguments come as views.Tensor, Size, numbers, None or tuples of these; the result is a Tensor,
    or a tuple for several results (None for one
    nobody uses). It may raise NotLowered before it emits anything.
    """

    def register(function: Callable) -> Callable:
        for name in overloads:
            if name in ROWS:
                raise ValueError(f"{name} has two lowerings")
            ROWS[name] = function
        return function

    return register

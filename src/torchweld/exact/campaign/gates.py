"""Gates that say what is worth its time, opened: small programs go the ways of large ones too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType

import torch

from torchweld.capture import ahead
from torchweld.core.dtypes import to_torch
from torchweld.ir import row_price, simplify

# Chunks of rows: of logits of any size, two rows and more, whatever time they take.
_OPEN: dict[ModuleType, dict[str, object]] = {
    row_price: {"_SHARE": 0.0, "_LEAST_SAVED": 1, "_FEWEST_ROWS": 2, "_GRAIN": 1,
                "_MOST_EXTRA": 1e9},
    ahead: {"_LEAST_BYTES": 1},
}  # fmt: skip
# The types in which constants are folded: graphs are compared in float64.
_EXACT: dict[ModuleType, dict[str, object]] = {
    simplify: {"to_torch": lambda dtype: torch.float64 if dtype.is_float else to_torch(dtype)}
}


def opened() -> AbstractContextManager[None]:
    """While it lasts, small logits are made some rows at a time."""
    return _patched(_OPEN)


def folded_exactly() -> AbstractContextManager[None]:
    """While it lasts, constants are folded in float64."""
    return _patched(_EXACT)


@contextmanager
def _patched(wanted: dict[ModuleType, dict[str, object]]) -> Iterator[None]:
    before = {m: {n: getattr(m, n) for n in values} for m, values in wanted.items()}
    try:
        _set(wanted)
        yield
    finally:
        _set(before)


def _set(values: dict[ModuleType, dict[str, object]]) -> None:
    for module, named in values.items():
        for name, value in named.items():
            setattr(module, name, value)

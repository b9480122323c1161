"""Gates that say what is worth its time, opened: small programs go the ways of large ones too.
Constants folded in float64; sizes of tiles drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from types import ModuleType

import torch

from torchweld.capture import ahead
from torchweld.core.dtypes import to_torch
from torchweld.ir import row_price, simplify
from torchweld.ir.access import Accesses
from torchweld.templates.attention.cpu import schedule as attention
from torchweld.templates.pointwise_reduce.cpu import schedule as loops

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


def _first_row(accesses: Accesses, *_) -> str | None:
    """The lane that is the outermost row axis, where rows may be abreast."""
    rows, columns = accesses.frame.rows, accesses.frame.column_reductions
    return rows[0] if rows and not columns else None


# Sizes of tiles and lanes of kernels on a CPU, any of which is right.
_TILES: dict[ModuleType, dict[str, tuple[object, ...]]] = {
    loops: {"FLAT_BLOCK": (32, 100, 2048), "SHORT_LANE": (1, 8),
            "cheapest_lane": (loops.cheapest_lane, lambda *_: None, _first_row),
            "ROW_BLOCKS": ((16,), (32, 16), (256, 128, 64, 32, 16))},
    attention: {"KEYS": (32, 64, 128), "_PART": (6, 12, 48), "_MOST_ROWS": (12, 48, 96)},
}  # fmt: skip


def opened() -> AbstractContextManager[None]:
    """While it lasts, small logits are made some rows at a time."""
    return _patched(_OPEN)


def folded_exactly() -> AbstractContextManager[None]:
    """While it lasts, constants are folded in float64."""
    return _patched(_EXACT)


def drawn_tiles(rng: Random) -> AbstractContextManager[None]:
    """While it lasts, kernels for a CPU are made with other tiles than the best."""
    drawn = {m: {n: rng.choice(v) for n, v in values.items()} for m, values in _TILES.items()}
    return _patched(drawn)


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

"""The whole lowering table: importing the modules that hold its rows fills it."""

from __future__ import annotations

from torchweld.capture.lowering import (  # noqa: F401
    activations,
    adaptive_pools,
    creation,
    foreach,
    indexing,
    losses,
    movement,
    norms,
    pointwise,
    pool_gradients,
    random,
    reductions,
    resized_gradients,
    scatter,
    searches,
    selections,
    windows,
)
from torchweld.capture.lowering.registry import ROWS

__all__ = ["ROWS"]

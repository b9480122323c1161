"""What capture hands on: one ATen graph, as AOTAutograd or export gives it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

# meta of a cast that is part of an operation that capture wrote out: nobody asked for its rounding
INNER_CAST = "torchweld_inner_cast"
# meta of an operation whose result of 16 bits is rounded wherever it is fused (capture/alike.py)
ROUNDED = "torchweld_rounded"


@dataclass(frozen=True)
class Captured:
    """`module`: functional ATen operations; each placeholder's meta["val"] is a FakeTensor, SymInt
    or constant.
    `static_inputs`: positions of parameters and buffers, whose storage stays the same between calls
    (their values may change in place).
    `loose_outputs`: positions of outputs that only the backward sees: they may have any strides.
    `capture_s`: seconds that it took to make it, as far as they are seen.
    """

    module: torch.fx.GraphModule
    name: str
    kind: Literal["inference", "forward", "backward"]
    static_inputs: frozenset[int] = frozenset()
    loose_outputs: frozenset[int] = frozenset()
    capture_s: float = 0.0

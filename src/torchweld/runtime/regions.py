"""Named ranges around each node of a program, for whoever looks at it in a trace.

Wanted only while somebody profiles: kernels then run one by one, and without CUDA graphs, so that
each is seen under the name of its node. The ranges are NVTX ranges too where there is CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torchweld.runtime.loaded import Step
from torchweld.runtime.torch_private import RecordRange

PREFIX = "torchweld::"
_wanted = 0


@contextmanager
def named_regions() -> Iterator[None]:
    """Inside, programs of this process name what they run."""
    global _wanted
    _wanted += 1
    try:
        yield
    finally:
        _wanted -= 1


def wanted() -> bool:
    return _wanted > 0


def region_name(graph: str, node: str) -> str:
    return f"{PREFIX}{graph}::{node}"


def region(name: str, steps: tuple[Step, ...]) -> Step:
    """`steps`, one after the other, in a range called `name`."""
    nvtx = torch.cuda.nvtx if torch.cuda.is_available() else None

    def step(tensors, bases, address):
        if nvtx:
            nvtx.range_push(name)
        with RecordRange(name):
            for inner in steps:
                inner(tensors, bases, address)
        if nvtx:
            nvtx.range_pop()

    return step

"""What a program consists of: the part that is known when it is loaded, and the part that follows
from the sizes of a call."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

import torch

from torchweld.codegen.source import KernelBundle, KernelSource
from torchweld.ir.nodes import Comp, Graph
from torchweld.runtime.dispatch import Helpers
from torchweld.runtime.externs import Fetch
from torchweld.runtime.memory import Layout
from torchweld.runtime.placement import Placement

# (tensors by slot, addresses by slot, address of the addresses)
Step = Callable[[list, array, int], None]


@dataclass(frozen=True)
class Loaded:
    """All that does not depend on sizes. `functions`: of each source's text, an address (C++) or a
    launch function (Triton); a Comp with a source that is missing there is interpreted. `calls`:
    the function of each Extern, by node name. `keeps_arena`: between calls, for the next one, a
    large one too. `frees_inputs`: the caller gives its inputs away. `has_tail`: on a GPU, large
    outputs of the last calls are made after a replay. `native`: see native.py; None: launches
    through Python."""

    graph: Graph
    bundles: Mapping[str, KernelBundle]
    placement: Placement
    functions: Mapping[KernelSource, object]
    calls: Mapping[str, Callable]
    helpers: Helpers | None
    static_buffers: frozenset[str]
    keeps_arena: bool = True
    frees_inputs: bool = False
    has_tail: bool = True
    native: ModuleType | None = None
    record: object = None

    @property
    def may_repeat(self) -> bool:
        """Whether a call that failed can be made again with the same inputs."""
        written = {name for node in self.graph.nodes for name in node.writes}
        return not self.frees_inputs and written.isdisjoint(self.graph.inputs)

    def is_compiled(self, comp: Comp) -> bool:
        """Whether `comp` runs as its kernels; else it is interpreted."""
        bundle = self.bundles.get(comp.name)
        return bundle is not None and all(s in self.functions for s in bundle.sources)


@dataclass(frozen=True, slots=True)
class FixedView:
    """A tensor that stays the same while arenas and static inputs do: a window on `buffer`."""

    buffer: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Shaped:
    """The steps for one set of sizes; `tail`: those that make large outputs, on a GPU, and come
    last. `layouts`: the arena of each device, `needs` its bytes. `fixed`: the views that
    a Binding prepares, for the slots from `first_fixed` on. `keep_alive`: memory that the steps
    refer to by address. `calls_torch`: some step or output is an operation of torch."""

    sizes: Mapping[str, int]
    layouts: tuple[Layout, ...]
    needs: tuple[int, ...]
    steps: tuple[Step, ...]
    tail: tuple[Step, ...]
    outputs: tuple[Fetch, ...]
    fixed: tuple[FixedView, ...]
    first_fixed: int
    keep_alive: tuple = field(repr=False, default=())
    calls_torch: bool = True

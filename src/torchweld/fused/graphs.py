"""The graphs that were compiled, who runs them, and Dynamo's backend, which compiles them."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from torchweld.capture import aot
from torchweld.capture.captured import Captured
from torchweld.core.options import Options
from torchweld.fused.later import begin, compile_graph, takes

_RECENT = 256


@dataclass(frozen=True, slots=True)
class Compiled:
    """A graph and the pipeline's record of it, None if it runs in eager. `number`: in the order of
    compilation."""

    number: int
    captured: Captured
    record: object


class Graphs:
    """What one of Dynamo's graphs became: a forward and its backward, or an inference."""

    def __init__(self) -> None:
        self.compiled: list[Compiled] = []

    def remember(self, captured: Captured, compiled: aot.Boxed) -> None:
        made = Compiled(next(_numbers), captured, getattr(compiled, "record", None))
        self.compiled.append(made)
        recent.append(made)


class Notes:
    """What Dynamo did for one fused object so far. `name`: for messages. `graphs`: those that ran
    for it, by id. `cuts`: why graphs of it were cut, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.graphs: dict[int, Graphs] = {}
        self.cuts: dict[str, None] = {}


class _Calls(threading.local):
    """Of fused objects, those under way in this thread, the outermost first."""

    def __init__(self) -> None:
        self.under_way: list[Notes] = []


_numbers = itertools.count()
calls = _Calls()
# The last that were compiled, for `explain` of torch.compile(backend="torchweld").
recent: deque[Compiled] = deque(maxlen=_RECENT)


def remember(captured: Captured, compiled: aot.Boxed) -> None:
    """For `records()` and `explain()` of this process: a graph that no fused object has."""
    Graphs().remember(captured, compiled)


def backend(options: Options) -> Callable:
    """For Dynamo. Its graphs may serve several fused objects: each that runs one notes it."""

    def compiled(gm: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
        begin(options)
        graphs = Graphs()
        asked = partial(takes, options) if options.fuse else None
        run = aot.make_backend(compile_graph, options, graphs.remember, asked)(gm, example_inputs)

        def noted(*args):
            if calls.under_way:
                calls.under_way[-1].graphs.setdefault(id(graphs), graphs)
            return run(*args)

        return noted

    return compiled

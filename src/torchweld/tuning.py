"""Decisions about products by measurement, within a budget of seconds that the user grants.

Every kernel that the defaults form, or that they refuse by a price which may be wrong, is timed as
a whole, epilogue included, in each of its candidate tilings, against what it replaces: the
library's calls and the kernels around them. The fastest tiling is kept; a fusion that does not win
by a margin is taken back, and the others are formed again without it. Equal layers are measured
once, on this device by any model (`runtime/measured.py`). Without a budget nothing is measured or
looked up, and plans repeat exactly.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from torchweld.codegen.source import KernelBundle
from torchweld.core import events
from torchweld.core.errors import TorchweldError
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.canonical import signature
from torchweld.ir.contraction import Contraction, contraction_of
from torchweld.ir.nodes import Buffer, Comp, Graph, Node, Reduce
from torchweld.plan.decisions import Plan
from torchweld.rewrite.flow import without_unused_buffers
from torchweld.runtime.cache import open_cache
from torchweld.runtime.load import load_kernels
from torchweld.runtime.measured import Measured, MeasuredCache
from torchweld.runtime.memory import is_out_of_memory
from torchweld.runtime.timing import graph_seconds
from torchweld.targets.target import Target
from torchweld.templates import registry
from torchweld.templates.gemm.choice import candidates, choose
from torchweld.templates.gemm.schedule import ProductSchedule

_CANDIDATES = 8
_ROUNDS = 3  # of forming products again without those that lost
_TRIED = 0.3  # of the time before, that a kernel may be predicted to lose and still be measured
_SURE = 10.0  # of the time before: whatever was predicted

# (graph) -> the graph with library calls chosen, and its kernels
Finish = Callable[[Graph], "tuple[Graph, Mapping[str, KernelBundle]]"]


@dataclass(slots=True)
class Choices:
    """What was measured, by the signature of a Comp's accesses. Anything else as the defaults say,
    or, while it is `trying`, as if their prices were too high."""

    known: dict[str, Measured] = field(default_factory=dict)
    trying: bool = False

    def choose(
        self,
        accesses: Accesses,
        contraction: Contraction,
        buffers: Mapping[str, Buffer],
        table: Target,
        hints: Mapping[str, int] | None = None,
    ) -> ProductSchedule | str:
        """As schedule.product_choice.choose."""
        found = self._found(accesses, buffers)
        return found.choice if found else choose(accesses, contraction, buffers, table, hints)

    def leeway(self, accesses: Accesses, buffers: Mapping[str, Buffer]) -> float:
        """As kernels.products.kernel.Leeway: what has won is taken, whatever was predicted."""
        if self._found(accesses, buffers):
            return _SURE
        return _TRIED if self.trying else 0.0

    def _found(self, accesses: Accesses, buffers: Mapping[str, Buffer]) -> Measured | None:
        return self.known.get(signature(accesses.comp, buffers)) if self.known else None


@dataclass(frozen=True, slots=True)
class _Budget:
    """Seconds that were granted, from now on."""

    seconds: float
    start: float = field(default_factory=lambda: time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.start + self.seconds

    def tell(self, done: int, of: int, end: str = "") -> None:
        """To whoever watches a terminal, on one line that is written over."""
        if sys.stderr.isatty():
            used = time.monotonic() - self.start
            text = f"torchweld: products measured: {done} of {of}, {used:.0f} of {self.seconds:g} s"
            print(f"\r{text}", end=end, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Tuner:
    """Fills in `choices`. `finish`: what the pipeline does with a planned graph before kernels are
    loaded."""

    table: Target
    options: Options
    choices: Choices
    finish: Finish

    def tuned(self, plan: Plan, join: Callable[[Plan], Plan]) -> Plan:
        """`join` forms products of `plan` as the choices say."""
        budget = _Budget(self.options.tune_seconds)
        self.choices.trying = True
        for _ in range(_ROUNDS):
            found = self._look(join(plan).graph, plan.graph, budget)
            self.choices.known |= found
            if not any(isinstance(measured.choice, str) for measured in found.values()):
                break
        self.choices.trying = False
        return join(plan)

    def _look(self, graph: Graph, before: Graph, budget: _Budget) -> dict[str, Measured]:
        """Of the kinds of product that are new: what is kept of them, else what is measured as far
        as the budget goes. What was measured to the end is kept for others."""
        kept, found = MeasuredCache.open(self.options), {}
        regions = self._new_regions(graph)
        for done, (region, comp) in enumerate(regions.items()):
            budget.tell(done, len(regions))
            key = kept.key(region, graph.buffers[comp.writes[0]].device)
            measured = kept.get(key)
            if measured is None and not budget.is_over:
                measured = self._measured(comp, graph, before, budget)
                if measured is not None and not budget.is_over:
                    kept.put(key, measured)
            if measured is not None:
                found[region] = measured
                logger("tuning").info("%s: %s", comp.name, measured)
        budget.tell(len(regions), len(regions), end="\n")
        return found

    def _new_regions(self, graph: Graph) -> dict[str, Comp]:
        """The Comps that make products, one of each kind that is not known yet, by signature."""
        found: dict[str, Comp] = {}
        for comp in _products(graph):
            accesses = addressed(comp, graph.buffers, graph.hints)
            found.setdefault(signature(accesses.comp, graph.buffers), comp)
        return {key: comp for key, comp in found.items() if key not in self.choices.known}

    def _measured(
        self, comp: Comp, graph: Graph, before: Graph, budget: _Budget
    ) -> Measured | None:
        """Times a kernel and what it replaces; None if no tiling ran in time."""
        accesses = addressed(comp, graph.buffers, graph.hints)
        contraction = contraction_of(accesses)
        first = self.choices.choose(accesses, contraction, graph.buffers, self.table, graph.hints)
        more = candidates(accesses, contraction, self.table, graph.hints)
        tries = list(dict.fromkeys((first, *islice(more, _CANDIDATES))))
        times = self._times(comp, graph, tries, budget)
        if not times:
            if not budget.is_over:
                events.warn_once(
                    f"tuning {comp.name}",
                    f"none of {len(tries)} tilings of {comp.name} could be timed: the default "
                    "decision stands (torchweld.events() has the reasons)",
                )
            return None
        best, apart_s = min(times, key=times.__getitem__), self._apart_s(comp, before)
        apart_us = None if apart_s is None else apart_s * 1e6
        return Measured(best, times[best] * 1e6, apart_us, len(tries) - len(times))

    def _times(
        self, comp: Comp, graph: Graph, tries: Sequence[ProductSchedule], budget: _Budget
    ) -> dict[ProductSchedule, float]:
        """Seconds of each tiling that compiles and runs, as far as the budget goes."""
        region = region_of([comp], graph)
        bundles = {}
        for schedule in tries:
            try:
                bundles[schedule] = registry.bundle_of(
                    comp, graph.buffers, self.table, graph.hints, lambda *_, s=schedule: s
                )
            except TorchweldError as error:
                logger("tuning").info("%s as %s: %s", comp.name, schedule, error)
        together = {f"{k}": b for k, b in enumerate(bundles.values())}
        # compiled side by side
        load_kernels(together, open_cache(self.options), self.options)
        times = {}
        for schedule, bundle in bundles.items():
            if budget.is_over:
                break
            seconds = self._seconds(region, {comp.name: bundle})
            if seconds is not None:
                times[schedule] = seconds
        return times

    def _apart_s(self, comp: Comp, before: Graph) -> float | None:
        """Of the nodes of the graph before that compute the same; None if they are not found."""
        nodes = nodes_behind(before, comp)
        if nodes is None:
            return None
        graph, bundles = self.finish(region_of(nodes, before, frozenset(comp.writes)))
        return self._seconds(graph, bundles)

    def _seconds(self, graph: Graph, bundles: Mapping[str, KernelBundle]) -> float | None:
        """None for what does not run, or not in the memory that there is."""
        try:
            return graph_seconds(graph, bundles, self.options)
        except (RuntimeError, TorchweldError) as error:
            full = is_out_of_memory(error)
            why = "out of memory" if full else str(error)
            events.record("tuning", f"{graph.name} is not timed: {why}")
            if full:
                torch.cuda.empty_cache()
        return None


def nodes_behind(graph: Graph, comp: Comp) -> list[Node] | None:
    """The nodes of `graph` that compute what `comp` writes from what it reads, in order; sums that
    `comp` adds up are theirs before they are stored. None if they read more than that."""
    writer = {name: node for node in graph.nodes for name in node.writes}
    found: set[str] = set()
    stored = dict.fromkeys(s.buffer for s in comp.stores if not s.combine)
    todo = [name for name in stored if name in graph.buffers]
    if not todo or len(todo) < len(stored):
        return None
    while todo:
        node = writer.get(todo.pop())
        if node is None:
            return None
        if node.name not in found:
            found.add(node.name)
            todo += [name for name in node.reads if name not in comp.reads]
    return [node for node in graph.nodes if node.name in found]


def region_of(nodes: Sequence[Node], graph: Graph, wanted: frozenset[str] | None = None) -> Graph:
    """`nodes` as a graph of its own: what they read from elsewhere is its input, what of their
    results is `wanted` (None: all) its output."""
    written = {name for node in nodes for name in node.writes}
    read = dict.fromkeys(name for node in nodes for name in node.reads if name not in written)
    made = [graph.buffers[n] for n in sorted(written if wanted is None else written & wanted)]
    outputs = tuple(b.view for b in made)
    alone = replace(
        graph, name=f"region of {nodes[-1].name}", nodes=tuple(nodes), inputs=tuple(read),
        outputs=outputs,
    )  # fmt: skip
    return without_unused_buffers(alone)


def _products(graph: Graph) -> Iterator[Comp]:
    """The Comps of a graph that make products."""
    for node in graph.nodes:
        if isinstance(node, Comp) and any(isinstance(i, Reduce) for i in node.body):
            accesses = addressed(node, graph.buffers, graph.hints)
            if contraction_of(accesses) is not None:
                yield node

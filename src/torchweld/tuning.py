"""Decisions about products by measurement, within a budget of seconds that the user grants.

The defaults decide first. Then every kernel that they form is timed as a whole, epilogue included,
in each of its candidate tilings, against what it replaces: the library's calls and the kernels
around them. The fastest tiling is kept; a fusion that does not win by a margin is taken back, and
the others are formed again without it. Equal layers are measured once; plans keep what was found,
so a second process measures nothing. Without a budget nothing is measured and plans repeat exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from torchweld.codegen import cuda
from torchweld.codegen.source import KernelBundle
from torchweld.core.device import DeviceTable
from torchweld.core.errors import TorchweldError
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.ir.canonical import signature
from torchweld.ir.nodes import Buffer, Comp, Graph, Node, Reduce, View
from torchweld.plan.decisions import Plan
from torchweld.rewrite.flow import without_unused_buffers
from torchweld.runtime.cache import open_cache
from torchweld.runtime.load import load_kernels
from torchweld.runtime.timing import graph_seconds
from torchweld.schedule.access import Accesses, addressed
from torchweld.schedule.contraction import Contraction, contraction_of
from torchweld.schedule.product import ProductSchedule
from torchweld.schedule.product_choice import candidates, choose

MARGIN = 0.02  # of the time apart, that a fusion must save
_CANDIDATES = 8
_ROUNDS = 3  # of forming products again without those that lost

# (graph) -> the graph with library calls chosen, and its kernels
Finish = Callable[[Graph], "tuple[Graph, Mapping[str, KernelBundle]]"]


@dataclass(slots=True)
class Choices:
    """What was measured, by the signature of a Comp's accesses: the fastest tiling, or why there is
    to be none. Anything else as the defaults say."""

    known: dict[str, ProductSchedule | str] = field(default_factory=dict)

    def choose(
        self,
        accesses: Accesses,
        contraction: Contraction,
        buffers: Mapping[str, Buffer],
        table: DeviceTable,
        hints: Mapping[str, int] | None = None,
    ) -> ProductSchedule | str:
        """As schedule.product_choice.choose."""
        found = self.known.get(signature(accesses.comp, buffers)) if self.known else None
        return found or choose(accesses, contraction, buffers, table, hints)


@dataclass(frozen=True, slots=True)
class Tuner:
    """Fills in `choices`. `finish`: what the pipeline does with a planned graph before kernels are
    loaded."""

    table: DeviceTable
    options: Options
    choices: Choices
    finish: Finish

    def tuned(self, plan: Plan, join: Callable[[Plan], Plan]) -> Plan:
        """`join` forms products of `plan` as the choices say."""
        end = time.monotonic() + self.options.tune_seconds
        joined = join(plan)
        for _ in range(_ROUNDS):
            lost = [c for c in _products(joined.graph) if time.monotonic() < end
                    and self._measure(c, joined.graph, plan.graph, end)]  # fmt: skip
            if not lost:
                break
            joined = join(plan)
        return joined

    def _measure(self, comp: Comp, graph: Graph, before: Graph, end: float) -> bool:
        """Times a kernel and what it replaces; True if it lost, and is to be taken back."""
        accesses = addressed(comp, graph.buffers, graph.hints)
        key = signature(accesses.comp, graph.buffers)
        if key in self.choices.known:
            return False
        contraction = contraction_of(accesses)
        first = self.choices.choose(accesses, contraction, graph.buffers, self.table, graph.hints)
        tries = candidates(accesses, contraction, graph.buffers, self.table, graph.hints)
        times = self._times(comp, graph, list(dict.fromkeys((first, *islice(tries, _CANDIDATES)))),
                            end)  # fmt: skip
        if not times:
            return False
        best = min(times, key=times.__getitem__)
        self.choices.known[key] = best
        apart = self._apart_s(comp, before)
        said = f"{comp.name}: {times[best] * 1e6:.1f} us"
        if apart is None or times[best] <= (1 - MARGIN) * apart:
            logger("tuning").info("%s as %s", said, best)
            return False
        why = f"measured {apart * 1e6:.1f} us apart, {times[best] * 1e6:.1f} us together"
        self.choices.known[key] = why
        logger("tuning").info("%s: %s", comp.name, why)
        return True

    def _times(
        self, comp: Comp, graph: Graph, tries: Sequence[ProductSchedule], end: float
    ) -> dict[ProductSchedule, float]:
        """Seconds of each tiling that compiles and runs, as far as the budget goes."""
        region = region_of([comp], graph)
        bundles = {}
        for schedule in tries:
            try:
                bundles[schedule] = cuda.generate(
                    comp, graph.buffers, self.table, graph.hints, lambda *_, s=schedule: s
                )
            except TorchweldError as error:
                logger("tuning").info("%s as %s: %s", comp.name, schedule, error)
        together = {f"{k}": b for k, b in enumerate(bundles.values())}
        load_kernels(together, open_cache(self.options), self.options)  # compiled side by side
        times = {}
        for schedule, bundle in bundles.items():
            if time.monotonic() > end:
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
        try:
            return graph_seconds(graph, bundles, self.options)
        except (RuntimeError, TorchweldError) as error:
            logger("tuning").info("%s is not timed: %s", graph.name, error)
            return None


def nodes_behind(graph: Graph, comp: Comp) -> list[Node] | None:
    """The nodes of `graph` that compute what `comp` writes from what it reads, in order. None if
    they read more than that."""
    writer = {name: node for node in graph.nodes for name in node.writes}
    found: set[str] = set()
    todo = [name for name in comp.writes if name in graph.buffers]
    if len(todo) < len(comp.writes):
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
    outputs = tuple(View(b.name, b.shape, b.strides) for b in made)
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

"""The way that a model takes, on one screen:

lower -> rewrite -> plan -> library calls -> schedule and generate -> load
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from torchweld.capture.captured import Captured
from torchweld.capture.lower import Lowered, lower
from torchweld.codegen.bundles import generate_all
from torchweld.codegen.source import KernelBundle
from torchweld.core.device import DeviceTable, device_table
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Comp, Graph, Origin
from torchweld.ir.printer import text
from torchweld.kernels.attention import own_attention
from torchweld.kernels.biases import separate_biases
from torchweld.kernels.channel_groups import channels_before_groups
from torchweld.kernels.channels import channels_last
from torchweld.kernels.convolutions import own_convolutions
from torchweld.kernels.cpu_products import own_products
from torchweld.kernels.extents import align_extents
from torchweld.kernels.layouts import contiguous_rows
from torchweld.kernels.library import choose_library_calls
from torchweld.kernels.patches import products_of_patches
from torchweld.kernels.products import form_products
from torchweld.kernels.rows import align_rows
from torchweld.kernels.statistics import statistics_apart
from torchweld.kernels.widened import widened_convolutions
from torchweld.plan.decisions import Cut, Fusion, Plan, RefusalRecord
from torchweld.plan.refusals import Reason
from torchweld.plan.search import plan
from torchweld.rewrite.apply import rewrite
from torchweld.runtime.builders import Builders
from torchweld.runtime.load import load
from torchweld.runtime.plan_cache import PlanCache, StoredPlan
from torchweld.runtime.program import Program
from torchweld.schedule.product_choice import Choose, choose
from torchweld.tuning import Choices, Tuner

_FEW_KERNELS = 4
_DECISIONS = (Fusion, Cut, RefusalRecord, Reason, Origin)


@dataclass(frozen=True)
class GraphRecord:
    """What became of one captured graph, for `explain` and `report`. `events` grows while the
    program runs."""

    name: str
    kind: str
    device: str
    graph: Graph
    bundles: dict[str, KernelBundle]
    decisions: tuple
    timings_s: dict[str, float]
    cached: bool
    events: list = field(default_factory=list)


def compile_graph(captured: Captured, options: Options) -> Program:
    """A callable of the captured graph's flat inputs (one list) that returns its flat outputs;
    `.record` says what was done."""
    with _no_garbage_collection(), Builders() as builders:
        return _compiled(captured, options, builders)


def _compiled(captured: Captured, options: Options, builders: Builders) -> Program:
    stages = _Stages(options.debug)
    device = _main_device(captured)
    table = device_table(device)
    lowered = stages("lower", lower, captured, options)
    plans = PlanCache.open(options, _DECISIONS)
    loose = sorted(captured.loose_outputs)
    key = plans.key(lowered.graph, options, str(device), captured.kind, repr(table), repr(loose))
    stored = stages("find plan", plans.get, key)
    cached = stored is not None
    if not cached:
        stored = _make_plan(lowered, captured, table, options, stages, builders)
        plans.put(key, stored)
    record = GraphRecord(
        captured.name, captured.kind, str(device), stored.graph, dict(stored.bundles),
        stored.decisions, stages.seconds, cached,
    )  # fmt: skip
    program = stages(
        "load", load, stored.graph, stored.bundles, lowered.constants, options,
        kind=captured.kind, static_inputs=captured.static_inputs,
        loose_outputs=captured.loose_outputs, record=record, builders=builders,
    )  # fmt: skip
    program.record = record
    logger("pipeline").info(
        "%s (%s on %s): %d kernels and calls, %s plan, %.3f s", captured.name, captured.kind,
        device, len(stored.graph.nodes), "stored" if cached else "new",
        sum(stages.seconds.values()),
    )  # fmt: skip
    return program


def plan_graph(captured: Captured, options: Options) -> tuple[Graph, Plan]:
    """The captured graph as the planner is given it, and its plan; nothing is generated."""
    stages, table = _Stages(options.debug), device_table(_main_device(captured))
    lowered = stages("lower", lower, captured, options)
    graph, planned = _planned(lowered, captured, table, options, stages)
    return graph, form_products(planned, table, options, choose)


def _planned(
    lowered: Lowered, captured: Captured, table: DeviceTable, options: Options, stages
) -> tuple[Graph, Plan]:
    graph = stages("rewrite", rewrite, lowered.graph)
    graph = stages("widen", widened_convolutions, graph, table)
    graph = stages("biases", separate_biases, graph, table)
    graph = stages("channels", channels_last, graph, table, captured.loose_outputs)
    graph = stages("patches", products_of_patches, graph, table)
    graph = stages("statistics", statistics_apart, graph, table)
    graph = stages("layouts", contiguous_rows, graph, captured.loose_outputs)
    return graph, stages("plan", plan, graph, table, options)


def _make_plan(
    lowered: Lowered,
    captured: Captured,
    table: DeviceTable,
    options: Options,
    stages: _Stages,
    builders: Builders,
) -> StoredPlan:
    _, planned = _planned(lowered, captured, table, options, stages)
    choices = Choices()

    def join(planned: Plan) -> Plan:
        return form_products(planned, table, options, choices.choose, choices.leeway)

    def finish(planned: Plan, stages: Callable) -> tuple[Plan, dict[str, KernelBundle]]:
        return _finished(planned, captured, table, options, choices.choose, stages)

    def tried(graph: Graph) -> tuple[Graph, dict[str, KernelBundle]]:
        made, bundles = finish(Plan(graph, ()), _unseen)
        return made.graph, bundles

    if table.kind == "cuda" and options.tune_seconds > 0 and not planned.graph.symbols:
        builders.start(options.compile_jobs)
        tuner = Tuner(table, options, choices, tried, builders)
        joined = stages("tune products", tuner.tuned, planned, join)
    else:
        joined = stages("join products", join, planned)
    if table.kind == "cuda":
        builders.start(_builders_for(joined.graph, options))
    made, bundles = finish(joined, stages)
    return StoredPlan(made.graph, bundles, made.decisions)


def _builders_for(graph: Graph, options: Options) -> int:
    """As many as there are kernels to compile, more or less; a few are compiled here before others
    have begun."""
    comps = [n for n in graph.nodes if isinstance(n, Comp)]
    kinds = {(c.name.rstrip("_0123456789"), tuple(c.extents.values())) for c in comps}
    count = min(options.compile_jobs, len(kinds))
    return count if count >= _FEW_KERNELS else 0


def _finished(
    planned: Plan, captured: Captured, table: DeviceTable, options: Options, choose: Choose, stages
) -> tuple[Plan, dict[str, KernelBundle]]:
    """A plan with the best calls, strides and extents, and its kernels."""
    planned = stages("attention", own_attention, planned, table)
    planned = stages("products", own_products, planned, table)
    planned = stages("convolutions", own_convolutions, planned, table, options)
    graph = stages("channel groups", channels_before_groups, planned.graph, table)
    graph = stages("library", choose_library_calls, graph, table, options, captured.kind)
    graph = stages("rows", align_rows, graph, table, captured.loose_outputs)
    graph = stages("extents", align_extents, graph, table)
    check_graph(graph)
    bundles = stages("generate", generate_all, graph, table, choose)
    return Plan(graph, planned.decisions), bundles


def _unseen(name: str, stage: Callable, *args, **kwargs):
    """A stage of what is only tried."""
    return stage(*args, **kwargs)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """What is built here is kept or has no cycles; each full collection amid captured graphs takes
    as long as planning them."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()


def _main_device(captured: Captured) -> torch.device:
    """The device of the graph's tensors: an accelerator if any is on one."""
    found = torch.device("cpu")
    for node in captured.module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            found = value.device
            break
    return found


class _Stages:
    """Runs stages, keeps their seconds, and prints what TORCHWELD_DEBUG asks for."""

    def __init__(self, debug: int) -> None:
        self._debug = debug
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, stage: Callable, *args, **kwargs):
        start = time.perf_counter()
        result = stage(*args, **kwargs)
        self.seconds[name] = time.perf_counter() - start
        logger("pipeline").debug("%s: %.3f s", name, self.seconds[name])
        if self._debug:
            self._print(name, result)
        return result

    def _print(self, name: str, result) -> None:
        print(f"torchweld: {name} {self.seconds[name]:.3f} s", file=sys.stderr)
        graph = result if isinstance(result, Graph) else getattr(result, "graph", None)
        if self._debug > 1 and isinstance(graph, Graph):
            print(text(graph), file=sys.stderr)
        if self._debug > 2 and name == "generate":
            for bundle in result.values():
                for source in bundle.sources:
                    print(source.text, file=sys.stderr)

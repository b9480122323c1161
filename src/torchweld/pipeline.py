"""The way that a model takes, on one screen:

lower -> rewrite -> plan -> library calls -> schedule and generate -> load
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from torchweld.capture.captured import Captured
from torchweld.capture.lower import Lowered, lower
from torchweld.codegen.bundles import generate_all
from torchweld.codegen.source import KernelBundle
from torchweld.core.device import DeviceTable, device_table
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Graph, Origin
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
from torchweld.kernels.products.form import form_products
from torchweld.kernels.rows import align_rows
from torchweld.kernels.side_by_side import side_by_side
from torchweld.kernels.statistics import statistics_apart
from torchweld.kernels.widened import widened_convolutions
from torchweld.plan.decisions import Cut, Fusion, Plan, RefusalRecord
from torchweld.plan.refusals import Reason
from torchweld.plan.search import plan
from torchweld.rewrite.apply import rewrite
from torchweld.runtime.load import load
from torchweld.runtime.plan_cache import PlanCache, StoredPlan
from torchweld.runtime.program import Program
from torchweld.schedule.product_choice import Choose, choose
from torchweld.tuning import Choices, Tuner

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


@dataclass(frozen=True)
class _Job:
    """One graph on its way. `stages(name, stage, *args)` runs a stage and keeps its time."""

    captured: Captured
    options: Options
    device: torch.device
    table: DeviceTable
    stages: Callable

    @classmethod
    def of(cls, captured: Captured, options: Options) -> _Job:
        device = _main_device(captured)
        return cls(captured, options, device, device_table(device), _Stages(options.debug))

    def lowered(self) -> Lowered:
        return self.stages("lower", lower, self.captured, self.options)


def compile_graph(captured: Captured, options: Options) -> Program:
    """A callable of the captured graph's flat inputs (one list) that returns its flat outputs;
    `.record` says what was done."""
    with _no_garbage_collection():
        return _compiled(_Job.of(captured, options))


def _compiled(job: _Job) -> Program:
    captured, options, stages = job.captured, job.options, job.stages
    lowered = job.lowered()
    plans = PlanCache.open(options, _DECISIONS)
    loose = sorted(captured.loose_outputs)
    key = plans.key(
        lowered.graph, options, str(job.device), captured.kind, repr(job.table), repr(loose))
    stored = stages("find plan", plans.get, key)
    cached = stored is not None
    if not cached:
        stored = _make_plan(job, lowered)
        plans.put(key, stored)
    record = GraphRecord(
        captured.name, captured.kind, str(job.device), stored.graph, dict(stored.bundles),
        stored.decisions, stages.seconds, cached,
    )  # fmt: skip
    program = stages(
        "load", load, stored.graph, stored.bundles, lowered.constants, options,
        kind=captured.kind, static_inputs=captured.static_inputs,
        loose_outputs=captured.loose_outputs, record=record,
    )  # fmt: skip
    program.record = record
    logger("pipeline").info(
        "%s (%s on %s): %d kernels and calls, %s plan, %.3f s", captured.name, captured.kind,
        job.device, len(stored.graph.nodes), "stored" if cached else "new",
        sum(stages.seconds.values()),
    )  # fmt: skip
    return program


def plan_graph(captured: Captured, options: Options) -> tuple[Graph, Plan]:
    """The captured graph as the planner is given it, and its plan; nothing is generated."""
    job = _Job.of(captured, options)
    graph, planned = _planned(job, job.lowered())
    return graph, form_products(planned, job.table, options, choose)


def _planned(job: _Job, lowered: Lowered) -> tuple[Graph, Plan]:
    stages, table, loose = job.stages, job.table, job.captured.loose_outputs
    graph = stages("rewrite", rewrite, lowered.graph)
    graph = stages("widen", widened_convolutions, graph, table)
    graph = stages("biases", separate_biases, graph, table)
    graph = stages("channels", channels_last, graph, table, loose)
    graph = stages("patches", products_of_patches, graph, table)
    graph = stages("statistics", statistics_apart, graph, table)
    graph = stages("layouts", contiguous_rows, graph, loose)
    return graph, stages("plan", plan, graph, table, job.options)


def _make_plan(job: _Job, lowered: Lowered) -> StoredPlan:
    options, stages = job.options, job.stages
    _, planned = _planned(job, lowered)
    choices = Choices()

    def join(planned: Plan) -> Plan:
        return form_products(planned, job.table, options, choices.choose, choices.leeway)

    def tried(graph: Graph) -> tuple[Graph, dict[str, KernelBundle]]:
        made, bundles = _finished(replace(job, stages=_unseen), Plan(graph, ()), choices.choose)
        return made.graph, bundles

    if job.table.kind == "cuda" and options.tune_seconds > 0 and not planned.graph.symbols:
        tuner = Tuner(job.table, options, choices, tried)
        joined = stages("tune products", tuner.tuned, planned, join)
    else:
        joined = stages("join products", join, planned)
    made, bundles = _finished(job, joined, choices.choose)
    return StoredPlan(made.graph, bundles, made.decisions)


def _finished(
    job: _Job, planned: Plan, choose: Choose
) -> tuple[Plan, dict[str, KernelBundle]]:
    """A plan with the best calls, strides and extents, and its kernels."""
    stages, table, options, captured = job.stages, job.table, job.options, job.captured
    planned = stages("attention", own_attention, planned, table)
    planned = stages("products", own_products, planned, table)
    planned = stages("convolutions", own_convolutions, planned, table, options)
    graph = stages("channel groups", channels_before_groups, planned.graph, table)
    graph = stages("library", choose_library_calls, graph, table, options, captured.kind)
    graph = stages("rows", align_rows, graph, table, captured.loose_outputs)
    graph = stages("extents", align_extents, graph, table)
    graph = stages("side by side", side_by_side, graph, options)
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

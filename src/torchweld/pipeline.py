"""The way that a model takes, on one screen:

lower -> the target's passes, one after the other -> choose kernels -> generate -> load
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from torchweld.calibration.target import calibrated
from torchweld.capture.captured import Captured
from torchweld.capture.lower import Lowered, lower
from torchweld.capture.parts import WHOLE, Part, parts
from torchweld.capture.repeated import NONE, Repeated, repeated
from torchweld.codegen.source import KernelBundle
from torchweld.core.errors import NotLowered
from torchweld.core.garbage import no_garbage_collection
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.core.stages import Clock, untimed
from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Comp, Graph, Origin
from torchweld.ir.printer import text
from torchweld.passes.table import JOIN, PASSES, Context
from torchweld.plan.chosen import told
from torchweld.plan.decisions import Choice, Cut, Fusion, Plan, RefusalRecord
from torchweld.plan.joined import joined
from torchweld.plan.refusals import Reason
from torchweld.plan.repeated import whole_plan
from torchweld.runtime.cache import open_cache
from torchweld.runtime.load import Compilers, begin, load
from torchweld.runtime.plan_cache import PlanCache, StoredPlan
from torchweld.runtime.program import Program
from torchweld.targets.find import target_of
from torchweld.targets.target import Target
from torchweld.templates.generate import generate_all, kernels_of, renamed, with_uses
from torchweld.tuning import Choices, Tuner

_DECISIONS = (Fusion, Cut, RefusalRecord, Choice, Reason, Origin)
Made = Callable[[KernelBundle], object]  # is told of a kernel once it is generated


def _nobody(bundle: KernelBundle) -> None:
    """Waits for it."""


@dataclass(frozen=True)
class GraphRecord:
    """What became of one captured graph, for `explain` and `report`. `kept`: positions of outputs
    that only the backward sees. `events` grows while the program runs."""

    name: str
    kind: str
    device: str
    graph: Graph
    bundles: dict[str, KernelBundle]
    decisions: tuple
    timings_s: dict[str, float]
    cached: bool
    kept: frozenset[int] = frozenset()
    events: list = field(default_factory=list)

    def __repr__(self) -> str:
        """Short: the whole graph is `.graph`, and `torchweld.explain` tells what became of it."""
        return (f"GraphRecord({self.name!r}, {self.kind}, {self.device}: "
                f"{len(self.graph.nodes)} kernels and calls)")


@dataclass(frozen=True)
class _Job:
    """One graph on its way. `stages(name, stage, *args)` runs a stage and keeps its time."""

    captured: Captured
    options: Options
    devices: tuple[torch.device, ...]
    target: Target
    stages: Callable
    layers: Repeated = NONE
    part: Part = WHOLE

    @classmethod
    def of(cls, captured: Captured, options: Options, target: Target | None = None) -> _Job:
        devices, stages = _devices(captured), _Stages(options.debug, captured.capture_s)
        return cls(captured, options, devices, target or target_of(_main(devices)), stages)

    @property
    def device(self) -> torch.device:
        return _main(self.devices)

    def lowered(self) -> Lowered:
        """The IR of its part, without the `layers` that are left out."""
        made = self.stages("lower", lower, self.captured, self.options, self.layers, self.part)
        _check_kernels(made.graph, self.device)
        return made

    def parts(self) -> tuple[_Job, _Job | None]:
        """The writes at the end of the graph as a job of their own, if they are one. Not on a GPU,
        where lists of them that read temporaries have not run yet."""
        found = parts(self.captured) if self.target.kind == "cpu" else None
        if found is None:
            return self, None
        last = replace(self.captured, loose_outputs=frozenset())
        return replace(self, part=found.main), replace(self, captured=last, part=found.last)

    def context(self, choices: Choices) -> Context:
        loose = frozenset(self.captured.loose_outputs)
        kind = self.captured.kind
        return Context(
            self.target, self.options, kind, loose, choices.choose, choices.leeway,
            self.layers.times,
        )  # fmt: skip


def compile_graph(captured: Captured, options: Options) -> Program:
    """A callable of the captured graph's flat inputs (one list) that returns its flat outputs;
    `.record` says what was done."""
    job = _Job.of(captured, options)
    _check_devices(job.devices)
    begin(options)
    compilers = Compilers(open_cache(options), options.compile_jobs)
    with no_garbage_collection(), compilers:
        return _compiled(job, compilers)


def _compiled(job: _Job, compilers: Compilers) -> Program:
    captured, options, stages = job.captured, job.options, job.stages
    stored, constants, cached = _without_repeats(job, compilers) or _stored(job, compilers)
    stored = replace(stored, graph=replace(stored.graph, name=captured.name))
    record = GraphRecord(
        captured.name, captured.kind, str(job.device), stored.graph, dict(stored.bundles),
        stored.decisions, stages.seconds, cached, captured.loose_outputs,
    )  # fmt: skip
    program = stages(
        "load", load, stored.graph, stored.bundles, constants, options,
        kind=captured.kind, static_inputs=captured.static_inputs,
        loose_outputs=captured.loose_outputs, record=record, timed=stages,
        compilers=compilers,
    )  # fmt: skip
    program.record = record
    logger("pipeline").info(
        "%s (%s on %s): %d kernels and calls, %s plan, %.3f s", captured.name, captured.kind,
        job.device, len(stored.graph.nodes), "stored" if cached else "new",
        sum(stages.seconds.values()),
    )  # fmt: skip
    return program


Stored = tuple[StoredPlan, dict[str, torch.Tensor], bool]  # with constants; whether it was there


def _stored(job: _Job, compilers: Compilers) -> Stored:
    """The plan, from the cache or made now."""
    options, stages, lowered = job.options, job.stages, job.lowered()
    job = replace(job, target=stages("calibrate", calibrated, job.target, lowered.graph, options))
    plans = PlanCache.open(options, _DECISIONS)
    loose = sorted(job.captured.loose_outputs)
    unnamed = replace(lowered.graph, name="")  # a process counts its graphs: equal ones differ
    key = plans.key(
        unnamed, options, str(job.device), job.captured.kind, repr(job.target), repr(loose),
        repr(job.layers.count))
    found = stages("find plan", plans.get, key)
    if found is not None:
        return found, lowered.constants, True
    if job.target.kind == "cuda":
        compilers.expect_triton()
    made = _make_plan(job, lowered, compilers.start)
    stages("keep plan", plans.put, key, made)
    return made, lowered.constants, False


def _without_repeats(job: _Job, compilers: Compilers) -> Stored | None:
    """The plan of the graph without most of its equal layers, with them put back; None where there
    are none, or its plan does not repeat as they do."""
    main, last = job.stages("find layers", job.parts)
    layers = job.stages("find layers", repeated, job.captured, main.part)
    if layers is None:
        return None
    stored, constants, cached = _stored(replace(main, layers=layers), compilers)
    whole = job.stages("put layers back", _with_layers, stored, layers, job.captured)
    if whole is not None and last is not None:
        written, _, _ = _stored(last, compilers)
        whole = job.stages("put layers back", _joined, whole, written, len(last.part.given))
    return whole and (whole, constants, cached)


def _joined(main: StoredPlan, last: StoredPlan, given: int) -> StoredPlan | None:
    plans = (Plan(stored.graph, stored.decisions) for stored in (main, last))
    whole = joined(*plans, given)
    if whole is None:
        return None
    bundles = _renamed_bundles(last.bundles, whole.last)
    return StoredPlan(whole.graph, {**main.bundles, **bundles}, whole.decisions)


def _with_layers(stored: StoredPlan, layers: Repeated, captured: Captured) -> StoredPlan | None:
    whole = whole_plan(Plan(stored.graph, stored.decisions), layers, _inputs(captured))
    if whole is None:
        return None
    bundles = _renamed_bundles(stored.bundles, whole.nodes)
    return StoredPlan(whole.graph, bundles, whole.decisions)


def _renamed_bundles(
    bundles: Mapping[str, KernelBundle], nodes: Mapping[str, tuple[str, Mapping[str, str]]]
) -> dict[str, KernelBundle]:
    """By node, of each that has one: the kernels of what it was planned as."""
    return {
        name: renamed(bundles[of], name, buffers)
        for name, (of, buffers) in nodes.items()
        if of in bundles
    }


def _inputs(captured: Captured) -> list[str]:
    """Names."""
    return [n.name for n in captured.module.graph.find_nodes(op="placeholder")]


def plan_graph(
    captured: Captured, options: Options, target: Target | None = None
) -> tuple[Graph, Plan]:
    """The captured graph as the search is given it, and the plan that would be compiled, for
    `target` or else for the device that its tensors are on; nothing is generated. No layer is left
    out."""
    job = _Job.of(captured, options, target)
    before = _through(Plan(job.lowered().graph, ()), _names(job, until="plan"), job)
    return before.graph, _with_kernels(_through(before, _names(job, since="plan"), job), job)


def finished_plan(captured: Captured, options: Options, target: Target | None = None) -> Plan:
    """The same plan, made as it is to be compiled: equal layers once."""
    job = _Job.of(captured, options, target)
    return _finished_without_repeats(job) or plan_graph(captured, options, target)[1]


def _finished_without_repeats(job: _Job) -> Plan | None:
    main, last = job.parts()
    layers = job.stages("find layers", repeated, job.captured, main.part)
    if layers is None:
        return None
    made = _finished(replace(main, layers=layers))
    whole = job.stages("put layers back", whole_plan, made, layers, _inputs(job.captured))
    if whole is None:
        return None
    plan = Plan(whole.graph, whole.decisions, with_uses(made.kernels, whole.nodes))
    if last is None:
        return plan
    written = _finished(last)
    both = joined(plan, written, len(last.part.given))
    if both is None:
        return None
    kernels = *plan.kernels, *with_uses(written.kernels, both.last)
    return Plan(both.graph, both.decisions, kernels)


def _finished(job: _Job) -> Plan:
    return _with_kernels(_through(Plan(job.lowered().graph, ()), job.target.passes, job), job)


def _make_plan(job: _Job, lowered: Lowered, tell: Made = _nobody) -> StoredPlan:
    choices = Choices()
    tunes = job.options.tune_seconds > 0 and JOIN in job.target.passes
    if tunes and not lowered.graph.symbols:
        made = _tuned(Plan(lowered.graph, ()), job, choices)
    else:
        made = _through(Plan(lowered.graph, ()), job.target.passes, job, choices)
    made = _with_kernels(made, job, choices)
    bundles = job.stages("generate", generate_all, made.kernels, tell)
    return StoredPlan(made.graph, bundles, made.decisions)


def _tuned(made: Plan, job: _Job, choices: Choices) -> Plan:
    """The passes, with the one that joins products repeated while a tuner measures."""
    unseen = replace(job, stages=untimed)
    after = job.target.passes[job.target.passes.index(JOIN) + 1 :]

    def tried(graph: Graph) -> tuple[Graph, dict[str, KernelBundle]]:
        done = _with_kernels(_through(Plan(graph, ()), after, unseen, choices), unseen, choices)
        return done.graph, generate_all(done.kernels)

    made = _through(made, _names(job, until=JOIN), job, choices)
    tuner = Tuner(job.target, job.options, choices, tried)
    join = PASSES[JOIN].run
    made = job.stages(JOIN, tuner.tuned, made, lambda p: join(p, job.context(choices)))
    return _through(made, after, job, choices)


def _through(made: Plan, names: tuple[str, ...], job: _Job, choices: Choices | None = None) -> Plan:
    """`made` after the passes `names`, in order."""
    context = job.context(choices or Choices())
    for name in names:
        made = job.stages(name, PASSES[name].run, made, context)
        if job.options.debug:
            check_graph(made.graph)
    return made


def _names(job: _Job, until: str | None = None, since: str | None = None) -> tuple[str, ...]:
    """The target's passes before `until`, or from `since` on."""
    names = job.target.passes
    return names[: names.index(until)] if until else names[names.index(since) :]


def _with_kernels(made: Plan, job: _Job, choices: Choices | None = None) -> Plan:
    """The finished plan: what makes each kernel is decided here, once."""
    check_graph(made.graph)
    choose = (choices or Choices()).choose
    kernels = job.stages("choose kernels", kernels_of, made.graph, job.target, choose)
    return replace(made, kernels=kernels, decisions=(*made.decisions, *told(kernels)))


def _main(devices: Sequence[torch.device]) -> torch.device:
    """An accelerator if any tensor is on one."""
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


def _devices(captured: Captured) -> tuple[torch.device, ...]:
    """Of the tensors that the graph makes or reads, in the order in which they are made."""
    made = (n.meta.get("val") for n in captured.module.graph.nodes if n.users)
    values = (v for value in made for v in (value if isinstance(value, (tuple, list)) else [value]))
    return tuple(dict.fromkeys(v.device for v in values if isinstance(v, torch.Tensor)))


def _check_devices(devices: Sequence[torch.device]) -> None:
    """Kernels read memory, and are launched on one GPU's streams."""
    others = [str(d) for d in devices if d.type != "cpu"]
    if len(others) > 1:
        raise NotLowered(f"its tensors are on several devices ({', '.join(others)})")
    if others and not others[0].startswith("cuda"):
        raise NotLowered(f"it has tensors on {others[0]}, for which there are no kernels")


def _check_kernels(graph: Graph, device: torch.device) -> None:
    """A kernel for a GPU cannot write to a CPU's memory: a fault, after which nothing runs."""
    has_kernels = any(isinstance(n, Comp) for n in graph.nodes)
    on_gpu = any(b.device != "cpu" for b in graph.buffers.values())
    if device.type != "cpu" and has_kernels and not on_gpu:
        raise NotLowered("all that it makes is on the CPU, not on the GPU of its tensors")


class _Stages(Clock):
    """Runs stages, keeps their seconds, and prints what TORCHWELD_DEBUG asks for."""

    def __init__(self, debug: int, capture_s: float) -> None:
        super().__init__()
        self._debug = debug
        self.seconds["capture"] = capture_s

    def __call__(self, name: str, stage: Callable, *args, **kwargs):
        result = super().__call__(name, stage, *args, **kwargs)
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

"""Plans for devices that are not here: a model of fake tensors (shapes without data) is captured as
`torch.compile` captures it, and each graph is planned for each device. Nothing is generated, no
kernel is compiled; a model of the zoo has no weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

import torch

from torchweld.capture import aot
from torchweld.capture.captured import Captured
from torchweld.capture.scores import Scores
from torchweld.capture.torch_private import fake_tensors
from torchweld.core.errors import UsageError, one_line
from torchweld.core.events import TorchweldWarning
from torchweld.core.options import Options
from torchweld.elsewhere.data import Asked, PlannedGraph, Plans, Refused, Step
from torchweld.elsewhere.shapes import on_device, without_data
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.nodes import Arg, Extern, Node, View
from torchweld.pipeline import finished_plan
from torchweld.plan.decisions import Choice, Plan
from torchweld.plan.products.kernel import is_call
from torchweld.plan.scores.takes import taken_by
from torchweld.targets.find import target_asked
from torchweld.targets.target import Target
from torchweld.templates.gemm.price import Prices
from torchweld.zoo import targets

Told = Callable[[str, str, Plan, Target], None]  # device, inference|forward|backward, plan, target


def planned(asked: Asked, options: Options | None = None) -> Plans:
    """The plans of every graph of one step, for each device in turn. Fake CUDA tensors need CUDA
    or guard.cpp in the process. Errors: UsageError for a target that is none, or does not run."""
    devices = {name: target_asked(name) for name in asked.devices}
    graphs: list[PlannedGraph] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for kind in dict.fromkeys(d.kind for d in devices.values()):
            alike = {n: d for n, d in devices.items() if d.kind == kind}
            graphs += _of_kind(asked, kind, alike, options or Options())
    notes = [str(w.message) for w in told if issubclass(w.category, TorchweldWarning)]
    graphs.sort(key=lambda g: asked.devices.index(g.device))
    return Plans(tuple(graphs), tuple(dict.fromkeys(notes)))


def _of_kind(
    asked: Asked, kind: str, devices: dict[str, Target], options: Options
) -> list[PlannedGraph]:
    """`devices`, by name, are all CPUs or all GPUs: one capture does for them."""
    found: list[PlannedGraph] = []

    def told(name: str, graph_kind: str, plan: Plan, device: Target) -> None:
        found.append(_told(asked.target, name, graph_kind, plan, device))

    each_plan(asked, kind, devices, options, told)
    return found


def each_plan(
    asked: Asked, kind: str, devices: dict[str, Target], options: Options, told: Told
) -> None:
    """Captures a step of `asked` without data, and calls `told` with the plan of each graph for
    each of `devices`, which are all of `kind`. A backward is given what the forward keeps in the
    layout that the last of them has it in."""

    def compile_graph(captured: Captured, options: Options) -> aot.Boxed:
        for name, device in devices.items():
            plan = finished_plan(captured, options, device)
            told(name, captured.kind, plan, device)
        return _with_kept(captured, plan.graph.outputs)

    torch.compiler.reset()
    def takes(scores: Scores) -> bool:
        return all(taken_by(scores, device) for device in devices.values())

    backend = aot.make_backend(compile_graph, options, takes=takes)
    target = without_data(asked, kind)
    with fake_tensors():
        target = on_device(target, kind)
        _run(target, torch.compile(target.model, backend=backend, dynamic=False))


def _with_kept(captured: Captured, outputs: Sequence[Arg]) -> aot.Boxed:
    """The graph in eager, whose loose results have the strides of `outputs`."""
    run = aot.run_eagerly(captured.module)

    def laid_out(args: list) -> list:
        results = list(run(args))
        for k in captured.loose_outputs:
            view = outputs[k]
            if isinstance(view, View) and all(isinstance(n, int) for n in view.strides):
                results[k] = torch.empty_strided(
                    results[k].shape, view.strides, dtype=results[k].dtype, device=results[k].device
                )
        return results

    return laid_out


def _run(target: targets.Target, compiled) -> None:
    """One step of a target."""
    try:
        with torch.set_grad_enabled(target.train):
            result = compiled(*target.args, **(target.kwargs or {}))
            if target.train:
                result.backward()
    except Exception as error:
        raise UsageError(
            f"{target.name} does not run without data: {one_line(error)}",
            do="give a model whose sizes do not depend on values",
        ) from error


# -- a plan as records --


def _told(target: str, device: str, kind: str, plan: Plan, table: Target) -> PlannedGraph:
    choices = {c.kernel: c for c in plan.choices}
    prices = Prices(plan.graph, table)
    nodes = (n for n in plan.graph.nodes if not is_check(n))
    steps = tuple(_step(n, choices.get(n.name), prices) for n in nodes)
    return PlannedGraph(target, device, kind, steps, tuple(_refused(plan)))


def is_check(node: Node) -> bool:
    """Whether a node only checks indices: no kernel of the model."""
    return isinstance(node, Extern) and node.target == CHECK_INDEX


def _step(node: Node, choice: Choice | None, prices: Prices) -> Step:
    origins = tuple(dict.fromkeys(o.op for o in node.origins))
    if isinstance(node, Extern):
        us = (choice and choice.predicted_us) or _call_us(node, prices)
        why = choice.reason if choice else ""
        return Step(node.name, True, node.target, "", us, why, origins)
    if choice is None:
        return Step(node.name, False, "none", "", None, "no template makes it", origins)
    return Step(node.name, False, choice.template, choice.schedule, choice.predicted_us,
                choice.reason, origins)  # fmt: skip


def _call_us(node: Extern, prices: Prices) -> float | None:
    priced = prices.device.kind == "cuda" and is_call(node)
    return prices.call_s(node) * 1e6 if priced else None


def _refused(plan: Plan) -> Iterable[Refused]:
    for r in plan.refusals:
        yield Refused(r.producer, r.consumer, r.reason.value, r.evidence, r.bytes_at_stake)

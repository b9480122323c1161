"""A report from a target: measure, verify, explain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import torch

from torchweld.api import records
from torchweld.core.dtypes import torch_name
from torchweld.core.events import events
from torchweld.core.machine import device_name, versions
from torchweld.exact.verify import draws, dropout_off, verify
from torchweld.observe.measure import subject as profiling
from torchweld.observe.measure.metas import meta_of
from torchweld.observe.measure.traffic import tensors_in
from torchweld.observe.profile.run import profile_subject
from torchweld.observe.record.report import SCHEMA_VERSION, Error, Machine, Report, Subject
from torchweld.observe.report.kernel_errors import with_kernel_errors
from torchweld.observe.report.measure import Heard, Prepared, Workload, measure
from torchweld.observe.report.parts import graph_part

UNJUDGED = "the model draws random numbers, even in eval mode: its errors are not measured"
MEANINGLESS = 0.5  # eager is wrong by this much: the result is rounding noise, a zero gradient


@dataclass(frozen=True)
class Plan:
    """`ways`: names of report.ways, torchweld last. `seconds`: of paired timing. `kernels`: whether
    each kernel is measured, too. `command`, `seed`: told in the report."""

    target: str
    workload: Workload
    ways: list[str]
    seconds: float = 20.0
    kernels: bool = False
    command: str = ""
    seed: int | None = None


def build_report(plan: Plan, heard: Heard) -> Report:
    """Compiles, measures, verifies and explains. `heard(what, fraction)` is told how far it is."""
    until = 0.6 if plan.kernels else 0.8
    report, ready = measured_report(plan, lambda s, f: heard(s, until * f))
    if plan.kernels:
        report = with_kernels(report, ready, plan.workload, lambda s, f: heard(s, 0.6 + 0.2 * f))
    return with_errors(report, ready, plan.workload, lambda s, f: heard(s, 0.8 + 0.2 * f))


def measured_report(plan: Plan, heard: Heard) -> tuple[Report, dict[str, Prepared]]:
    """The report without errors, and the ways that can be checked for theirs."""
    ways, ready = measure(plan.ways, plan.workload, plan.seconds, heard)
    report = Report(
        schema_version=SCHEMA_VERSION,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=_this_machine(plan.workload.device),
        subject=replace(
            subject(plan.target, plan.workload), command=plan.command, seed=plan.seed
        ),
        ways=ways,
        graphs=[graph_part(record) for record in records(ready["torchweld"].run)],
        warnings=[event.message for event in events()],
    )
    return report, ready


def _this_machine(device: str) -> Machine:
    found = {"triton": None} | versions()
    return Machine(device, device_name(device), torch.get_num_threads(), **found)


def subject(target: str, workload: Workload) -> Subject:
    """What is measured: shapes, dtype and number of parameters of `workload`."""
    inputs = [*workload.args, *workload.kwargs.values()]
    parameters = list(workload.model.parameters())
    floating = [p for p in [*parameters, *tensors_in(inputs)] if p.is_floating_point()]
    return Subject(
        target=target,
        inputs=[str(meta_of(t)) for t in tensors_in(inputs)],
        dtype=torch_name(floating[0].dtype) if floating else "-",
        parameters=sum(p.numel() for p in parameters),
        train=workload.train,
    )


def with_kernels(
    report: Report, ready: dict[str, Prepared], workload: Workload, heard: Heard
) -> Report:
    """The report with each kernel measured: profiles before and after, errors of fused kernels."""
    runs = {"eager": workload.model, "torchweld": ready["torchweld"].run}
    made = records(runs["torchweld"])
    profiles = []
    for count, (way, run) in enumerate(runs.items()):
        heard(f"profile: {way}", count / 3)
        subject_ = _profiled(report, workload, run)
        profiles.append(profile_subject(subject_, way, records=lambda: made))
    heard("errors of the kernels", 2 / 3)
    workload.model.zero_grad(set_to_none=True)
    return replace(report, profiles=profiles, graphs=with_kernel_errors(report.graphs, made))


def _profiled(report: Report, workload: Workload, run: Callable) -> profiling.Subject:
    return profiling.Subject(
        report.subject.target, run, workload.args, workload.kwargs, workload.train,
        workload.device, workload.model,
    )  # fmt: skip


def with_errors(
    report: Report, ready: dict[str, Prepared], workload: Workload, heard: Heard
) -> Report:
    """The errors against float64 of the ways that are ready. Eager's comes with every
    comparison."""
    with comparable(workload.model, workload.inputs) as note:
        return _with_errors(report, ready, workload, heard, note)


@contextmanager
def comparable(model: torch.nn.Module, inputs) -> Iterator[str]:
    """Within, the model draws no random numbers, if that can be had: without dropout layers, else
    in eval mode. Gives what is to be told; UNJUDGED where it still draws."""
    modes = {module: module.training for module in model.modules()}
    with dropout_off(model) as silenced:
        try:
            if not draws(model, inputs):
                yield "errors were measured with dropout off" if silenced else ""
                return
            model.eval()
            yield UNJUDGED if draws(model, inputs) else "errors were measured in eval mode"
        finally:
            for module, training in modes.items():
                module.training = training


def _with_errors(
    report: Report, ready: dict[str, Prepared], workload: Workload, heard: Heard, note: str
) -> Report:
    if note == UNJUDGED:
        return replace(report, warnings=[*(event.message for event in events()), note])
    errors: dict[str, Error] = {}
    outside: list[str] = []
    compared = [name for name in ready if name != "eager"]
    for count, name in enumerate(compared):
        heard(f"check against float64: {name}", count / len(compared))
        run = _Renamed(workload.model, ready[name].run)
        found = verify(workload.model, run, workload.inputs, train=workload.train, seeds=(0,))
        told = [e for e in found.errors if e.scale and e.eager_l2 < MEANINGLESS]
        wrong = [e for e in found.errors if not e.ok and e.eager_l2 < MEANINGLESS]
        outside += [f"{name} is outside the contract: {e.name}: {e.reason}" for e in wrong]
        errors[name] = _worst([(e.fused_l2, e.fused_max / e.scale) for e in told], not wrong)
        errors["eager"] = _worst([(e.eager_l2, e.eager_max / e.scale) for e in told], None)
    ways = [replace(way, error=errors.get(way.name)) for way in report.ways]
    warnings = [*(event.message for event in events()), *outside, *([note] if note else [])]
    return replace(report, ways=ways, warnings=warnings)


def _worst(found: list[tuple[float, float]], within: bool | None) -> Error:
    return Error(
        max((l2 for l2, _ in found), default=0.0),
        max((largest for _, largest in found), default=0.0),
        within,
    )


class _Renamed(torch.nn.Module):
    """`run` as a module whose parameters and buffers have the original's names: torch.compile puts
    a prefix before them."""

    def __init__(self, original: torch.nn.Module, run: Callable) -> None:
        super().__init__()
        self.named_parameters = original.named_parameters
        self.named_buffers = original.named_buffers
        self._run = [run]  # in a list: not registered as a submodule

    def forward(self, *args, **kwargs):
        return self._run[0](*args, **kwargs)

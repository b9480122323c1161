"""The expected trace of a target without running it: fake tensors through eager, or through the
planner, each kernel priced as a profile prices it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from torchweld.capture.torch_private import fake_tensors
from torchweld.core.errors import UsageError, one_line
from torchweld.core.options import Options
from torchweld.elsewhere.data import Asked
from torchweld.elsewhere.plan import each_plan, is_check
from torchweld.elsewhere.shapes import on_device, without_data
from torchweld.ir.nodes import Extern
from torchweld.observe.measure.recorder import record
from torchweld.observe.measure.subject import Subject
from torchweld.observe.predict.calibrate import calibrated
from torchweld.observe.predict.limits import predict_us, regime_of
from torchweld.observe.predict.named import line_of
from torchweld.observe.predict.work import Work, call_work, node_work
from torchweld.observe.record.guess import SCHEMA_VERSION, Expected, Guess
from torchweld.observe.record.profile import Place, Roofline
from torchweld.targets.find import target_asked

_Task = tuple[str, str, list[Place], bool, Work]  # name, kind, places, backward, work


def expected(asked: Asked, way: str, line: Roofline | None) -> Guess:
    """For the one device of `asked`; `line`: the limits of this machine's device, None for a named
    GPU's. Errors: UsageError for a target that is none, or does not run without data."""
    (device,) = asked.devices
    table = target_asked(device)
    line = line or line_of(table)
    table = calibrated(line) if table.kind == "cpu" else table
    kernels = [_kernel(task, line, table) for task in _TASKS[way](asked, device)]
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Guess(SCHEMA_VERSION, now, asked.target, way, asked.train, line.name, kernels)


def _kernel(task: _Task, line: Roofline, table) -> Expected:
    name, kind, places, backward, work = task
    return Expected(
        name, kind, places, "backward" if backward else "forward", work.dtype,
        regime_of(work, line), predict_us(work, line, table), work.bytes, work.flops,
    )  # fmt: skip


def _eager(asked: Asked, device: str) -> Iterator[_Task]:
    kind = target_asked(device).kind
    target = without_data(asked, kind)
    with fake_tensors():
        target = on_device(target, kind)
        subject = Subject(asked.target, target.model, target.args, target.kwargs or {},
                          asked.train, kind, target.model)  # fmt: skip
        try:
            calls = record(subject.step, subject.module_names).calls
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"{asked.target} does not run without data: {one_line(error)}",
                             do="give a model whose sizes do not depend on values") from error
    for call in calls:
        yield call.name, "operator", [call.place], call.backward, call_work(call)


def _torchweld(asked: Asked, device: str) -> Iterator[_Task]:
    found: list[_Task] = []

    def told(kind: str, plan) -> None:
        for node in plan.graph.nodes:
            if not is_check(node):
                made = ("library", node.target) if isinstance(node, Extern) else (
                    "generated", node.name)
                places = [Place.of(origin) for origin in node.origins]
                found.append((made[1], made[0], places, kind == "backward",
                              node_work(node, plan.graph)))  # fmt: skip

    target = target_asked(device)
    each_plan(asked, target.kind, {device: target}, Options(),
              lambda name, kind, plan, table: told(kind, plan))
    return iter(found)


_TASKS = {"eager": _eager, "torchweld": _torchweld}

"""`torchweld report`: check what was asked, build the target, measure with a progress bar, show; or
show a saved report again."""
from __future__ import annotations

import sys
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from torchweld.cli.asked import (
    check_machine,
    check_output,
    chosen_device,
    tables_console,
    write_text,
)
from torchweld.core.events import TorchweldWarning
from torchweld.core.files import write_whole
from torchweld.observe.record import report as data
from torchweld.observe.record.schema import read_json, to_json
from torchweld.observe.report.build import Plan, build_report
from torchweld.observe.report.measure import Workload, check_trains, threads
from torchweld.observe.report.ways import chosen_ways
from torchweld.observe.views.report import show
from torchweld.zoo import targets
from torchweld.zoo.chosen import chosen_target, is_file


@dataclass(frozen=True)
class Request:
    """The command's arguments, None where the default depends on the machine or the target."""

    target: str
    device: str | None
    dtype: str | None
    train: bool
    html: Path | None
    json: Path | None
    against: str | None
    threads: int | None
    seed: int
    tiny: bool
    seconds: float
    command: str = ""


def run(request: Request) -> None:
    """Errors: UsageError or EnvironmentProblem for whatever the user can mend."""
    check_output(request.html, "--html")
    check_output(request.json, "--json")
    saved = request.target.endswith(".json")
    with redirect_stdout(sys.stderr):  # what the target prints is no part of the report
        report = read_json(Path(request.target)) if saved else _measured(request)
    show(report, tables_console(request.json))
    if request.json:
        write_text(to_json(report), request.json)
    if request.html:
        from torchweld.observe.views.page.render import report_page

        write_whole(report_page(report), request.html)


def _measured(request: Request) -> data.Report:
    device = chosen_device(request.device)
    ways = chosen_ways(request.against, device)
    check_machine(device)
    in_zoo = not is_file(request.target)
    with threads(request.threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchweldWarning)  # the report lists them
        plan = Plan(
            request.target, _workload(request, device), ways, request.seconds,
            kernels=bool(request.html or request.json), command=request.command,
            seed=request.seed if in_zoo else None,
        )  # fmt: skip
        return _with_progress(plan)


def _with_progress(plan: Plan) -> data.Report:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("start", total=1.0)
        return build_report(
            plan, lambda what, done: progress.update(task, description=what, completed=done))


def _workload(request: Request, device: str) -> Workload:
    target = chosen_target(
        request.target, device, request.dtype, request.train, request.seed, request.tiny)
    targets.check_fits(target)
    workload = Workload(target.model, target.args, target.kwargs or {}, target.train, device)
    if request.train:
        check_trains(request.target, workload)
    return workload

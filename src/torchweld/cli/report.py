"""`torchweld report`: check what was asked, build the target, measure with a progress bar, show; or
show a saved report again."""
from __future__ import annotations

import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from torchweld.core.errors import EnvironmentProblem, UsageError
from torchweld.core.events import TorchweldWarning
from torchweld.core.options import Options
from torchweld.report import data
from torchweld.report.build import Plan, build_report
from torchweld.report.measure import Workload, threads
from torchweld.report.schema import read_json, write_json, write_whole
from torchweld.report.tables import show
from torchweld.report.ways import chosen_ways
from torchweld.zoo import models, targets

USUAL_DTYPE = {"cpu": "float32", "cuda": "bfloat16"}


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
    _check_output(request.html, "--html")
    _check_output(request.json, "--json")
    saved = request.target.endswith(".json")
    report = read_json(Path(request.target)) if saved else _measured(request)
    show(report, Console())
    if request.json:
        write_json(report, request.json)
    if request.html:
        from torchweld.report.page.render import report_page

        write_whole(report_page(report), request.html)


def _measured(request: Request) -> data.Report:
    device = _device(request.device)
    ways = chosen_ways(request.against, device)
    _check_machine(device)
    in_zoo = not _is_file(request.target)
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
    target = _target(request, device)
    targets.check_fits(target)
    return Workload(target.model, target.args, target.kwargs or {}, target.train, device)


def _target(request: Request, device: str) -> targets.Target:
    if _is_file(request.target):
        dtype = getattr(torch, request.dtype) if request.dtype else None
        return targets.load_target(request.target, dtype=dtype, device=device, train=request.train)
    dtype = getattr(torch, request.dtype or USUAL_DTYPE[device])
    size = "tiny" if request.tiny else device
    return models.load(request.target, size, dtype=dtype, device=device, train=request.train,
                       seed=request.seed)


def _is_file(target: str) -> bool:
    return ":" in target or target.endswith(".py")


def _device(asked: str | None) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        raise EnvironmentProblem("there is no GPU that torch can use", do="use --device cpu")
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")


def _check_machine(device: str) -> None:
    if device == "cpu" and shutil.which("g++") is None:
        raise EnvironmentProblem("g++ is missing",
                                 do="install it (Debian, Ubuntu: apt-get install g++)")
    root = Options().cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        raise EnvironmentProblem(f"the cache {root} cannot be written ({error.strerror})",
                                 do="set TORCHWELD_CACHE_DIR to a folder that can") from error


def _check_output(path: Path | None, option: str) -> None:
    """Before the work is done, not after."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", do="make it, or name another file")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", do=f"name a file for {option}")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        why = f"{path.parent} cannot be written ({error.strerror})"
        raise UsageError(why, do=f"name a file elsewhere for {option}") from error

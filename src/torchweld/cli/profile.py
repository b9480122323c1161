"""`torchweld profile`: check what was asked, build the target, profile it, show where the time
goes."""
from __future__ import annotations

import json
import sys
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from torchweld.cli.asked import (
    check_machine,
    check_output,
    chosen_device,
    tables_console,
    write_text,
)
from torchweld.cli.predict import kept_guess
from torchweld.core.events import TorchweldWarning
from torchweld.observe.entry import profile
from torchweld.observe.record.profile import Profile
from torchweld.observe.report.measure import threads
from torchweld.observe.views.guess import beside_view
from torchweld.observe.views.profile import show
from torchweld.zoo.chosen import chosen_target


@dataclass(frozen=True)
class Request:
    """The command's arguments, None where the default depends on the machine or the target."""

    target: str
    way: str
    device: str | None
    dtype: str | None
    train: bool
    json: Path | None
    trace: Path | None
    opportunities: bool | None
    threads: int | None
    seed: int
    tiny: bool


def run(request: Request) -> None:
    """Errors: UsageError or EnvironmentProblem for whatever the user can mend."""
    check_output(request.json, "--json")
    check_output(request.trace, "--trace")
    console = Console(stderr=True)
    with console.status("profile"), threads(request.threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchweldWarning)
        with redirect_stdout(sys.stderr):  # what the target prints is no part of the profile
            found = _profiled(request)
    show(found, tables_console(request.json))
    guess = kept_guess(request, found.roofline.device)
    if guess is not None:
        tables_console(request.json).print(beside_view(guess, found.kernels))
    if request.json:
        write_text(json.dumps(found.to_dict(), indent=1) + "\n", request.json)


def _profiled(request: Request) -> Profile:
    device = chosen_device(request.device)
    check_machine(device)
    target = chosen_target(
        request.target, device, request.dtype, request.train, request.seed, request.tiny)
    return profile(target.model, target.example_inputs, way=request.way, train=request.train,
                   name=request.target, trace=request.trace,
                   opportunities=request.opportunities)

"""`torchweld profile --predict`: the expected trace, before anything is run. It is kept, and the
next profile of the same target shows it beside the measurement."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console

from torchweld.cli.asked import (
    check_machine,
    check_output,
    chosen_device,
    tables_console,
    write_text,
)
from torchweld.core.errors import UsageError
from torchweld.core.machine import device_name
from torchweld.core.options import Options
from torchweld.elsewhere.data import Asked
from torchweld.elsewhere.process import guess
from torchweld.observe.predict.calibrate import roofline
from torchweld.observe.record.guess import Guess
from torchweld.observe.record.profile import LEAST_SHARE, Roofline
from torchweld.observe.report.measure import threads
from torchweld.observe.views.guess import show_guess
from torchweld.runtime.cache import digest, open_cache
from torchweld.targets.find import GPUS, named_target
from torchweld.zoo.chosen import is_file

_WAYS = ("eager", "torchweld")


def run(request, elsewhere: str | None) -> None:
    """`request`: as of cli.profile. `elsewhere`: the name of a device that need not be here."""
    if request.way not in _WAYS:
        raise UsageError(f"the kernels of {request.way} are not known before it runs",
                         do=f"use --way {' or '.join(_WAYS)}")
    check_output(request.json, "--json")
    with Console(stderr=True).status("predict"), threads(request.threads):
        found = _guessed(request, elsewhere)
    show_guess(found, tables_console(request.json))
    if request.json:
        write_text(found.to_json(), request.json)


def _guessed(request, elsewhere: str | None) -> Guess:
    here = elsewhere in (None, "cpu")
    device = chosen_device("cpu" if elsewhere == "cpu" else request.device) if here else "cuda"
    line = _limits(device) if here else None
    named = elsewhere or ("cpu" if device == "cpu" else _name_of_gpu())
    asked = Asked(request.target, (named,), request.train, request.dtype, request.tiny)
    found = guess(asked, request.way, line)
    if here:
        open_cache(Options()).put(_key(request, device), ".json", found.to_json().encode())
    return found


def _limits(device: str) -> Roofline:
    """Of this machine's device."""
    check_machine(device)
    line = roofline(device, device_name(device))
    if not line.trusted:
        print(f"torchweld: this machine was busy when its limits were measured (below "
              f"{LEAST_SHARE:.0%} of the processor): predicted times are too long", file=sys.stderr)
    return line


def _name_of_gpu() -> str:
    """The record in `targets` that this GPU is planned with."""
    known = named_target(device_name("cuda"))
    return next(name for name, target in GPUS.items() if target == known)


def kept_guess(request, device: str) -> Guess | None:
    """What was guessed of the same target for this device, or None."""
    kept = open_cache(Options()).get(_key(request, device), ".json")
    try:
        return Guess.from_json(kept.decode()) if kept is not None else None
    except UsageError:  # of another version
        return None


def _key(request, device: str) -> str:
    target = request.target
    if is_file(target):
        path, _, function = target.partition(":")
        target = f"{Path(path).resolve()}:{function}"
    return digest("guess", target, request.way, device, str(request.dtype), str(request.train),
                  str(request.tiny), str(request.threads or torch.get_num_threads()))

"""torchweld calibrate: what is known of this machine's speed."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from torchweld.calibration.convolutions import measured_convolutions
from torchweld.calibration.gemm import measured_rates
from torchweld.core.errors import EnvironmentProblem
from torchweld.core.files import write_whole
from torchweld.core.machine import device_name
from torchweld.core.options import Options
from torchweld.targets.find import target_of
from torchweld.targets.rates import ROWS
from torchweld.templates.conv.price import has_own_convolutions


def calibrate(renew: bool, json_path: Path | None) -> None:
    """Prints the rates of float32 products on this CPU, measured now if they are not known. Raises
    EnvironmentProblem if other work takes the processor's time."""
    options, target = Options(), target_of("cpu")
    rates = measured_rates(target, options, renew)
    if renew and has_own_convolutions(target):
        measured_convolutions(target, options, renew)
    if rates is None:
        why = "the machine is busy, or no kernel compiles here"
        raise EnvironmentProblem(f"not measured: {why}", do="try again when it is idle")
    if json_path is not None:
        shown = {"device": device_name("cpu"), "threads": torch.get_num_threads(), "rows": ROWS,
                 "multiply_adds_per_s": rates}  # fmt: skip
        write_whole(json.dumps(shown, indent=1) + "\n", json_path)
    title = f"{device_name('cpu')}, {torch.get_num_threads()} threads: GFLOP/s"
    table = Table("rows", *(way for way in rates), title=title)
    for place, rows in enumerate(ROWS):
        table.add_row(str(rows), *(f"{2e-9 * known[place]:.0f}" for known in rates.values()))
    Console().print(table)

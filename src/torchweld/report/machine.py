"""Where a measurement was made."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import torch

from torchweld.report.data import Machine


def this_machine(device: str) -> Machine:
    """device: "cpu" or "cuda"."""
    return Machine(
        device=device,
        name=torch.cuda.get_device_name() if device == "cuda" else _cpu_name(),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
        torchweld=_version("torchweld") or "from source",
        triton=_version("triton"),
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

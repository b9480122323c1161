"""Where something was measured: the device's name and the versions of what runs on it."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import torch


def device_name(device: str) -> str:
    """The model of the GPU ("cuda") or of the processor ("cpu"), as the system names it."""
    return torch.cuda.get_device_name() if device == "cuda" else _cpu_name()


def version_of(package: str) -> str | None:
    """None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Of what runs: python, torch, torchweld, and triton if there is one."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchweld": version_of("torchweld") or "from source",
        "triton": version_of("triton"),
    }
    return {name: version for name, version in found.items() if version}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

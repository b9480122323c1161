"""Where a measurement was made."""

from __future__ import annotations

import platform

import torch

from torchweld.core.machine import device_name, version_of
from torchweld.observe.record.report import Machine


def this_machine(device: str) -> Machine:
    """device: "cpu" or "cuda"."""
    return Machine(
        device=device,
        name=device_name(device),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
        torchweld=version_of("torchweld") or "from source",
        triton=version_of("triton"),
    )

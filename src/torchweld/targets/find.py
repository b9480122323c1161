"""The target of a device at hand, or of one that is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch

from torchweld.core.errors import UsageError
from torchweld.targets.cpu import cpu_target
from torchweld.targets.gpus import A100, GENERIC, H100, H200, KNOWN, SM_100
from torchweld.targets.target import Target

# What can be planned for by name, beside "cpu": this machine's.
GPUS: Mapping[str, Target] = {
    "h100": H100, "h200": H200, "a100": A100, "sm_100": SM_100, "generic": GENERIC,
}  # fmt: skip


def target_of(device: torch.device | str) -> Target:
    """The record of `device`, built once per device and thread count."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.is_available():
        return _cuda_target(device.index or 0)
    if device.type == "cuda":
        return H100  # ahead of time, for a GPU that is elsewhere
    return cpu_target(torch.get_num_threads())


def named_target(name: str) -> Target:
    """The record of a GPU by name ("H100"), the generic one if it is not known."""
    return next((t for t in KNOWN if t.name in name), GENERIC)


def target_asked(name: str) -> Target:
    """The target that a user names; "cpu" is this machine's. Raises UsageError for others."""
    if name == "cpu":
        return target_of("cpu")
    if name not in GPUS:
        raise UsageError(f"there is no target {name!r}", do=f"choose from {', '.join(GPUS)}, cpu")
    return GPUS[name]


@cache
def _cuda_target(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    known = named_target(properties.name)
    shared = getattr(properties, "shared_memory_per_block_optin", 0) or known.shared_bytes
    return replace(
        known,
        units=properties.multi_processor_count,
        llc_bytes=getattr(properties, "L2_cache_size", 0) or known.llc_bytes,
        shared_bytes=shared,
        memory_bytes=properties.total_memory,
        capability=(properties.major, properties.minor),
    )

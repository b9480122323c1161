"""What a device can do, as far as planning and scheduling need to know.

GPU rows hold measured or published rates; where neither exists, a prior that errs on the slow side.
CPU rows are built from the core count and the cache sizes that the system reports.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Rates are sustained ones, in units per second; `fma_per_s` counts float32 multiply-adds
    outside tensor cores.

    units            streaming multiprocessors, or threads
    llc_*            last-level cache: L2 of a GPU, L3 of a CPU
    row_bytes        what one unit keeps on chip of a row while it is worked on
    line_bytes       smallest piece of memory that is moved: a sector, or a cache line
    launch_s         added to every kernel
    grain            elements that one unit needs before a pointwise kernel keeps it busy
    max_columns      of a row that is held in registers beside sums over the rows; 0: no limit
    max_live, max_buffers   values and buffers of one kernel beyond which it spills
    """

    name: str
    kind: str
    units: int
    dram_bytes_per_s: float
    llc_bytes_per_s: float
    llc_bytes: int
    fma_per_s: float
    tensor_fma_per_s: float
    launch_s: float
    row_bytes: int
    line_bytes: int
    grain: int
    shared_bytes: int = 0
    capability: tuple[int, int] = (0, 0)
    max_columns: int = 16384
    max_live: int = 48
    max_buffers: int = 48

    @property
    def begins_early(self) -> bool:
        """Whether a kernel can start while the one before still runs: from Hopper on."""
        return self.capability >= (9, 0)


# H100: copy 3.02 TB/s and 687 TFLOP/s measured; launches inside a CUDA graph.
_H100 = DeviceTable(
    "H100", "cuda", 132, 3.02e12, 6.0e12, 50 << 20, 2.9e13, 3.4e14, 1.2e-6, 192 << 10, 32, 4096,
    227 << 10, (9, 0),
)  # fmt: skip
_H200 = replace(_H100, name="H200", dram_bytes_per_s=4.2e12)
_A100 = DeviceTable(
    "A100", "cuda", 108, 1.7e12, 4.0e12, 40 << 20, 9.0e12, 1.3e14, 1.5e-6, 128 << 10, 32, 4096,
    163 << 10, (8, 0),
)  # fmt: skip
_GENERIC = DeviceTable(
    "CUDA", "cuda", 64, 6.0e11, 1.5e12, 4 << 20, 8.0e12, 4.0e13, 2.0e-6, 64 << 10, 32, 4096,
    99 << 10, (8, 0),
)  # fmt: skip
KNOWN_GPUS = (_H200, _H100, _A100)

# Per core, measured on Zen 4: what one thread streams from memory and from the last-level cache,
# and float32 multiply-adds in a loop that gcc vectorised. Beyond 12 threads a socket's memory is
# the limit.
_CPU_DRAM_PER_CORE, _CPU_MOST_CORES_OF_DRAM = 1.5e10, 12
_CPU_LLC_PER_CORE = 3.5e10
_CPU_FMA_PER_CORE = 4.5e10
_CPU_LAUNCH_S = 6.0e-6


def device_table(device: torch.device | str) -> DeviceTable:
    """The row of `device`, built once per device and thread count."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.is_available():
        return _cuda_table(device.index or 0)
    if device.type == "cuda":
        return _H100  # ahead of time, for a GPU that is elsewhere
    return _cpu_table(torch.get_num_threads())


def named_table(name: str) -> DeviceTable:
    """The row of a GPU by name ("H100"), the generic one if it is not known."""
    return next((row for row in KNOWN_GPUS if row.name in name), _GENERIC)


@cache
def _cuda_table(index: int) -> DeviceTable:
    properties = torch.cuda.get_device_properties(index)
    row = named_table(properties.name)
    shared = getattr(properties, "shared_memory_per_block_optin", 0) or row.shared_bytes
    return replace(
        row,
        units=properties.multi_processor_count,
        llc_bytes=getattr(properties, "L2_cache_size", 0) or row.llc_bytes,
        shared_bytes=shared,
        capability=(properties.major, properties.minor),
    )


@cache
def _cpu_table(threads: int) -> DeviceTable:
    llc = _cache_bytes(3, 32 << 20)
    return DeviceTable(
        name=f"cpu x{threads}",
        kind="cpu",
        units=threads,
        dram_bytes_per_s=_CPU_DRAM_PER_CORE * min(threads, _CPU_MOST_CORES_OF_DRAM),
        llc_bytes_per_s=_CPU_LLC_PER_CORE * threads,
        llc_bytes=llc,
        fma_per_s=_CPU_FMA_PER_CORE * threads,
        tensor_fma_per_s=_CPU_FMA_PER_CORE * threads,
        launch_s=_CPU_LAUNCH_S if threads > 1 else _CPU_LAUNCH_S / 3,
        row_bytes=core_cache_bytes() // 2,
        line_bytes=64,
        grain=4096,
        max_columns=0,
        max_live=96,
        max_buffers=96,
    )


@cache
def core_cache_bytes() -> int:
    """What a CPU's core has for itself: its L2."""
    return _cache_bytes(2, 1 << 20)


def _cache_bytes(level: int, default: int) -> int:
    """Size of the first core's cache at `level`, as Linux reports it."""
    root = Path("/sys/devices/system/cpu/cpu0/cache")
    try:
        for entry in sorted(os.listdir(root)):
            if entry.startswith("index") and (root / entry / "level").read_text().strip() == str(
                level
            ):
                return int((root / entry / "size").read_text().strip().rstrip("K")) << 10
    except (OSError, ValueError):
        pass
    return default

"""CPUs: records built from the number of threads, the instruction set, and the cache sizes that
the system reports. Rates are priors until they are measured (calibration)."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch

from torchweld.targets.rates import prior_rates
from torchweld.targets.target import Target, lanes_of

_TEMPLATES = (
    "multi_tensor", "attention/cpu", "attention/cpu/sums", "conv", "weight_gradient", "pooling",
    "sorting", "gemm/dequantised", "gemm/cpu", "pointwise_reduce/cpu",
)  # fmt: skip
_PASSES = (
    "rewrite", "widen", "paddings", "gradients", "slices", "channels last", "depthwise",
    "contiguous rows", "scores", "row totals", "plan", "row chunks", "dequantised weights",
    "products", "own convolutions", "channel groups", "activations in calls", "steps", "stacks",
    "overwrite operands", "side by side", "lone functions",
)  # fmt: skip

# Per core, measured on Zen 4: what one thread streams from memory and from the last-level cache,
# and float32 multiply-adds in a loop that gcc vectorised. Beyond 12 threads a socket's memory is
# the limit.
_DRAM_PER_CORE, _MOST_CORES_OF_DRAM = 1.5e10, 12
_LLC_PER_CORE = 3.5e10
_FMA_PER_CORE = 4.5e10
_LAUNCH_S = 6.0e-6


@cache
def cpu_target(threads: int) -> Target:
    """This machine's CPU, used with so many threads."""
    llc = cache_bytes(3, 32 << 20)
    return Target(
        name=f"cpu x{threads}",
        kind="cpu",
        units=threads,
        dram_bytes_per_s=_DRAM_PER_CORE * min(threads, _MOST_CORES_OF_DRAM),
        llc_bytes_per_s=_LLC_PER_CORE * threads,
        llc_bytes=llc,
        fma_per_s=_FMA_PER_CORE * threads,
        tensor_fma_per_s=_FMA_PER_CORE * threads,
        launch_s=_LAUNCH_S if threads > 1 else _LAUNCH_S / 3,
        row_bytes=core_cache_bytes() // 2,
        line_bytes=64,
        grain=4096,
        max_columns=0,
        max_live=96,
        max_buffers=96,
        features=_features(),
        templates=_TEMPLATES,
        passes=_PASSES,
        rates=prior_rates(threads),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


@cache
def core_cache_bytes() -> int:
    """What a core has for itself: its L2."""
    return cache_bytes(2, 1 << 20)


def cache_bytes(level: int, default: int) -> int:
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


@cache
def vector_lanes() -> int:
    """Numbers of float32 in a vector of this machine."""
    return lanes_of(_features())


def _features() -> tuple[str, ...]:
    """Of the instruction set, as far as templates ask."""
    capability = torch.backends.cpu.get_cpu_capability()
    known = {"AVX512": ("avx2", "avx512"), "AVX2": ("avx2",)}
    return known.get(capability, ())

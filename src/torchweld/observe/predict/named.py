"""The limits of a GPU that is not here, from its record: what its profile would be held against."""

from __future__ import annotations

from torchweld.observe.record.profile import Roofline
from torchweld.targets.target import Target

_HALF = ("bfloat16", "float16")
_CACHED = 2  # a copy reads and writes: half of the cache holds what it touches


def line_of(target: Target) -> Roofline:
    """Of a GPU by its published or measured rates; products of 16-bit types at the sustained rate
    of its tensor cores, those of float32 at the rate of plain arithmetic (no TF32)."""
    sustained = target.products.sustained if target.products else 2 * target.tensor_fma_per_s
    vector = 2 * target.fma_per_s
    return Roofline(
        device=target.kind, name=target.name, threads=1, launch_us=target.launch_s * 1e6,
        memory_bytes_per_s=target.dram_bytes_per_s, cache_bytes_per_s=target.llc_bytes_per_s,
        cache_bytes=target.llc_bytes // _CACHED,
        matmul_flops_per_s={"float32": vector, **dict.fromkeys(_HALF, sustained)},
        vector_flops_per_s=vector, generated_launch_us=target.launch_s * 1e6,
    )  # fmt: skip
